"""Frontier-Tracking itself, once: from a problem to the points that eliminations and LDP give (Algorithm 2).

Within the limits the points are exact. Where an elimination would make too large a table, heuristic elimination keeps the
more promising states; where frontiers are thinned, the points have slack. :mod:`.search` tries again, bounds and refines.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .bound import LowerBound
from .elimination import TableGraph
from .problem import Ints, Problem
from .separable import split_sum
from .solver import Report, Solver
from .table import Slack, States, dense_table, unit_table
from .trim import Thinning
from .unroll import unroll


@dataclass(frozen=True, slots=True, eq=False)
class Tracked:
    """What one solution found.

    Attributes:
        mem, time: int64[P].
        strategies: int32[P, n_nodes].
        counts: eliminations by kind.
        slack: of the points, against all points for the states that heuristic elimination left.
    """

    mem: Ints
    time: Ints
    strategies: States
    counts: Mapping[str, int]
    slack: Slack

    @property
    def is_complete(self) -> bool:
        """Whether no state was left out."""
        return not self.counts["heuristic"]


@dataclass(frozen=True, slots=True)
class Limits:
    """How far one solution may go.

    Attributes:
        max_cells: of a table that an elimination may make.
        max_work: sums that may be looked at in all, as estimated.
        is_strict: whether a limit of cells is an end, instead of a reason for heuristic elimination.
    """

    max_cells: int
    max_work: float = float("inf")
    is_strict: bool = False


def track(problem: Problem, use_ldp: bool, thinning: Thinning, limits: Limits, report: Report) -> Tracked:
    """Solve a problem.

    Raises:
        InfeasibleError: no strategy is allowed.
        TooLargeError: a limit was reached that is an end.
    """
    graph = table_graph(problem, thinning, limits.max_work)
    solved = Solver(use_ldp, limits.max_cells, report, limits.is_strict).solve(graph)
    result = solved.tables[()]
    strategies = unroll(result.trace, result.n_points, len(problem.nodes), solved.fixed)
    return Tracked(result.mem, result.time, strategies, solved.counts, result.slack)


def relaxation(problem: Problem, use_ldp: bool, thinning: Thinning, limits: Limits, report: Report) -> LowerBound:
    """A lower bound: where an elimination would make too large a table, the tables choose a state apart."""
    solver = Solver(use_ldp, limits.max_cells, report)
    result = solver.relax(table_graph(problem, thinning)).tables[()]
    return LowerBound.within(result.mem, result.time, result.slack, "relaxation")


def table_graph(problem: Problem, thinning: Thinning, max_work: float = float("inf")) -> TableGraph:
    """The problem as tables (Algorithm 2, line 3)."""
    names, sizes = tuple(node.name for node in problem.nodes), tuple(node.n_states for node in problem.nodes)
    graph = TableGraph(names, sizes, thinning, max_work)
    graph.add(unit_table())
    for index, node in enumerate(problem.nodes):
        graph.add(dense_table((index,), node.mem_bytes, node.time_ns))
    for edge in problem.edges:
        mem, time, scope = edge.mem_bytes, edge.time_ns, (edge.source, edge.target)
        if edge.source > edge.target:
            mem, time, scope = mem.T, time.T, (edge.target, edge.source)
        split = split_sum(mem), split_sum(time)
        if split[0] is not None and split[1] is not None:
            for variable, part_mem, part_time in zip(scope, split[0], split[1], strict=True):
                graph.add(dense_table((variable,), part_mem, part_time))
        else:
            graph.add(dense_table(scope, mem, time))
    return graph
