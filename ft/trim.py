"""Thin the frontiers of a table, with a proven bound (the (1 + epsilon) of approximate Pareto sets).

Costs are cut into intervals [c, c (1 + delta)), first memory, then time; of the points in one interval the one that is best
in the *other* cost is kept. It dominates the others but for a factor of 1 + delta, in memory after the first pass, in time
after the second: so for every point dropped one is kept that is within 1 + delta in both. Both ends of every frontier stay.

A table carries its *slack*: every point that its cells would have had, had nothing ever been dropped, has a point within
1 + slack in both costs. Sums keep that (all costs are at least 0), so the slack of a product or union is the larger one, and
thinning multiplies: 1 + slack' = (1 + slack)(1 + delta). It holds a posteriori, whatever was thinned when.

Complexity: O(P) a pass.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from .problem import Ints
from .table import Table, Trace, offsets_of

_WORTH = 0.75
"""Thinning must leave at most this part of the points, or its error is better spent later."""
_LONG = 24
"""Points of a frontier, on average, from which thinning it saves more than it costs."""
_ROUNDING = 1e-6
"""By this part intervals are shorter than delta, so that rounding does no harm."""
_FIRST_DELTA = 1e-4


@dataclass(frozen=True, slots=True)
class Thinning:
    """When tables are thinned, and by how much.

    Attributes:
        epsilon: what ``delta`` may add up to.
        delta: of one thinning, 0 for none.
        max_points: longer frontiers are thinned whatever that costs.
    """

    epsilon: float
    delta: float
    max_points: int

    @classmethod
    def of(cls, epsilon: float, max_points: int, n_variables: int) -> Thinning:
        """Spread epsilon over about one thinning in eight steps."""
        times = 2 + n_variables // 8
        return cls(epsilon, float(np.expm1(np.log1p(epsilon) / times)), max_points)

    def apply(self, table: Table) -> Table:
        """The table, thinned where that pays."""
        may = self.delta > 0 and (1 + table.slack) * (1 + self.delta) <= 1 + self.epsilon
        if may and table.n_points > _LONG * table.n_cells:
            thinner = _thinned(table, self.delta)
            if thinner.n_points <= _WORTH * table.n_points:
                table = thinner
        delta = _FIRST_DELTA
        while int(np.diff(table.offsets).max(initial=0)) > self.max_points:
            table = _thinned(table, delta, self.max_points)
            delta *= 2
        return table


def _thinned(table: Table, delta: float, longer_than: int = 0) -> Table:
    """The table with frontiers of more than ``longer_than`` points thinned by ``delta``."""
    counts = np.diff(table.offsets)
    fixed = (counts <= longer_than)[table.cell_of_point]
    fixed[table.offsets[:-1]] = True
    fixed[table.offsets[1:] - 1] = True
    kept = np.flatnonzero(fixed | _best_of_interval(table.mem, delta, table.offsets[1:] - 1, at_end=True))
    cell = table.cell_of_point[kept]
    begins = np.flatnonzero(np.diff(cell, prepend=-1))
    again = fixed[kept] | _best_of_interval(table.time[kept], delta, begins, at_end=False)
    kept = kept[again]
    return _with_points(table, kept, (1 + table.slack) * (1 + delta) - 1)


def _best_of_interval(cost: Ints, delta: float, ends: Ints, at_end: bool) -> npt.NDArray[np.bool_]:
    """The last, or the first, point of each run of points in one interval of cost within a cell."""
    width = np.log1p(delta) * (1 - _ROUNDING)
    interval = np.floor(np.log(np.maximum(cost, 1)) / width)
    interval[cost == 0] = -1
    changes = np.ones(len(cost), np.bool_)
    if at_end:
        changes[:-1] = interval[1:] != interval[:-1]
    else:
        changes[1:] = interval[1:] != interval[:-1]
    changes[ends] = True
    return changes


def _with_points(table: Table, kept: Ints, slack: float) -> Table:
    counts = np.bincount(table.cell_of_point[kept], minlength=table.n_cells)
    trace = table.trace and Trace(((table.trace, kept.astype(np.int32)),))
    return replace(
        table, offsets=offsets_of(counts), mem=table.mem[kept], time=table.time[kept], trace=trace, slack=slack
    )
