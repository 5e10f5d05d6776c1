"""Define the task that a baseline is given, its answer, and what it can't be asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from ...common.errors import InputError
from ...costs.objectives import MEMORY_TIME, Objectives
from ...costs.operator_costs import OperatorCosting
from ...ft import ALGORITHMS, Frontier
from ...ir.graph import Graph, Operator
from ...reschedule.mesh import Mesh
from ...rules.registry import rule_of
from ...rules.rule import Config, Rule
from ..problem.builder import ProblemBuilder
from ..problem.config_space import FULL, Assignments
from ..problem.fusion_groups import FusionGroup
from ..problem.strategy_problem import StrategyProblem

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
        """Return the problem of the whole space."""
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
        """Report the progress of the search."""
        if self.progress is not None:
            self.progress("search", n_done, total)

    def _build(self, space: str, states: Callable[[FusionGroup], Assignments] | None) -> StrategyProblem:
        builder = ProblemBuilder(self.graph, self.costing.backward, self.costing, self.mesh, space, states=states)
        if self.progress is not None:
            report = self.progress
            builder = replace(builder, progress=lambda n_done, total: report("costs", n_done, total))
        return builder.build()


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


def check_arguments(algorithm: str, micro_batches: int, objectives: Objectives, is_forced: bool) -> None:
    """Check that a baseline or another algorithm can follow the arguments of a search.

    Raises:
        InputError: it can't follow one.
    """
    if micro_batches > 1:
        raise InputError(
            f"algorithm '{algorithm}' takes no micro-batches, got micro_batches={micro_batches}; leave them out, or search "
            f"with {ALGORITHMS[0]}"
        )
    if objectives != MEMORY_TIME:
        raise InputError(
            f"algorithm '{algorithm}' has objectives of its own, got {','.join(objectives)}; leave out the objectives, or "
            f"search with {ALGORITHMS[0]}"
        )
    if is_forced:
        raise InputError(
            f"algorithm '{algorithm}' decides by itself what is split; leave out force=, or search with {ALGORITHMS[0]}"
        )
