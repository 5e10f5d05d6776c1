"""What tests of searches by simulated times share: small tasks, and the fastest of all their strategies."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Mapping
from dataclasses import replace
from functools import cache

from zoo.small import SMALL

from tensoropt import zoo
from tensoropt.costs.operator_costs import costing_of
from tensoropt.ft.problem import INFEASIBLE
from tensoropt.profiling.hardware import Hardware, named
from tensoropt.program.simulator import StepActions, network_of
from tensoropt.search.flexflow import monte_carlo
from tensoropt.search.flexflow.monte_carlo import MonteCarloResult, SearchLimits
from tensoropt.search.flexflow.simulated_position import Neighbours, Position
from tensoropt.search.problem.builder import ProblemBuilder
from tensoropt.search.problem.config_space import COMPACT, Assignments, states_of
from tensoropt.search.problem.fusion_groups import FusionGroup
from tensoropt.search.problem.strategy_problem import StrategyProblem
from tensoropt.search.task import BaselineTask
from tensoropt.sharding.model import Model
from tensoropt.sharding.resharding import PathFinder
from tensoropt.tools.offline import record

SIZES = {"lenet5": SMALL["lenet5"], "rnnlm": {**SMALL["rnnlm"], "steps": 2}}
LONG = 1000.0
MOST = 1500
"""Strategies that are enumerated by ``make test``; ``--all`` has up to MOST_LARGE."""
MOST_LARGE = 20_000


@cache
def model_of(name: str) -> Model:
    return record(lambda: zoo.find(name)(**SIZES[name]), name).model


@cache
def walked_lenet5(cluster: str) -> MonteCarloResult:
    """What FlexFlow's search finds for all of lenet5, which several tests ask for."""
    hardware = named(cluster)
    return monte_carlo.search(task_of("lenet5", hardware), network_of(hardware, hardware.mesh()), SearchLimits(LONG))


def task_of(name: str, hardware: Hardware, seed: int | None = None, most: int = MOST) -> BaselineTask:
    """The model's task in the compact space; with a seed, of few random states of each node, at most so many strategies."""
    model, mesh = model_of(name), hardware.mesh()
    costing = costing_of(model, hardware, mesh)
    task = BaselineTask(costing, mesh, COMPACT)
    if seed is None:
        return task
    possible: dict[str, Assignments] = {}

    def build(chosen: Mapping[str, Assignments]) -> StrategyProblem:
        def few(node: FusionGroup) -> Assignments:
            key = node.operators[0].name
            if key not in possible:
                possible[key] = states_of(COMPACT, node, task.rules, mesh)
            return chosen.get(key, possible[key][:1])

        return ProblemBuilder(costing, mesh, COMPACT, states=few).build()

    build({})  # which tells what states there are
    rng = random.Random(seed)
    while True:
        chosen = {key: tuple(rng.sample(every, min(len(every), rng.choice([1, 2, 3])))) for key, every in possible.items()}
        if math.prod(map(len, chosen.values())) <= most:  # shared copies multiply that
            built = build(chosen)
            if most / 20 <= math.prod(node.n_states for node in built.problem.nodes) <= most:
                return replace(task, built=built)


def enumerated_ns(task: BaselineTask, hardware: Hardware) -> int:
    """The least simulated time of all strategies of a task."""
    problem = Neighbours(task.full_problem())
    nodes = problem.built.problem.nodes
    actions = StepActions(task.costing, PathFinder(task.costing.reshardings.steps))
    start = problem.with_copies([0] * len(nodes))
    position = Position.of(problem, task, actions, network_of(hardware, task.mesh), start)
    best = position.cost_ns
    for states in itertools.product(*(range(node.n_states) for node in nodes)):
        changes = {node: state for node, state in enumerate(states) if state != position.states[node]}
        if max(problem.built.problem.cost(states)) < INFEASIBLE:
            best = min(best, position.tried(changes))
            position.keep(0)
    return best
