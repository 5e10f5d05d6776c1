"""Store tables of small frontiers in flat arrays, with back-pointers.

A table has a *scope* (the variables it depends on) and a cell for every combination of their states that is allowed. What is
not allowed has no cell, so an edge that says "the layouts must be equal" takes space for what it allows, not for what it
forbids. A cell holds a frontier: ``mem[offsets[c]:offsets[c + 1]]`` by ascending memory. A node is a table with a scope of
one variable, an edge one of two, and two joined operators (branch elimination) one of three or more.

A point's back-pointers are a :class:`Trace`: the state it gave to an eliminated variable, and its index among the points of
the tables it was made of. :func:`..elimination.tracking.unroll` follows them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..problem import INFEASIBLE, Ints

States = npt.NDArray[np.int32]
_CODE_LIMIT = 1 << 62


class Slack(NamedTuple):
    """A bound on how much worse than the true points the points of a table may be."""

    mem_bytes: int
    time_ns: int

    def plus(self, other: Slack) -> Slack:
        """Return the slack of sums of points that have these slacks."""
        return Slack(self.mem_bytes + other.mem_bytes, self.time_ns + other.time_ns)


NO_SLACK = Slack(0, 0)


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """The back-pointers of a table's points.

    Attributes:
        parents: traces of the tables that the points are sums of, each with every point's index there. A table of the
            problem itself has no trace and is no parent.
        variable: the variable that was eliminated, or None.
        states: int32[P], the state that each point gives to it.
    """

    parents: tuple[tuple[Trace, npt.NDArray[np.int32]], ...]
    variable: int | None = None
    states: States | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """A frontier for each allowed combination of states of the variables in the scope.

    Attributes:
        scope: the variables, ascending.
        states: int32[C, len(scope)], the states of each cell; no two cells have the same.
        offsets: int64[C + 1]; cell c has points ``offsets[c]`` to ``offsets[c + 1]``, at least one.
        mem, time: int64[P], by ascending memory within a cell, below INFEASIBLE.
        trace: the points' back-pointers; None where there is nothing to unroll.
        slack: how much worse than the true points these points may be, see :mod:`.thinning`.
        n_summed: the number of variables that were summed out of it and of the tables that it was made of.
    """

    scope: tuple[int, ...]
    states: States
    offsets: Ints
    mem: Ints
    time: Ints
    trace: Trace | None = None
    slack: Slack = NO_SLACK
    n_summed: int = 0

    @property
    def n_cells(self) -> int:
        return len(self.states)

    @property
    def n_points(self) -> int:
        return len(self.mem)

    @property
    def cell_of_point(self) -> Ints:
        """Return the index of each point's cell: int64[P]."""
        return np.repeat(np.arange(self.n_cells, dtype=np.int64), np.diff(self.offsets))

    def column(self, variable: int) -> States:
        """Return the state of ``variable`` in each cell: int32[C]."""
        return self.states[:, self.scope.index(variable)]

    def renamed(self, scope: tuple[int, ...], trace: Trace | None) -> Table:
        """Return the table of other variables, with other back-pointers."""
        return Table(scope, self.states, self.offsets, self.mem, self.time, trace, self.slack, self.n_summed)

    def take(self, cells: Ints, scope: tuple[int, ...], states: States) -> Table:
        """Return a table of some of the cells.

        Args:
            cells: the indices of the cells; any may occur repeatedly.
            scope, states: the scope of the result and the states of its cells.
        """
        counts = np.diff(self.offsets)[cells]
        points = expand_ranges(self.offsets[cells], counts)
        trace = self.trace and Trace(((self.trace, points.astype(np.int32)),))
        mem, time = self.mem[points], self.time[points]
        return Table(scope, states, offsets_of(counts), mem, time, trace, self.slack, self.n_summed)


def unit_table() -> Table:
    """Return the neutral element of the product: a table with an empty scope and no costs."""
    zero = np.zeros(1, np.int64)
    return Table((), np.zeros((1, 0), np.int32), np.array([0, 1], np.int64), zero, zero)


def dense_table(scope: tuple[int, ...], mem: Ints, time: Ints) -> Table:
    """Return a table with one point per allowed cell, from arrays with one dimension per variable."""
    is_allowed = (mem < INFEASIBLE) & (time < INFEASIBLE)
    states = np.argwhere(is_allowed).astype(np.int32)
    return Table(scope, states, np.arange(len(states) + 1, dtype=np.int64), mem[is_allowed], time[is_allowed])


def offsets_of(counts: Ints) -> Ints:
    """Return where each range begins and where the last one ends, given the ranges' lengths."""
    offsets = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets


def expand_ranges(starts: Ints, counts: Ints) -> Ints:
    """Return ``starts[i], starts[i] + 1, ...``, ``counts[i]`` of them, for each i, as one array."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    return np.repeat(starts - (ends - counts), counts) + np.arange(total, dtype=np.int64)


def codes(columns: Sequence[npt.NDArray[np.integer]], n_rows: int) -> Ints:
    """Return one integer per row, equal exactly where the rows are, and ordered as they are.

    It is a mixed radix number; where that exceeds 62 bits, the number so far is replaced by its rank.
    """
    code = np.zeros(n_rows, np.int64)
    radix = 1
    for column in columns:
        size = int(column.max(initial=0)) + 1
        if radix * size >= _CODE_LIMIT:
            distinct, code = np.unique(code, return_inverse=True)
            radix = len(distinct)
        code = code * size + column
        radix *= size
    return code
