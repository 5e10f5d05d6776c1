"""Bound the frontier by weighted sums whose weights are chosen for one corner after the other.

A corner lies between two known strategies (:mod:`.relaxations`), and all strategies cost more than corner (m, t) if for some
weights

    a saved + sum over segments of w transient + b time  >  a m + b t,    w >= 0, w adding up to at most a

for each strategy. What is best there is a linear program: weights that make the least of the left side, divided by the right
one, as large as possible. Each strategy is a row of it, and there are too many. So it is solved with the strategies that are
known; for its weights, a weighted search finds the strategy with the least left side, which is a row more; and so on, until
the search finds nothing below what the program promised ("column generation"). The weights of each search are a bound of all
strategies, which may exclude many other corners.

A line takes a weighted search of a problem (:mod:`..weighted`), where a relaxation takes a whole search: this is for larger
problems, where a search isn't exact.

Of the corners that no bound excludes, the one that is farthest from it goes first. Where the frontier bulges inwards no
weights exclude a corner; it isn't looked at again.

Complexity: a weighted search and a linear program of few columns for each bound.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ..interning import interned
from ..lower_bound import LowerBound
from ..problem import INFEASIBLE, Floats, Ints, Problem
from ..tables.table import States
from ..weighted.lagrangian import Found, Line, staircase
from ..weighted.weighted_search import TimeIsUpError, WeightedSearch
from .matrix_game import best_parts
from .segment_memory import Transient, summed

MEM, TIME, FIRST = 0, 1, 2
"""Rows of costs: saved memory, time, and from FIRST on each segment's memory."""
ROUNDING = 1e-11
"""The largest relative error of sums of some thousand numbers of float64 that aren't negative."""
MOST_CELLS = 1 << 16
"""The most cells of a table in a weighted search."""
MOST_LINES = 96
"""The most weighted searches; rarely as many are needed."""
ROUNDS = 8
"""The most weighted searches for one corner."""
NEAR = 2e-4
"""How near to what the linear program promises a bound must come to be good enough, as a part of the corner's costs."""
ROWS = 64
"""Strategies that a linear program has: those nearest to its corner, and as many of the newest."""
_SCALE = 2.0**58
"""The largest number of a line, as integers, is about this."""

Weighted = Callable[[Floats], tuple[float, States]]
"""For weights of the rows of costs, float64[FIRST + segments]: what no strategy is below, and strategies near to it."""
Rows = Callable[[States], Ints]
"""The costs of strategies by row, int64[FIRST + segments, P]."""


