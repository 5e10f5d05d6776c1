"""Cost one strategy, given as a config for each operator, with the fastest choice of shared copies."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...ft import Frontier
from ...ft.problem import Problem
from ...ft.weighted.weighted_search import Least, WeightedSearch
from ...rules.rule import Config
from .task import BaselineResult, BaselineTask


def of_one_strategy(task: BaselineTask, configs: Mapping[str, Config], algorithm: str) -> BaselineResult:
    """Return the point of a strategy with the shared copies that take the least time."""
    problem = task.of_strategy(configs)
    fastest = WeightedSearch(problem.problem).least((0, 1))
    return BaselineResult(problem, point_of(problem.problem, fastest, algorithm))


def point_of(problem: Problem, optimum: Least, algorithm: str) -> Frontier:
    """Return the strategy that a weighted search found, as a frontier of one point."""
    assert optimum.strategy is not None, "reshardings are possible between any two configs"
    mem_bytes, time_ns = problem.cost(optimum.strategy.tolist())
    costs = np.array([[mem_bytes], [time_ns]], np.int64)
    return Frontier(costs[0], costs[1], optimum.strategy[None], {}, algorithm)
