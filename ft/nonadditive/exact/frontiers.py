"""Eliminate a problem's variables with frontiers of points whose memory is the largest of several sums.

A strategy's memory is the largest, over the segments b, of

    U_b(S) = saved(S) + transient_b(S)

and each U_b is additive, as time is. So a part of a strategy is a point of several costs: its time, and its U_b. Of two
points of one cell, the one that is nowhere better is dropped: whatever the rest of the strategy is, it adds the same to
both. That makes the frontier exact. Three things keep points few:

- A segment of which nothing is in the part has U_b = saved, the same cost for all such segments.
- Once all variables of a segment are in the part it is *complete*: nothing will be added but saved memory. Of all complete
  segments only the largest matters.
- A point that no strategy below a corner can have (:mod:`.bounds`) is dropped.

Complexity: O(candidates) and what :mod:`.dominance` takes, a candidate being a pair of points of the two cells of an arc.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...problem import INFEASIBLE, Ints
from ...tables.backtrack import unroll
from ...tables.table import NO_SLACK, Slack, Trace, expand_ranges, offsets_of
from ...weighted.lagrangian import Found
from .bounds import Corners, Floats
from .dominance import minimal_points
from .eliminations import FIRST, MEM, TIME, Eliminations, Step

BLOCK = 1 << 18
"""Candidates that are looked at together."""
FEW = 64
"""Points of a table from which it pays to look whether they are promising."""
SAMPLED = 16
"""One point of so many is a sample. Where more than the share WORTH of the samples is promising, all points are kept."""
WORTH = 0.8
LONG = 16
"""Points of a cell, on average, from which they are thinned."""
AT_ONCE = 5
"""Rows of weights that are looked at before points that aren't promising are left out."""
_COMPLETE = -1
"""The row of costs that has the largest memory of the complete segments."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How much may be looked at: arcs of all steps, candidates in all, and a deadline by ``time.monotonic``."""

    max_arcs: int
    max_candidates: float
    deadline: float = math.inf


class TooMuchError(Exception):
    """Raised where more would have to be looked at than may be."""


@dataclass(frozen=True, slots=True, eq=False)
class _Points:
    """The points of a table's cells.

    Attributes:
        cell: int64[P], ascending.
        costs: int64[FIRST + segments + 1, P]; the rows of complete segments are 0.
        begun, complete: the segments whose memory is in a row of its own, and in the last row.
        has_others: whether there are other segments, of which nothing is in the table.
        trace: the points' back-pointers; None for a table of the problem.
        slack: how much worse the points may be than all that the cells would have had, had none been thinned.
        n_summed: the number of variables that were summed out of the table and of those that it was made of.
    """

    cell: Ints
    costs: Ints
    begun: frozenset[int]
    complete: frozenset[int]
    has_others: bool = True
    trace: Trace | None = None
    slack: Slack = NO_SLACK
    n_summed: int = 0

    def take(self, which: Ints) -> _Points:
        """Return some of the points, without a trace."""
        return replace(self, cell=self.cell[which], costs=self.costs[:, which], trace=None)

    def allowed(self) -> Ints:
        """Return the indices of the points whose memory and time are feasible."""
        mem = self.costs[MEM] + self.costs[FIRST:].max(axis=0)
        return np.flatnonzero(np.maximum(mem, self.costs[TIME]) < INFEASIBLE)

    def minimal(self, tolerance: Slack = NO_SLACK) -> Ints:
        """Return the indices of the points that stay, by ascending cell.

        Args:
            tolerance: what goes may be this much better than what stays: costs count in multiples of one more than this.
        """
        saved = self.costs[MEM]
        keys = [self.costs[TIME], *(saved + self.costs[FIRST + segment] for segment in sorted(self.begun))]
        keys += [saved + self.costs[_COMPLETE]] if self.complete else []
        keys += [saved] if self.has_others or len(keys) == 1 else []
        costs = np.stack(keys)
        if any(tolerance):
            costs[0] //= tolerance.time_ns + 1
            costs[1:] //= tolerance.mem_bytes + 1
        return minimal_points(self.cell, costs)

    def completed(self, segments: frozenset[int]) -> _Points:
        """Return the points with some of the begun segments complete."""
        if not segments:
            return self
        rows = [FIRST + segment for segment in sorted(segments)]
        costs = self.costs.copy()
        costs[_COMPLETE] = np.maximum(costs[_COMPLETE], costs[rows].max(axis=0))
        costs[rows] = 0
        return replace(self, costs=costs, begun=self.begun - segments, complete=self.complete | segments)