@dataclass(eq=False)
class Lines:
    """Bounds of all strategies of a problem, and the strategies that were found with them.

    Attributes:
        rows_of: returns strategies' costs.
        found: the strategies that are known, at least one.
        gap: how near to the bound they are to be.
        weights: float64[L, FIRST + segments], of each bound.
        least: float64[L], what no strategy's weighted cost is below.
    """

    weighted: Weighted
    rows_of: Rows
    found: Found
    gap: float
    weights: Floats = field(init=False)
    least: Floats = field(init=False)
    _costs: Floats = field(init=False)  # of all strategies that are known: saved memory, segments' memory, time
    _tried: list[tuple[float, float]] = field(init=False)

    def __post_init__(self) -> None:
        self._costs = _with_segments(self.rows_of(self.found.strategies))
        self.weights, self.least, self._tried = np.zeros((0, len(self._costs))), np.zeros(0), []

    def search(self, deadline: float) -> None:
        """Add bounds until every corner is excluded or was tried, or a deadline by ``time.monotonic`` is over."""
        while len(self.least) < MOST_LINES and time.monotonic() < deadline:
            mem, time_ns = self.corners()
            shares = self.reached(mem, time_ns)
            shares[self._is_tried(mem, time_ns)] = np.inf
            corner = int(shares.argmin())
            if shares[corner] > 1:
                break
            self._tried.append((float(mem[corner]), float(time_ns[corner])))
            self.exclude(*self._tried[-1])

    @property
    def bound(self) -> LowerBound:
        """Return the lower bound that all of them prove."""
        lines = []
        for weights, least in zip(self.weights, self.least, strict=True):
            if least > 0:
                scale = _SCALE / max(float(least), *weights[[MEM, TIME]].tolist())
                mem, time_ns = (math.ceil(float(weights[row]) * scale) for row in (MEM, TIME))
                lines.append(Line(mem, time_ns, math.floor(float(least) * scale)))
        corners = staircase(lines)
        return LowerBound(corners.mem_bytes, corners.time_ns, "weighted sums by segment")

    def corners(self) -> tuple[Floats, Floats]:
        """Return the corners between what is within the gap of known strategies, both ends included: float64[C] each."""
        mem, time_ns = self.found.scaled_costs(self.gap)
        return np.append(mem - 1.0, np.inf), np.insert(time_ns - 1.0, 0, np.inf)

    def reached(self, mem: Floats, time_ns: Floats) -> Floats:
        """Return for each corner the largest part of its weighted cost that a bound comes to: above 1 excludes it."""
        shares = np.zeros(len(mem))
        for weights, least in zip(self.weights, self.least, strict=True):
            parts = ((weights[row], costs) for row, costs in ((MEM, mem), (TIME, time_ns)) if weights[row] > 0)
            limit = sum((weight * costs for weight, costs in parts), np.zeros(len(mem)))
            np.maximum(shares, least / np.maximum(limit, 1e-300), out=shares)
        return shares

    def _is_tried(self, mem: Floats, time_ns: Floats) -> npt.NDArray[np.bool_]:
        """Return which corners are as near to one that was tried as half of the gap."""
        near = np.zeros(len(mem), np.bool_)
        for corner in self._tried:
            is_near = np.ones(len(mem), np.bool_)
            for costs, cost in zip((mem, time_ns), corner, strict=True):
                is_near &= (costs == cost) | (np.maximum(costs, cost) <= np.minimum(costs, cost) * (1 + self.gap / 2))
            near |= is_near
        return near

    def exclude(self, mem: float, time_ns: float) -> None:
        """Add bounds for a corner until one excludes it, or none can."""
        # What memories and the time are divided by for the corner to have 1 of each: 0 for what is infinite.
        inverse = np.append(np.full(len(self._costs) - 1, 1 / max(mem, 1.0)), 1 / max(time_ns, 1.0))
        n_strategies = self._costs.shape[1]
        for _ in range(ROUNDS):
            parts, best = self._best_parts(inverse, n_strategies)
            scaled = parts * inverse
            weights = np.array([scaled[:-1].sum(), scaled[-1], *scaled[1:-1]])  # by which the corner costs 1
            if not weights.any():
                break  # a corner without a limit on what costs anything
            least, strategies = self.weighted(weights)
            self.weights, self.least = np.vstack([self.weights, weights]), np.append(self.least, least)
            self.add(strategies)
            if least > 1 or best - least < NEAR:
                break

    def add(self, strategies: States) -> None:
        """Add strategies to those that are known."""
        rows = self.rows_of(strategies)
        self._costs = np.concatenate([self._costs, _with_segments(rows)], axis=1)
        mem, time_ns = rows[MEM] + rows[FIRST:].max(axis=0), rows[TIME]
        is_feasible = np.maximum(mem, time_ns) < INFEASIBLE
        self.found = self.found.with_others(Found.of(mem[is_feasible], time_ns[is_feasible], strategies[is_feasible]))

    def _best_parts(self, inverse: Floats, n_strategies: int) -> tuple[Floats, float]:
        """Return the parts of rows of costs, adding up to 1, for which the least of known strategies is largest, and it."""
        costs = self._costs * inverse[:, None]
        nearest = np.argsort(costs.max(axis=0), kind="stable")[:ROWS]
        newest = np.arange(max(n_strategies - ROWS, 0), costs.shape[1])
        return best_parts(costs[:, np.union1d(nearest, newest)])


def lines_within(problem: Problem, transient: Transient, points: Found, gap: float, deadline: float) -> Lines:
    """Return what weighted searches of a problem find and prove while there is time.

    Args:
        transient: the memory of its segments, none of it negative.
        points: strategies at their true memory, at least one.
        gap: how near to the bound they are to be.
        deadline: by ``time.monotonic``.
    """

    def rows_of(strategies: States) -> Ints:
        return np.concatenate([summed(problem, strategies), transient.by_segment(problem, strategies)])

    def weighted(weights: Floats) -> tuple[float, States]:
        (mem, time_ns), of_segments = weights[:FIRST].tolist(), weights[FIRST:]
        whole = interned(transient.weighted(problem, of_segments / mem if mem else np.zeros_like(of_segments)))
        search = WeightedSearch(whole, MOST_CELLS, deadline)
        integers = search.integer_weights(mem, time_ns)
        results = search.tightened(integers, near=NEAR)
        scale = min(weight / integer for weight, integer in zip((mem, time_ns), integers, strict=True) if integer)
        strategies = [result.strategy for result in results if result.strategy is not None]
        return results[-1].bound * scale * (1 - ROUNDING), np.array(strategies, np.int32).reshape(-1, len(problem.nodes))

    lines = Lines(weighted, rows_of, points, gap)
    with contextlib.suppress(TimeIsUpError):
        lines.search(deadline)
    return lines


def _with_segments(rows: Ints) -> Floats:
    """Return strategies' saved memory, with each segment's on top, and time: float64[FIRST + segments, P]."""
    return np.concatenate([rows[MEM : MEM + 1], rows[MEM] + rows[FIRST:], rows[TIME : TIME + 1]]).astype(np.float64)
