"""Draws of the suite: a model, its devices and stages, a strategy and an order of passes, all from a seed.

What is drawn and can't be is listed in :data:`REFUSALS` with the sentence that it gets.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from helpers import zoo
from helpers.searches import find_frontier, plans_of
from helpers.strategies import random_strategy, slides
from pipeline.orders import OF_OWN_SUBMESHES, interleaved
from pipeline.staged import random_cuts
from random_models.planning import as_plan

from one_device.models import MODELS, recorded
from tensoropt.common.errors import InputError
from tensoropt.ft import Budget
from tensoropt.plan.plan import Plan
from tensoropt.profiling.hardware import Hardware, named
from tensoropt.program.orders.interleaved import INTERLEAVED
from tensoropt.program.orders.schedule import SCHEDULES, ZERO_BUBBLE
from tensoropt.rules.registry import rule_of
from tensoropt.rules.rule import Config, why_invalid
from tensoropt.search.options import find_answer
from tensoropt.search.request import request_of
from tensoropt.search.stages.placement import Block, blocks_of, is_submesh
from tensoropt.sharding.model import Model
from tensoropt.sharding.stages import Stages

RANDOM, POINT, PLACED = "random", "point", "placed"
NOTHING_SHOWN = {"makespan_ns": 0, "operators": [], "kinds": []}
OF_ONE_STEP = tuple(name for name in MODELS if name != "adversarial")
MOST_TRIES, MOST_DRAWS = 50, 30
PREFERENCES: dict[str, Callable[[Config], bool] | None] = {
    "any": None, "split": lambda config: bool(config.used_axes), "windows": slides,
}  # fmt: skip
IMPOSSIBLE = (
    "stages have their devices in the order of the program",
    "where operators are placed: each needs a variable",
    "a stage would send gradients of the types",
)
"""Cuts and placements that are drawn again: operators against the program's order, a stage without a trained variable, real
and complex numbers with gradients that cross together."""


@dataclass(frozen=True)
class Draw:
    """A plan to run, as drawn from a seed; the strategy's own random choices are drawn later.

    Attributes:
        kind: a ``random`` strategy, a ``point`` of the frontier that is searched, or a plan that is searched with some
            operators ``placed``.
        sizes: how many devices each submesh has; there is one where there are no stages.
        n_stages: as many as there are submeshes, or twice as many, which are interleaved.
        prefers: which configs are taken wherever an operator has such.
        regathered: the mean share of copies that are regathered.
        rematerialized: the mean share of operators that are rematerialized.
        in_order: whether the backward pass runs in a fixed order.
    """

    seed: int
    kind: str
    name: str
    optimizer: str
    cluster: str
    sizes: tuple[int, ...]
    n_stages: int
    schedule: str
    n: int
    prefers: str
    regathered: float
    rematerialized: float
    in_order: bool

    def __str__(self) -> str:
        passes = f"{self.n} micro-batches" if self.n > 1 else "the batch at once"
        stages = f"{self.n_stages} stages by {self.schedule}" if self.n_stages > 1 else "no stages"
        return (
            f"draw {self.seed}: {self.name} by {self.optimizer}, {self.kind} on {self.sizes} of {self.cluster}, {stages}, "
            f"{passes}, configs {self.prefers}, regathered {self.regathered}, rematerialized {self.rematerialized}, "
            f"in order {self.in_order}"
        )

    @property
    def n_devices(self) -> int:
        return sum(self.sizes)

    @property
    def model(self) -> zoo.Recorded:
        return recorded(self.name, self.optimizer)

    @property
    def rng(self) -> random.Random:
        """The random numbers of the plan."""
        return random.Random(f"plan {self.seed} on {self.n_devices}")


def drawn(seed: int, n_devices: int | None = None, name: str = "") -> Draw:
    """Return the draw of a seed, on a number of devices or on any, of a model of one training step or of a named one."""
    rng = random.Random(f"draw {seed} on {n_devices}")
    name = name or OF_ONE_STEP[seed % len(OF_ONE_STEP)]
    entry = MODELS[name]
    n_devices = n_devices or rng.choice([n for n in (2, 2, 3, 3, 4, 4, 6, 8) if n <= entry.most_copies])
    clusters = [f"v100-1x{n_devices}", *([f"v100-2x{n_devices // 2}"] if n_devices % 2 == 0 else [])]
    cluster, optimizer = rng.choice(clusters), rng.choice(entry.optimizers)
    n_trained = sum(op.is_trainable for op in recorded(name, optimizer).graph.variables)
    possible = [n for n in entry.in_micro_batches if n * n_devices <= entry.most_copies]
    n = rng.choice((1, 1, *possible, *possible) if rng.random() < 0.9 else (2, 3, 4))
    schedule = rng.choice(SCHEDULES if n > 1 and n_trained >= entry.most_stages else OF_OWN_SUBMESHES)
    per_submesh = 1 + (schedule == INTERLEAVED)
    most = min(entry.most_stages, n_trained // per_submesh, n_devices)
    sizes: tuple[int, ...] = (n_devices,)
    if most > 1 and rng.random() < 0.6:
        sizes = _random_sizes(rng, named(cluster), rng.randint(2, most))
    else:
        per_submesh = 1
    kind = rng.choice((RANDOM,) * 6 + (POINT,) + (PLACED,) * (len(sizes) == len(sizes) * per_submesh > 1))
    return Draw(
        seed, kind, name, optimizer, cluster, sizes, len(sizes) * per_submesh, schedule, n,
        prefers=rng.choice(("any", "any", "split", "windows")),
        regathered=rng.choice((0.0, 0.0, 0.3, 0.7)),
        rematerialized=rng.choice((0.0, 0.0, 0.3, 0.8)),
        in_order=rng.random() < 0.5,
    )  # fmt: skip


def _random_sizes(rng: random.Random, hardware: Hardware, n: int) -> tuple[int, ...]:
    """Return random numbers of devices for submeshes, as stages can have them."""
    while True:
        ends = [0, *sorted(rng.sample(range(1, hardware.n_devices), n - 1)), hardware.n_devices]
        sizes = tuple(map(int, np.diff(ends)))
        if all(is_submesh(hardware, block) for block in blocks_of(sizes)):
            return sizes


REFUSALS: tuple[tuple[str, Callable[[Draw], bool]], ...] = (
    (r"can't be taken in \d micro-batches", lambda draw: draw.n > 1 and draw.n not in MODELS[draw.name].in_micro_batches),
)
"""Sentences, and which draws get them: the first that holds."""


def refusal(draw: Draw) -> str | None:
    """Return the sentence that a draw is refused with, as a pattern, or None if it is trained."""
    return next((sentence for sentence, holds in REFUSALS if holds(draw)), None)


def plan_of(draw: Draw) -> Plan:
    """Return the plan of a draw."""
    rng, hardware, model = draw.rng, named(draw.cluster), draw.model
    if draw.kind == POINT:
        return _point(rng, draw, hardware)
    if draw.n_stages == 1:
        return _random_plan(rng, draw, model.model, hardware, draw.n_devices)
    if draw.kind == PLACED:
        return _placed(rng, draw, hardware)
    for _ in range(MOST_DRAWS):
        try:
            return in_stages(rng, draw, random_cuts(model, draw.n_stages, rng.randrange(10**6)))
        except InputError as error:
            _assert_impossible(error)
    raise AssertionError(f"no cut of {MOST_DRAWS} is possible")


def _assert_impossible(error: InputError) -> None:
    if not any(sentence in str(error) for sentence in IMPOSSIBLE):
        raise error


def in_stages(rng: random.Random, draw: Draw, stages: Stages) -> Plan:
    """Return a plan with random strategies in these stages."""
    hardware, blocks = named(draw.cluster), blocks_of(draw.sizes)
    n_submeshes, planned = len(blocks), []
    order = interleaved(rng, stages.n, draw.n, n_submeshes) if n_submeshes < stages.n else None
    for part, last_operator in zip(stages.models, (*stages.cuts, ""), strict=True):
        block = blocks[part.index % n_submeshes]
        (stage,) = _random_plan(rng, draw, part, hardware, block.size).stages
        in_flight = rng.randint(1, draw.n) if order is None else order.in_flight[part.index]
        deferred = rng.randint(0, draw.n) if draw.schedule == ZERO_BUBBLE else 0
        own = tuple(replace(op, is_stand_in=op.name not in draw.model.graph.operators) for op in stage.operators)
        held = {"in_flight": in_flight, "deferred": deferred, "peak_bytes": 0}
        planned.append(replace(stage, devices=block.devices, last_operator=last_operator, operators=own, **held))
    timeline = {**NOTHING_SHOWN, "devices": [list(block.devices) for block in blocks], "tasks": ";" * draw.n}
    return Plan(
        stages=tuple(planned), mesh=hardware.mesh(draw.n_devices), exact=False, option="random",
        schedule=draw.schedule, interleaving=order and order.interleaving, micro_batches=draw.n, time_us=0.0,
        model_digest=draw.model.graph.digest, timeline=timeline,
    )  # fmt: skip


def _random_plan(rng: random.Random, draw: Draw, part: Model, hardware: Hardware, n_devices: int) -> Plan:
    """Return a plan of a model or a stage by a random strategy that its batch and its micro-batches can have."""
    mesh, sliced = hardware.mesh(n_devices), part.in_micro_batches(draw.n)
    model = zoo.Recorded(sliced, "", (), {}, (), None)  # type: ignore[arg-type]
    tries = 0
    while True:
        prefers, within = (PREFERENCES[draw.prefers], None) if tries < MOST_TRIES else (None, part.graph)
        view = random_strategy(model, mesh, rng.randrange(10**6), prefers, draw.regathered, draw.rematerialized, within)
        configs, tries = view.strategy.configs.items(), tries + 1
        if not any(why_invalid(rule_of(part.graph.operators[name]), config) for name, config in configs):
            return as_plan(view, rng.randrange(1000), part, hardware, draw.n)


def _point(rng: random.Random, draw: Draw, hardware: Hardware) -> Plan:
    """Return any point of the frontier, without stages or with so many."""
    model = draw.model.model
    if draw.n_stages == 1:
        found = plans_of(find_frontier(model, hardware, draw.n_devices, micro_batches=draw.n, budget=Budget(seconds=0)))
        return found.plan(rng.randrange(len(found)), "mini_time")
    asked = {"micro_batches": draw.n, "stages": draw.n_stages, "schedule": draw.schedule}
    request = replace(request_of(model, hardware, None, {}, **asked), budget=Budget(seconds=0))
    return find_answer("mini_time", request, draw.n_devices)


def _placed(rng: random.Random, draw: Draw, hardware: Hardware) -> Plan:
    """Return a plan that is searched with an operator of some stages placed."""
    for _ in range(MOST_DRAWS):
        placed = _random_placement(rng, draw)
        force = {name: {"devices": list(block.devices)} for name, block in placed.items()}
        asked = {"micro_batches": draw.n, "stages": draw.n_stages, "schedule": draw.schedule}
        request = replace(request_of(draw.model.model, hardware, None, force, **asked), budget=Budget(seconds=0))
        try:
            plan = find_answer("mini_time", request, draw.n_devices)
        except InputError as error:
            _assert_impossible(error)
            continue
        for operator, block in placed.items():
            (stage,) = (each for each in plan.stages if operator in {op.name for op in each.operators})
            assert stage.devices == block.devices
        return plan
    raise AssertionError(f"no placement of {MOST_DRAWS} is possible")


def _random_placement(rng: random.Random, draw: Draw) -> dict[str, Block]:
    """Return the devices of one operator that uses a trained variable, of each of some stages."""
    graph = draw.model.graph
    stages, placed = random_cuts(draw.model, draw.n_stages, rng.randrange(10**6)), {}
    trained = [op for op in graph.variables if op.is_trainable]
    for number in rng.sample(range(stages.n), rng.randint(1, stages.n)):
        members = stages.members[number]
        used = [op.name for each in trained if each.name in members for op in graph.consumers[each.result.name]]
        placed[rng.choice([name for name in used if name in members])] = blocks_of(draw.sizes)[number]
    return placed
