"""Reduce a graph of tables to one table: Algorithm 2 without its first and last steps.

Exact eliminations are done while no table becomes too large. Where one would, a variable is restricted to fewer states
(heuristic elimination); the result is real strategies, an upper bound.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..problem import InfeasibleError
from .ldp import held_variables, linear_dynamic_programming, linear_graphs
from .table_graph import Effort, TableGraph, TooLargeError

Report = Callable[[TableGraph], None]


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one run.

    Attributes:
        max_cells: the most cells of a table that an elimination may make.
        max_work: the most sums of points that may be looked at in all, as estimated.
        is_strict: whether the run ends where ``max_cells`` is reached, instead of going on with heuristic elimination.
    """

    max_cells: int
    max_work: float = float("inf")
    is_strict: bool = False


@dataclass(frozen=True, slots=True)
class Solver:
    """Solves graphs of tables.

    Attributes:
        uses_ldp: whether to keep the linear graph for LDP.
        report: called after each elimination.
    """

    uses_ldp: bool
    limits: Limits
    report: Report

    def solve(self, graph: TableGraph) -> TableGraph:
        """Reduce the graph, which is used up, to one table with an empty scope whose points are real strategies.

        Where an elimination would take too much, the variable with the most states among those concerned keeps the more
        promising half of its states. If no strategy is allowed then, the other half is tried.

        Raises:
            InfeasibleError: no strategy is allowed.
            TooLargeError: exact elimination takes too much, and the solver is strict.
        """
        blocked = self._eliminate_exactly(graph)
        if blocked is None:
            for line in linear_graphs(graph) if self.uses_ldp else ():
                linear_dynamic_programming(graph, line, lambda: self.report(graph))
            return graph
        if self.limits.is_strict:
            raise TooLargeError(f"eliminating {graph.names[blocked.variable]!r} would make {blocked.cells:.0f} cells")
        candidates = (blocked.variable, *graph.neighbours(blocked.variable))
        variable = max(candidates, key=lambda v: (graph.n_states(v), len(graph.neighbours(v)), -v))
        states = graph.states_by_promise(variable)
        if len(states) < 2:
            graph.restrict(variable, states)
            return self.solve(graph)
        half = len(states) // 2
        for part in (states[:half], states[half:]):
            attempt = graph.copy()
            try:
                attempt.counts["heuristic"] += 1
                attempt.restrict(variable, part)
                return self.solve(attempt)
            except InfeasibleError as error:
                failure = error
        raise failure

    def _eliminate_exactly(self, graph: TableGraph) -> Effort | None:
        """Eliminate all variables, or with LDP all that are not marked; return None, or what would take too much."""
        for variable in graph.variables:
            if graph.n_states(variable) == 1:
                graph.settle(variable)
                self.report(graph)
        # A side branch ends in a variable that is no cut vertex, so this goes on until only marked variables are left.
        while free := self._free(graph):
            effort = graph.cheapest(free)
            assert effort is not None
            if effort.cells > self.limits.max_cells:
                return effort
            # Before larger tables are made, look which other variables have become free: a variable is a cut vertex only as
            # long as the branch that it cuts off is there.
            magnitude = effort.magnitude
            while effort is not None and effort.magnitude <= magnitude:
                graph.eliminate(effort.variable)
                free.remove(effort.variable)
                self.report(graph)
                effort = graph.cheapest(free)
        return None

    def _free(self, graph: TableGraph) -> set[int]:
        """Return the variables that may be eliminated now: with LDP those that are neither marked nor cut vertices."""
        return set(graph.variables).difference(held_variables(graph) if self.uses_ldp else ())
