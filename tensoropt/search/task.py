"""Define the task that a baseline is given, and its answer; cost one strategy, as some baselines choose."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from ..costs.operator_costs import OperatorCosting
from ..ft import Frontier, InfeasibleError
from ..ft.problem import Problem
from ..ft.weighted.weighted_search import Least, WeightedSearch
from ..ir.graph import Graph, Operator
from ..reschedule.mesh import Mesh
from ..rules.registry import rule_of
from ..rules.rule import Config, Rule
from .problem.builder import ProblemBuilder
from .problem.config_space import FULL, Assignments
from .problem.fusion_groups import FusionGroup
from .problem.strategy_problem import StrategyProblem

Report = Callable[[str, int, int], None]


@dataclass(frozen=True)
class BaselineTask:
    """A model on a mesh, its costs, and the space within which the frontier is searched.

    Attributes:
        built: the problem of the whole space, if it has been built already.
        progress: called with (phase, done, total); the phases are ``costs`` and ``search``.
    """

    costing: OperatorCosting
    mesh: Mesh
    space: str
    built: StrategyProblem | None = None
    progress: Report | None = None

    @property
    def graph(self) -> Graph:
        return self.costing.graph

    @cached_property
    def operators(self) -> tuple[Operator, ...]:
        """Return the operators that have a config: all of a training step but the updates."""
        return tuple(op for op in self.graph.step_operators if op.updates is None)

    @cached_property
    def rules(self) -> dict[str, Rule]:
        return {op.name: rule_of(op) for op in self.operators}

    def full_problem(self) -> StrategyProblem:
        return self.built or self._build(self.space, None)

    def of_strategy(self, configs: Mapping[str, Config]) -> StrategyProblem:
        """Return the problem with one config for each operator, in which only shared copies are left to choose.

        Its nodes are those of the space, so that a strategy of the space costs what it costs there.
        """
        return self._build(self.space, lambda node: (tuple(configs[op.name] for op in node.operators),))

    def among(self, configs: Mapping[str, tuple[Config, ...]]) -> StrategyProblem:
        """Return the problem with the given configs for each operator, in which every operator is a node of its own."""
        return self._build(FULL, lambda node: tuple((config,) for config in configs[node.operators[0].name]))

    def report(self, n_done: int, total: int) -> None:
        if self.progress is not None:
            self.progress("search", n_done, total)

    def _build(self, space: str, states: Callable[[FusionGroup], Assignments] | None) -> StrategyProblem:
        report = self.progress and partial(self.progress, "costs")
        return ProblemBuilder(self.costing, self.mesh, space, progress=report, states=states).build()


@dataclass(frozen=True)
class BaselineResult:
    """A baseline's answer to a task.

    Attributes:
        built: the problem in whose states the strategies are given.
        found: the baseline's point, or its frontier; it is ``exact`` if it is what the algorithm defines.
        note: a sentence on how the result was obtained; may be empty.
    """

    built: StrategyProblem
    found: Frontier
    note: str = ""


def of_one_strategy(task: BaselineTask, configs: Mapping[str, Config], algorithm: str) -> BaselineResult:
    """Return the point of a strategy with the shared copies that take the least time."""
    problem = task.of_strategy(configs)
    fastest = WeightedSearch(problem.problem).least((0, 1))
    return BaselineResult(problem, point_of(problem.problem, fastest, algorithm))


def point_of(problem: Problem, optimum: Least, algorithm: str) -> Frontier:
    """Return the strategy that a weighted search found, as a frontier of one point."""
    if optimum.strategy is None:
        raise InfeasibleError("its configs in a micro-batch can't be had at the full batch")
    mem_bytes, time_ns = problem.cost(optimum.strategy.tolist())
    costs = np.array([[mem_bytes], [time_ns]], np.int64)
    return Frontier(costs[0], costs[1], optimum.strategy[None], {}, algorithm)