class Bounding:
    """Tells which points a strategy below a corner may have.

    Args:
        weights, beyond: as in :mod:`.bounds`.
    """

    def __init__(self, weights: Floats, beyond: Sequence[Floats], corners: Corners) -> None:
        self.weights, self.beyond = weights, beyond
        self.tests = corners.tests(weights)

    def pays(self, table: int, points: _Points) -> bool:
        """Return whether it pays to look which of many points are promising, judged by some of them."""
        some = np.arange(0, len(points.cell), SAMPLED)
        return len(some) >= FEW and len(self.promising(table, points.take(some))) < WORTH * len(some)

    def promising(self, table: int, points: _Points) -> Ints:
        """Return the indices of the points of a table that a strategy below a corner may have.

        Of memory's weight, what the segments don't have goes to the largest of the point's segments, which the strategy's
        largest is not below.
        """
        left = np.arange(len(points.cell))
        if len(left) < FEW:
            return left
        begun, complete = ([FIRST + segment for segment in sorted(those)] for those in (points.begun, points.complete))
        weights, rows = self.weights, [MEM, TIME, *begun]
        rest = np.maximum(weights[:, MEM] - weights[:, FIRST:].sum(axis=1), 0.0)
        of_rows = np.column_stack([weights[:, rows], weights[:, complete].sum(axis=1), rest])
        costs = np.concatenate([points.costs[[*rows, _COMPLETE]], points.costs[FIRST:].max(axis=0)[None]]).astype(np.float64)
        bits = None
        for first in range(0, len(weights), AT_ONCE):
            least = of_rows[first : first + AT_ONCE] @ costs[:, left]
            least += self.beyond[table][first : first + AT_ONCE, points.cell[left]]
            for test, row in zip(self.tests[first : first + AT_ONCE], least, strict=True):
                bits = test.bits(row) if bits is None else bits & test.bits(row)
            assert bits is not None
            stays = bits.any(axis=1)
            left, bits = left[stays], bits[stays]
        return left


def frontier_points(
    eliminations: Eliminations, bounding: Bounding, effort: Effort, allowed: Slack = NO_SLACK
) -> tuple[Found, Slack]:
    """Return the Pareto-minimal strategies below a corner, of which there may be none, and their slack.

    Args:
        allowed: the slack that the strategies may have.

    Raises:
        TooMuchError: it would take more than ``effort`` allows.
    """
    n_candidates = 0
    given = (_given(eliminations, number) for number in range(len(eliminations.scopes)))
    waiting = {number: points for number, points in enumerate(given) if points is not None}
    for step in eliminations.steps:
        a, b = waiting.pop(step.a), waiting.pop(step.b)
        begun = a.begun | b.begun
        elsewhere = frozenset[int]().union(*(points.begun for points in waiting.values()))
        has_others = bool(elsewhere - begun) or any(points.complete for points in waiting.values())
        parts = []
        for a_point, b_point, cell in _candidates(step, a, b):
            n_candidates += len(cell)
            if n_candidates > effort.max_candidates or time.monotonic() > effort.deadline:
                raise TooMuchError
            costs = a.costs[:, a_point] + b.costs[:, b_point]
            costs[_COMPLETE] = np.maximum(a.costs[_COMPLETE, a_point], b.costs[_COMPLETE, b_point])
            points = _Points(cell, costs, begun, a.complete | b.complete, has_others).completed(begun - elsewhere)
            kept = points.allowed()
            if bounding.pays(step.result, points):
                kept = kept[bounding.promising(step.result, points.take(kept))]
            kept = kept[points.take(kept).minimal()]
            kept = kept[bounding.promising(step.result, points.take(kept))]
            parts.append((points.take(kept), a_point[kept], b_point[kept]))
        result = _joined(eliminations, step, (a, b), parts)
        result = _thinned(result, allowed, result.n_summed / eliminations.n_variables)
        waiting[step.result] = result
    mem, time_ns = result.costs[MEM] + result.costs[_COMPLETE], result.costs[TIME]
    strategies = unroll(result.trace, len(mem), eliminations.n_variables, {})
    return Found.of(mem, time_ns, strategies), result.slack


