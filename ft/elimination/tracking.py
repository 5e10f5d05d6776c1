"""Run Frontier-Tracking once: from a problem to the points that eliminations and LDP give (Algorithm 2).

Within the limits the points are exact. Where an elimination would make too large a table, heuristic elimination keeps the
more promising states. Where frontiers are thinned, the points have slack. :mod:`..search` tries again, bounds and refines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..problem import INFEASIBLE, Ints, Problem, identity, split_sum
from ..tables.table import Slack, States, Table, Trace, dense_table, unit_table
from ..tables.thinning import Thinning
from ..weighted.lagrangian import Found
from .solver import Limits, Report, Solver
from .table_graph import TableGraph

Part = tuple[Ints, Ints]
"""Memory and time of the states of a scope."""


@dataclass(frozen=True, slots=True, eq=False)
class Tracked(Found):
    """The result of one run.

    Attributes:
        counts: eliminations by kind.
        slack: how much worse the points may be than all points of the states that heuristic elimination left.
    """

    counts: Mapping[str, int]
    slack: Slack


def track(problem: Problem, uses_ldp: bool, thinning: Thinning, limits: Limits, report: Report) -> Tracked:
    """Solve a problem.

    Raises:
        InfeasibleError: no strategy is allowed.
        TooLargeError: ``max_work`` was reached, or ``max_cells`` in a strict run.
    """
    graph = table_graph(problem, thinning, limits.max_work)
    solution = Solver(uses_ldp, limits, report).solve(graph)
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
        key = tuple(identity(array) for part in of_scope for array in part)
        if key in tables:
            graph.repeated.expect(tables[key])
        else:
            tables[key] = dense_table(scope, *_added(of_scope))
        table_of[scope] = tables[key].renamed(scope, None)
    for table in table_of.values():  # all that are alike are known by now
        graph.add(table)
    return graph


def unroll(trace: Trace | None, n_points: int, n_variables: int, fixed: Mapping[int, int]) -> States:
    """Return the state of every variable at every point: int32[n_points, n_variables] (Algorithm 2, lines 13 and 14).

    LDP and eliminations leave the same kind of trace, so that following the traces from the last table back to the problem's
    own tables unrolls both; all points at once, O(points x variables). A variable whose states were first merged into
    classes is met twice: the trace farther down has its real state, and is followed later.

    Args:
        trace: the trace of a table with an empty scope.
        fixed: the states of variables that have the same state at all points.
    """
    strategies = np.full((n_points, n_variables), -1, np.int32)
    for variable, state in fixed.items():
        strategies[:, variable] = state
    pending: list[tuple[Trace, npt.NDArray[np.integer]]] = []
    if trace is not None:
        pending.append((trace, np.arange(n_points)))
    while pending:
        current, points = pending.pop()
        if current.variable is not None and current.states is not None:
            strategies[:, current.variable] = current.states[points]
        pending.extend((parent, index[points]) for parent, index in current.parents)
    if (strategies < 0).any():
        raise AssertionError(f"variables {np.flatnonzero((strategies < 0).any(axis=0))} were never given a state")
    return strategies


def _added(parts: Sequence[Part]) -> Ints:
    """Return the sums of memory and of time; what is not allowed is INFEASIBLE.

    A table with one point per cell is an array, and adding arrays takes far less time than products of tables.
    """
    total = np.minimum(np.stack(parts[0]), INFEASIBLE)
    for part in parts[1:]:
        total = np.minimum(total + np.minimum(np.stack(part), INFEASIBLE), INFEASIBLE)
    return total
