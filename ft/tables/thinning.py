"""Thin the frontiers of a table, with a proven bound.

Of a frontier a subset is kept such that every point p has a kept point q with

    q.mem <= p.mem + mem tolerance    and    q.time <= p.time + time tolerance

The subset is as small as it can be. From the first point that is not covered, the last one within the memory tolerance is
kept (it has the least time of these). It covers all that follow up to its time minus the time tolerance. Both ends of every
frontier stay.

A table carries its *slack*: every point that its cells would have had, had nothing ever been dropped, has a point that is at
most that much worse, in bytes and in nanoseconds. Costs are sums, so slacks add up where tables are multiplied, a union has
the larger one, and thinning adds its tolerances. The slack holds afterwards, whatever was thinned when. Errors are absolute,
and that makes thinning cheap: a small part of a problem may be off by as much as a large one, and most parts are small.

The total that is allowed is a fraction epsilon / (1 + epsilon) of the least memory and time that any strategy can have, such
that the result is within 1 + epsilon of every strategy in both costs. A table gets its share by the number of variables that
were summed into it. What it doesn't spend, the tables made from it may.

Complexity: O(K log P) for K points kept of P.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..problem import Problem
from .table import Slack, Table, Trace, offsets_of

_WORTH = 0.75
"""The largest share of the points that thinning may leave; if it leaves more, its error is better spent later."""
_LONG = 24
"""Points of a frontier, on average, from which thinning it saves more than it costs."""


@dataclass(frozen=True, slots=True)
class Thinning:
    """The rule by which tables are thinned: when, and by how much.

    Attributes:
        allowed: the total that the slack may add up to.
        n_variables: the number of the problem's variables.
        max_points: longer frontiers are thinned whatever error that causes.
    """

    allowed: Slack
    n_variables: int
    max_points: int

    @classmethod
    def of(cls, problem: Problem, epsilon: float, max_points: int, least: tuple[int, int] | None = None) -> Thinning:
        """Return the rule that keeps the frontier within a factor 1 + epsilon of every strategy, but for ``max_points``.

        Args:
            least: memory and time that every strategy is known to need; None for the sums of the least of all parts.
        """
        parts = [*problem.nodes, *problem.edges] if least is None else []
        sums = (sum(int(getattr(part, name).min()) for part in parts) for name in ("mem_bytes", "time_ns"))
        least_mem, least_time = least or sums
        part = epsilon / (1 + epsilon)  # a fraction of a point's cost, since the bound lies below the point
        return cls(Slack(int(least_mem * part), int(least_time * part)), len(problem.nodes), max_points)

    def available(self, n_summed: int, slack: Slack) -> Slack:
        """Return the slack that a table into which ``n_summed`` variables were summed may still spend."""
        share = min(n_summed / self.n_variables, 1.0)
        return Slack(*(max(int(total * share) - spent, 0) for total, spent in zip(self.allowed, slack, strict=True)))

    def apply(self, table: Table) -> Table:
        """Return the table, thinned where that pays and where frontiers are longer than ``max_points``."""
        tolerance = self.available(table.n_summed, table.slack)
        if max(tolerance) > 0 and table.n_points > _LONG * table.n_cells:
            thinner = thinned(table, tolerance)
            if thinner.n_points <= _WORTH * table.n_points:
                table = thinner
        while (longest := int(np.diff(table.offsets).max(initial=0))) > self.max_points:
            table = thinned(table, _tolerance_for(table, self.max_points * self.max_points // longest), self.max_points)
        return table


def thinned(table: Table, tolerance: Slack, longer_than: int = 2) -> Table:
    """Return the table with its frontiers of more than ``longer_than`` points thinned."""
    from .numba_kernels import mark_cover

    is_long = np.diff(table.offsets) > longer_than
    is_kept = ~np.repeat(is_long, np.diff(table.offsets))
    is_kept[table.offsets[:-1]] = True
    is_kept[table.offsets[1:] - 1] = True
    starts, ends = table.offsets[:-1][is_long], table.offsets[1:][is_long]
    mark_cover(is_kept, starts, ends, table.mem, table.time, *tolerance)
    kept, slack = np.flatnonzero(is_kept), table.slack.plus(tolerance)
    offsets = offsets_of(np.bincount(table.cell_of_point[kept], minlength=table.n_cells))
    trace = table.trace and Trace(((table.trace, kept.astype(np.int32)),))
    return replace(table, offsets=offsets, mem=table.mem[kept], time=table.time[kept], trace=trace, slack=slack)


def _tolerance_for(table: Table, n_points: int) -> Slack:
    """Return tolerances with which no frontier keeps many more than ``n_points`` points."""
    spans = []
    for cost in (table.mem, table.time):
        span = np.abs(cost[table.offsets[1:] - 1] - cost[table.offsets[:-1]])
        spans.append(int(span.max()) // max(n_points, 1) + 1)
    return Slack(*spans)
