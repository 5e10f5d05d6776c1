"""Plans of random cases: any strategy there is, or what the search finds under random options."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from helpers.strategies import random_router, random_strategy

from random_models.drawing import CaseOptions
from tensoropt.costs.operator_costs import costing_of
from tensoropt.plan.build import cost_entries, planned_operator
from tensoropt.plan.plan import Plan
from tensoropt.plan.record import PlannedOperator
from tensoropt.plan.stage_plan import StagePlan
from tensoropt.profiling.hardware import Hardware
from tensoropt.rules.configs import configs
from tensoropt.rules.registry import rule_of
from tensoropt.rules.rule import why_invalid
from tensoropt.search.candidates.plan_points import frontier_of_whole
from tensoropt.search.frontiers.find_frontier import searched
from tensoropt.search.options import find_answer
from tensoropt.search.request import OF_CURVE, Request
from tensoropt.sharding.model import Model
from tensoropt.sharding.strategy import StrategyView

MOST_FORCED = 3
TRIES = 50


def plan_of(options: CaseOptions, seed: int, request: Request, option: str) -> Plan:
    """The plan of a case, where :func:`tensoropt.search.options.find_answer` is asked for one."""
    rng = random.Random(f"plan {seed}")
    if options.kind == "random":
        return _random_plan(rng, options, request)
    request = replace(request, budget=OF_CURVE)
    if options.kind == "force":
        request = replace(request, force=_force(rng, options, request))
    elif options.kind in ("point", "limit"):
        frontier = searched(request, options.n_devices)
        if options.kind == "point":
            return frontier_of_whole(frontier).plan(rng.randrange(len(frontier)))
        needed = [frontier.peak_bytes(point) for point in (frontier.least_point(), frontier.fastest_within(None))]
        request = replace(request, limit_bytes=rng.randint(min(needed), max(needed)))
    plan = find_answer(option, request, options.n_devices)
    if options.kind == "limit":
        assert plan.peak_bytes is not None and request.limit_bytes is not None and plan.peak_bytes <= request.limit_bytes
    return plan


def _force(rng: random.Random, options: CaseOptions, request: Request) -> dict[str, dict[str, int]]:
    """Degrees that single operators can have."""
    mesh, graph = request.hardware.mesh(options.n_devices), request.model.graph
    forced = {}
    types = {op.type for op in graph.operators.values()}
    # What names a type forces all operators of it.
    operators = [op for op in graph.step_operators if op.updates is None and op.name not in types]
    for op in rng.sample(operators, min(len(operators), 4 * MOST_FORCED)):
        possible = [config for config in configs(rule_of(op), mesh) if config.used_axes]
        if possible and len(forced) < rng.randint(1, MOST_FORCED):
            config = rng.choice(possible)
            factors = [factor for factor in dict.fromkeys(config.assignment) if factor and not factor.startswith("+")]
            if factors:
                forced[op.name] = {factor: config.degree(factor) for factor in factors}
    return forced


def _random_plan(rng: random.Random, options: CaseOptions, request: Request) -> Plan:
    mesh, n_micro_batches = request.hardware.mesh(options.n_devices), request.micro_batches or 1
    model = request.model.in_micro_batches(n_micro_batches)
    whole = request.model.graph.full_batch
    splits = (lambda config: bool(config.used_axes)) if rng.random() < 0.4 else None
    regathered = 0.0 if "reuse" in options.without else rng.choice((0.0, 0.3))
    rematerialized = 0.0 if "remat" in options.without or n_micro_batches > 1 else rng.choice((0.0, 0.3))
    like_zoo: Any = SimpleNamespace(graph=model.graph, model=model)
    for _ in range(TRIES):
        view = random_strategy(like_zoo, mesh, rng.randrange(10**6), splits, regathered, rematerialized)
        invalid = (why_invalid(rule_of(whole.operators[name]), config) for name, config in view.strategy.configs.items())
        if n_micro_batches == 1 or not any(invalid):
            break
    return as_plan(view, rng.randrange(1000), request.model, request.hardware, n_micro_batches)


def as_plan(view: StrategyView, seed: int, model: Model, hardware: Hardware, n_micro_batches: int = 1) -> Plan:
    """A strategy as a plan that was read from its file."""
    mesh, model = view.strategy.mesh, model.in_micro_batches(n_micro_batches)
    view = model.view(replace(view.strategy, rematerialized=view.rematerialized))
    costing = costing_of(model, hardware, mesh)
    in_step = {op.name for op in view.graph.step_operators}
    operators = []
    for name, interface in view.interfaces.items():
        op, config = view.graph.operators[name], view.strategy.configs[name]
        if op.updates is not None:
            continue
        if name in in_step:
            operators.append(planned_operator(costing, op, view.rules[name], config, interface, name in view.rematerialized))
        else:
            operators.append(PlannedOperator(name, op.type, config, interface.results, 0, 0.0))
    path_finder = random_router(seed)
    reshardings = [planned for entry in cost_entries(view, costing) if (planned := entry.planned(path_finder)) is not None]
    digest = view.graph.full_batch.digest
    stage = StagePlan(
        mesh=mesh, devices=tuple(range(mesh.n_devices)), operators=tuple(operators), reshardings=tuple(reshardings),
        sum_bytes=0, time_us=0.0, compute_time_us=0.0, model_digest=digest,
    )
    plan = Plan(
        stages=(stage,), mesh=mesh, time_us=0.0, model_digest=digest, exact=False, option="random",
        micro_batches=n_micro_batches,
    )
    return Plan.from_json(json.loads(json.dumps(plan.to_json())))
