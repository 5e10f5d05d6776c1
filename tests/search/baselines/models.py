"""Small models of the zoo, recorded once, and their frontiers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import numpy as np
from helpers.searches import find_frontier
from zoo.small import SMALL

from tensoropt import zoo
from tensoropt.ft import Budget, Problem
from tensoropt.profiling.hardware import named
from tensoropt.rules.rule import Config
from tensoropt.search.frontiers.model_frontier import ModelFrontier
from tensoropt.search.problem.strategy_problem import StrategyProblem
from tensoropt.search.task import BaselineTask
from tensoropt.sharding.model import Model
from tensoropt.tools.offline import record


@cache
def model_of(name: str) -> Model:
    return record(lambda: zoo.find(name)(**SMALL[name]), name).model


@cache
def frontier_of(name: str, space: str, cluster: str = "v100-1x4", parallelism: int = 4) -> ModelFrontier:
    # Without what costs exactness; as long as it takes to be exact, on a busy machine too.
    long_enough = Budget(seconds=300.0)
    return find_frontier(model_of(name), named(cluster), parallelism, space=space, budget=long_enough, without=("remat",))


@cache
def baseline_of(name: str, algorithm: str, cluster: str, parallelism: int) -> ModelFrontier:
    return find_frontier(model_of(name), named(cluster), parallelism, algorithm=algorithm, space="compact")


def task_of(frontier: ModelFrontier) -> BaselineTask:
    return BaselineTask(frontier.costing, frontier.mesh, frontier.built.space, frontier.built)


def strategies_of(found: ModelFrontier) -> list[Mapping[str, Config]]:
    return [found.built.strategy(states).configs for states in found.found.strategies]


def with_configs(built: StrategyProblem, configs: Mapping[str, Config]) -> Problem:
    """The problem in which each operator has one config."""
    return built.allowing(lambda op, options: np.array([option == configs[op.name] for option in options])).problem
