"""Multiply two tables and sum a variable out: the one primitive of the search.

``combine(a, b, sum_out=v)`` is a Pareto union of shifted, sorted frontiers:

    result[x, y, z] = reduce( union over states k of v  of  a[x, y, k] (x) b[y, z, k] )

where x are variables of ``a`` alone, y those of both, z those of ``b`` alone, and (x) is the product of frontiers. Without
``sum_out`` there is no union. An *arc* is a pair of cells that agree on the variables that they share; its *target* is the
cell of the result that it contributes to. Arcs are found by a sorted join (no cell, no arc), a block at a time. Compiled
code (:mod:`.numba_kernels`) adds up the points that they contribute (*candidates*), and keeps each target's frontier.

Complexity: O(N log N) for N candidates, N = sum over arcs of |a cell| |b cell|.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..problem import INFEASIBLE, Ints
from .table import States, Table, Trace, codes, expand_ranges, offsets_of, unit_table

PAIRS = 1 << 20
"""Arcs that are looked at together."""


@dataclass(frozen=True, slots=True)
class Points:
    """Candidates or survivors: their target, their costs, and the points of the two tables that they are the sum of."""

    target: Ints
    mem: Ints
    time: Ints
    a_point: Ints
    b_point: Ints

    @staticmethod
    def concatenate(parts: list[Points]) -> Points:
        """Return all points, part after part."""
        if len(parts) == 1:
            return parts[0]
        return Points(*(np.concatenate([getattr(part, name) for part in parts]) for name in Points.__slots__))


def merge(a: Table, b: Table, target: Ints, runs: Ints) -> Points:
    """Return the frontier of each target's candidates, by ascending target, then memory.

    Args:
        target: of each arc, ascending.
        runs: int64[4, arcs], where the points of a's cell start and their number, and the same of b's.
    """
    from .numba_kernels import merge_runs  # here, since loading compiled code takes half a second

    starts = np.flatnonzero(np.diff(target, prepend=-1))
    bounds = np.append(starts, len(target))
    counts, points = merge_runs(bounds, runs, a.mem, a.time, b.mem, b.time, INFEASIBLE)
    return Points(np.repeat(target[starts], counts), *points)


def combine(a: Table, b: Table, sum_out: int | None = None) -> Table:
    """Return the product of two tables, with one variable summed out if it is given (see above).

    The result has no cell where nothing is allowed, so it may have no cell at all.
    """
    scope = tuple(sorted((set(a.scope) | set(b.scope)) - {sum_out}))
    states, counts, survivors, n_cells = [], [], [], 0
    for a_cell, b_cell in _Join.of(a, b, sum_out).blocks():
        block_states, *arcs = _targets(a, b, scope, a_cell, b_cell)
        points = merge(a, b, *arcs)
        targets, reached_counts = np.unique(points.target, return_counts=True)
        states.append(block_states[targets])
        counts.append(reached_counts)
        survivors.append(points)
        n_cells += len(targets)
    if n_cells == 0:
        empty = np.empty(0, np.int64)
        return Table(scope, np.empty((0, len(scope)), np.int32), np.zeros(1, np.int64), empty, empty)
    points = Points.concatenate(survivors)
    offsets = offsets_of(np.concatenate(counts))
    trace = _trace(a, b, points, sum_out)
    slack = a.slack.plus(b.slack)
    n_summed = a.n_summed + b.n_summed + (sum_out is not None)
    return Table(scope, np.concatenate(states), offsets, points.mem, points.time, trace, slack, n_summed)


@dataclass(frozen=True, slots=True)
class _Join:
    """The cells of ``b`` that agree with each cell of ``a``: ``b_order[first : first + count]``."""

    a_order: Ints
    """The cells of ``a``, ordered such that those that differ in the summed-out variable only are together."""
    group_start: Ints
    """The places in ``a_order`` where such a group begins; no two groups have a target in common."""
    b_order: Ints
    first: Ints
    count: Ints

    @classmethod
    def of(cls, a: Table, b: Table, sum_out: int | None) -> _Join:
        """Sort the cells of both tables such that agreeing ones are found by ranges."""
        shared = [variable for variable in a.scope if variable in b.scope]
        columns = [np.concatenate([a.column(variable), b.column(variable)]) for variable in shared]
        key = codes(columns, a.n_cells + b.n_cells)
        a_key, b_key = key[: a.n_cells], key[a.n_cells :]
        b_order = np.argsort(b_key, kind="stable").astype(np.int64, copy=False)
        b_key = b_key[b_order]
        first = np.searchsorted(b_key, a_key, side="left").astype(np.int64, copy=False)
        count = np.searchsorted(b_key, a_key, side="right") - first
        rest = codes([a.column(variable) for variable in a.scope if variable != sum_out], a.n_cells)
        a_order = np.argsort(rest, kind="stable").astype(np.int64, copy=False)
        rest = rest[a_order]
        group_start = np.flatnonzero(np.concatenate([np.ones(min(len(rest), 1), np.bool_), rest[1:] != rest[:-1]]))
        return cls(a_order, group_start.astype(np.int64, copy=False), b_order, first, count)

    def blocks(self) -> Iterator[tuple[Ints, Ints]]:
        """Yield the pairs of agreeing cells, in blocks of complete groups with about PAIRS pairs."""
        ends = np.append(self.group_start[1:], len(self.a_order))
        pairs_before = offsets_of(self.count[self.a_order])
        group = 0
        while group < len(self.group_start):
            begin = self.group_start[group]
            limit = pairs_before[begin] + PAIRS
            after = max(int(np.searchsorted(pairs_before[ends], limit, side="right")), group + 1)
            cells = self.a_order[begin : ends[after - 1]]
            count = self.count[cells]
            yield np.repeat(cells, count), self.b_order[expand_ranges(self.first[cells], count)]
            group = after


def _targets(a: Table, b: Table, scope: tuple[int, ...], a_cell: Ints, b_cell: Ints) -> tuple[States, Ints, Ints]:
    """Return the states of the distinct targets of these pairs of cells, and the arcs to them, see :func:`merge`."""
    columns = [a.column(v)[a_cell] if v in a.scope else b.column(v)[b_cell] for v in scope]
    code = codes(columns, len(a_cell))
    order = np.argsort(code, kind="stable")
    code = code[order]
    is_new = np.ones(len(code), np.bool_)
    is_new[1:] = code[1:] != code[:-1]
    target = np.cumsum(is_new, dtype=np.int64) - 1
    representative = order[is_new]
    states = np.empty((len(representative), len(scope)), np.int32)
    for index, column in enumerate(columns):
        states[:, index] = column[representative]
    a_cell, b_cell = a_cell[order], b_cell[order]
    a_count, b_count = np.diff(a.offsets), np.diff(b.offsets)
    return states, target, np.stack([a.offsets[a_cell], a_count[a_cell], b.offsets[b_cell], b_count[b_cell]])


def _trace(a: Table, b: Table, points: Points, sum_out: int | None) -> Trace | None:
    """Return the back-pointers of points that are sums of points of two tables; None where there is nothing to unroll."""
    parents = [
        (table.trace, point.astype(np.int32))
        for table, point in ((a, points.a_point), (b, points.b_point))
        if table.trace is not None
    ]
    if sum_out is None:
        return Trace(tuple(parents)) if parents else None
    table, point = (a, points.a_point) if sum_out in a.scope else (b, points.b_point)
    return Trace(tuple(parents), sum_out, table.column(sum_out)[table.cell_of_point[point]])


def merge_states(table: Table, variable: int, representative: Ints) -> Table:
    """Return the table with each class of a variable's states merged into its representative.

    A representative's cell is the union of the cells of its class. The trace remembers the state that each point really has.

    Args:
        representative: for each state the state that stands for its class.
    """
    column = table.scope.index(variable)
    states = table.states.copy()
    states[:, column] = representative[states[:, column]]
    renamed = Table(table.scope, states, table.offsets, table.mem, table.time)
    cells = np.arange(table.n_cells, dtype=np.int64)
    unit = unit_table()
    target_states, *arcs = _targets(renamed, unit, table.scope, cells, np.zeros_like(cells))
    points = merge(renamed, unit, *arcs)
    offsets = offsets_of(np.bincount(points.target, minlength=len(target_states)))
    trace = _trace(table, unit, points, variable)
    return Table(table.scope, target_states, offsets, points.mem, points.time, trace, table.slack, table.n_summed)