def _thinned(points: _Points, allowed: Slack, share: float) -> _Points:
    """Return the points of a table, thinned where that pays, by its share of what is allowed and not spent yet."""
    if len(points.cell) < LONG * (int(points.cell[-1]) + 1 if len(points.cell) else 1):
        return points
    tolerance = Slack(*(max(int(of * share) - spent, 0) for of, spent in zip(allowed, points.slack, strict=True)))
    kept = points.minimal(tolerance) if any(tolerance) else np.arange(len(points.cell))
    if len(kept) > WORTH * len(points.cell):
        return points
    kept.sort()
    trace = None if points.trace is None else Trace(((points.trace, kept.astype(np.int32)),))
    return replace(points.take(kept), trace=trace, slack=points.slack.plus(tolerance))


def _given(eliminations: Eliminations, number: int) -> _Points | None:
    """Return a table of the problem as points, one in each cell; None for the result of a step."""
    given = eliminations.costs[number]
    if given is None:
        return None
    costs = np.concatenate([given, np.zeros((1, given.shape[1]), np.int64)])
    begun = frozenset(np.flatnonzero(given[FIRST:].any(axis=1)).tolist())
    return _Points(np.arange(given.shape[1]), costs, begun, frozenset())


def _candidates(step: Step, a: _Points, b: _Points) -> Iterator[tuple[Ints, Ints, Ints]]:
    """Yield the pairs of points of each arc, with their target cells, in blocks of complete cells of about BLOCK pairs."""
    n_cells = [int(cells.max()) + 1 for cells in (step.a_cell, step.b_cell)]
    offsets = [offsets_of(np.bincount(points.cell, minlength=n)) for points, n in zip((a, b), n_cells, strict=True)]
    a_count, b_count = (np.diff(each)[cells] for each, cells in zip(offsets, (step.a_cell, step.b_cell), strict=True))
    pairs_before = offsets_of(a_count * b_count)
    ends = np.append(np.flatnonzero(np.diff(step.target)) + 1, len(step.target))
    begin = done = 0
    while done < len(ends):
        after = max(int(np.searchsorted(pairs_before[ends], pairs_before[begin] + BLOCK, side="right")), done + 1)
        arcs = slice(begin, int(ends[after - 1]))
        counts = a_count[arcs] * b_count[arcs]
        arc = np.repeat(np.arange(len(counts)), counts)
        number = expand_ranges(np.zeros_like(counts), counts)
        of_b = b_count[arcs][arc]
        a_point = offsets[0][step.a_cell[arcs]][arc] + number // of_b
        yield a_point, offsets[1][step.b_cell[arcs]][arc] + number % of_b, step.target[arcs][arc]
        begin, done = arcs.stop, after


def _joined(
    eliminations: Eliminations, step: Step, of: tuple[_Points, _Points], parts: list[tuple[_Points, Ints, Ints]]
) -> _Points:
    """Return a step's points, with their back-pointers.

    Args:
        of: the points of both tables.
        parts: some of the result's points each, with the indices of the points of both tables that they are sums of.
    """
    cell = np.concatenate([points.cell for points, _, _ in parts])
    costs = np.concatenate([points.costs for points, _, _ in parts], axis=1)
    of_tables = [np.concatenate([part[which] for part in parts]) for which in (1, 2)]
    parents = tuple(
        (points.trace, index.astype(np.int32))
        for points, index in zip(of, of_tables, strict=True)
        if points.trace is not None
    )
    states = None
    if step.variable is not None:
        side = 0 if step.variable in eliminations.scopes[step.a] else 1
        table = (step.a, step.b)[side]
        column = eliminations.scopes[table].index(step.variable)
        states = eliminations.states[table][of[side].cell[of_tables[side]], column]
    return replace(
        parts[0][0],
        cell=cell,
        costs=costs,
        trace=Trace(parents, step.variable, states),
        slack=of[0].slack.plus(of[1].slack),
        n_summed=of[0].n_summed + of[1].n_summed + (step.variable is not None),
    )
