"""Run Frontier-Tracking once: from a problem to the points that eliminations and LDP give (Algorithm 2).

Within the limits the points are exact. Where an elimination would make too large a table, heuristic elimination keeps the
more promising states. Where frontiers are thinned, the points have slack. :mod:`..search` tries again, bounds and refines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..interning import folds
from ..presolve.separable_edges import split_sum
from ..problem import INFEASIBLE, Ints, Problem, identity
from ..tables.backtrack import unroll
from ..tables.table import Slack, States, Table, dense_table, unit_table
from ..tables.thinning import Thinning
from .solver import Report, Solver
from .table_graph import TableGraph

Part = tuple[Ints, Ints]
"""Memory and time of the states of a scope."""


@dataclass(frozen=True, slots=True, eq=False)
class Tracked:
    """The result of one run.

    Attributes:
        mem, time: int64[P].
        strategies: int32[P, n_nodes].
        counts: eliminations by kind.
        slack: how much worse the points may be than all points of the states that heuristic elimination left.
    """

    mem: Ints
    time: Ints
    strategies: States
    counts: Mapping[str, int]
    slack: Slack

    @property
    def is_complete(self) -> bool:
        """Return whether heuristic elimination left out no state."""
        return not self.counts["heuristic"]


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


def track(problem: Problem, use_ldp: bool, thinning: Thinning, limits: Limits, report: Report) -> Tracked:
    """Solve a problem.

    Raises:
        InfeasibleError: no strategy is allowed.
        TooLargeError: ``max_work`` was reached, or ``max_cells`` in a strict run.
    """
    graph = table_graph(problem, thinning, limits.max_work)
    solution = Solver(use_ldp, limits.max_cells, report, limits.is_strict).solve(graph)
    result = solution.tables[()]
    strategies = unroll(result.trace, result.n_points, len(problem.nodes), solution.fixed)
    return Tracked(result.mem, result.time, strategies, solution.counts, result.slack)


def table_graph(problem: Problem, thinning: Thinning, max_work: float = float("inf")) -> TableGraph:
    """Return the problem as tables (Algorithm 2, line 3).

    Parallel edges are one table. An edge whose costs are sums of a cost of either end is added into the tables of its nodes.
    """
    names, sizes = tuple(node.name for node in problem.nodes), tuple(node.n_states for node in problem.nodes)
    graph = TableGraph(names, sizes, thinning, max_work)
    sums: dict[tuple[int, ...], list[Part]] = {}
    for index, node in enumerate(problem.nodes):
        sums.setdefault((index,), []).append((node.mem_bytes, node.time_ns))
    split: dict[tuple[object, ...], tuple[Ints, Ints] | None] = {}

    def parts_of(edge_costs: Ints) -> tuple[Ints, Ints] | None:
        key = identity(edge_costs)
        if key not in split:
            split[key] = split_sum(edge_costs)
        return split[key]

    for edge in problem.edges:
        costs = edge.mem_bytes, edge.time_ns
        mem, time = map(parts_of, costs)
        if mem is not None and time is not None:
            for variable, *parts in zip((edge.source, edge.target), mem, time, strict=True):
                sums.setdefault((variable,), []).append((parts[0], parts[1]))
            continue
        if edge.source > edge.target:
            costs = edge.mem_bytes.T, edge.time_ns.T
        pair = min(edge.source, edge.target), max(edge.source, edge.target)
        graph.counts["edge"] += pair in sums
        sums.setdefault(pair, []).append(costs)
    graph.add(unit_table())
    tables: dict[tuple[object, ...], Table] = {}
    table_of = {}
    for scope, of_scope in sums.items():
        key = tuple(identity(array) for part in of_scope for array in part) if folds() else scope
        if key in tables:
            graph.repeated.expect(tables[key])
        else:
            tables[key] = dense_table(scope, *_added(of_scope))
        table_of[scope] = tables[key].renamed(scope, None)
    for table in table_of.values():  # all that are alike are known by now
        graph.add(table)
    return graph


def _added(parts: Sequence[Part]) -> Ints:
    """Return the sums of memory and of time; what is not allowed is INFEASIBLE.

    A table with one point per cell is an array, and adding arrays takes far less time than products of tables.
    """
    total = np.minimum(np.stack(parts[0]), INFEASIBLE)
    for part in parts[1:]:
        total = np.minimum(total + np.minimum(np.stack(part), INFEASIBLE), INFEASIBLE)
    return total
