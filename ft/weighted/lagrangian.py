"""Bound the frontier from below by weighted searches, and return the strategies that they find.

Whatever the weights, no strategy has  a mem + b time  below the least value v: this is a line that the frontier lies above.
Several lines together are the lower convex hull of the frontier, as far as they go (Lagrangian relaxation: the dual of
"least time within this memory" is the best of these lines). Where the frontier bulges inwards, lines cannot show what lies
between it and its hull.

Weights are chosen where they reveal most. Sorted by slope, every two neighbouring lines meet in a *vertex*, a corner of what
they allow. The vertex with the largest gap (see :mod:`..lower_bound`) to the strategies found is looked at next, by weights
normal to the line through the two strategies that the two lines found, or between the two slopes if that gives no new slope.
With exact searches this is the bisection that finds all corners of the hull, each once (Aneja and Nair, Management Science
25 (1979)).

Lines become a staircase (``staircase``): for ascending memories m_0 < m_1 < .. a point (m_j, T(m_{j+1} - 1)), where T(m) is
the least integer time that all lines allow with memory m. A strategy with memory in [m_j, m_{j+1}) costs at least as much,
as T falls. Memories are so dense that a step is at most STEP of either cost, or a single byte.

Where the searches are inexact, a line takes several rounds (``WeightedSearch.tightened``), which begin with shares between
those that the two neighbouring lines found to be good.

Complexity: a weighted search per line and round; at most twice as many lines as the hull has corners.
"""

from __future__ import annotations

import heapq
import itertools
import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ..lower_bound import LowerBound
from ..pareto import reduce_unsorted
from ..problem import Ints
from .weighted_search import Least, Shares, TimeIsUpError, WeightedSearch, mixed

STEP = 2.0**-11
"""The largest step of the staircase, relative to either cost."""
MAX_STEPS = 1 << 14
_NEAR = 1e-6
"""The default gap below which a vertex is not worth another line."""


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """Real strategies, reduced to the Pareto-minimal ones: by ascending memory and descending time.

    Attributes:
        mem, time: int64[P].
        strategies: int32[P, n_nodes].
    """

    mem: Ints
    time: Ints
    strategies: npt.NDArray[np.int32]

    @classmethod
    def of(cls, mem: Ints, time: Ints, strategies: npt.NDArray[np.int32]) -> Found:
        """Return the Pareto-minimal strategies among points in any order."""
        indices = reduce_unsorted(mem, time)
        return cls(mem[indices], time[indices], strategies[indices])

    def with_others(self, other: Found) -> Found:
        """Return the Pareto-minimal strategies of both."""
        mem, time = np.concatenate([self.mem, other.mem]), np.concatenate([self.time, other.time])
        return Found.of(mem, time, np.concatenate([self.strategies, other.strategies]))

    def scaled_costs(self, epsilon: float) -> tuple[Ints, Ints]:
        """Return the least integer costs, memory and time, that are within 1 + epsilon of the strategies', reduced."""
        if not epsilon:
            return self.mem, self.time
        factor = (1 + epsilon) * (1 - 1e-12)
        mem, time_ns = (np.ceil(cost / factor).astype(np.int64) for cost in (self.mem, self.time))
        indices = reduce_unsorted(mem, time_ns)
        return mem[indices], time_ns[indices]

    def __len__(self) -> int:
        return len(self.mem)


@dataclass(frozen=True, slots=True)
class Line:
    """A lower bound: no strategy has ``mem_weight * mem + time_weight * time < least``; all three are integers."""

    mem_weight: int
    time_weight: int
    least: int

    @property
    def slope(self) -> float:
        """Return the ratio of the weights: 0 with all weight on time, infinity with all weight on memory."""
        return self.mem_weight / self.time_weight if self.time_weight else math.inf

    def vertex(self, other: Line) -> tuple[float, float] | None:
        """Return the memory and time at which two lines meet; None if they are parallel."""
        determinant = self.mem_weight * other.time_weight - other.mem_weight * self.time_weight
        if not determinant:
            return None
        mem = self.least * other.time_weight - other.least * self.time_weight
        time = self.mem_weight * other.least - other.mem_weight * self.least
        return max(mem / determinant, 0.0), max(time / determinant, 0.0)


@dataclass(slots=True)
class Hull:
    """The lines and strategies found so far.

    Attributes:
        lines: by ascending slope; the first bounds time alone, the last memory alone.
        corners: the best point that each line's search found, None if none.
        points: memory and time of all strategies that are known.
        near: how close, relatively, a line must come to a known strategy to be good enough.
    """

    search: WeightedSearch
    lines: list[Line] = field(default_factory=list)
    corners: list[tuple[int, int] | None] = field(default_factory=list)
    results: list[Least] = field(default_factory=list)
    points: list[tuple[int, int]] = field(default_factory=list)
    near: float = STEP

    @property
    def found(self) -> Found:
        """Return the Pareto-minimal strategies found; possibly none."""
        feasible = [result for result in self.results if result.strategy is not None]
        mem, time = (np.array([getattr(r, name) for r in feasible], np.int64) for name in ("mem_bytes", "time_ns"))
        n_nodes = len(self.search.problem.nodes)
        strategies = np.array([r.strategy for r in feasible], np.int32).reshape(len(feasible), n_nodes)
        return Found.of(mem, time, strategies)

    @property
    def bound(self) -> LowerBound:
        return staircase(self.lines)

    def add(self, mem_weight: float, time_weight: float) -> int | None:
        """Search with these weights and add the line.

        Returns:
            The line's index among the lines; None if there is one of this slope already, so that nothing was searched.
        """
        weights = self.search.integer_weights(mem_weight, time_weight)
        slope = Line(*weights, 0).slope
        if any(line.slope == slope for line in self.lines):
            return None
        index = sum(line.slope < slope for line in self.lines)
        upper_bound = min((weights[0] * mem + weights[1] * time for mem, time in self.points), default=math.inf)
        results = self.search.tightened(weights, upper_bound, self.near, self._start(weights, index))
        least = math.ceil(results[-1].bound)
        self.lines.insert(index, Line(*weights, least))
        corners = [(result.mem_bytes, result.time_ns) for result in results if result.strategy is not None]
        self.corners.insert(index, min(corners, key=lambda c: weights[0] * c[0] + weights[1] * c[1], default=None))
        self.points += corners
        self.results += results
        return index

    def _start(self, weights: tuple[int, int], index: int) -> Shares | None:
        """Return the shares of split variables with which to begin a search for a new line at index ``index``.

        They lie between the shares of the two neighbouring lines. With them the bound is at least what these lines prove.
        The result is None if such shares are not known, or not needed because the search is exact.
        """
        if self.search.plan.is_exact or not 0 < index < len(self.lines):
            return None
        low, high = self.lines[index - 1], self.lines[index]
        shares = [self.search.shares.get((line.mem_weight, line.time_weight)) for line in (low, high)]
        if shares[0] is None or shares[1] is None:
            return None
        determinant = high.mem_weight * low.time_weight - low.mem_weight * high.time_weight
        of_low = (high.mem_weight * weights[1] - weights[0] * high.time_weight) / determinant
        of_high = (weights[0] * low.time_weight - low.mem_weight * weights[1]) / determinant
        return mixed(shares[0], shares[1], (of_low, of_high))


def lagrangian(search: WeightedSearch, n_lines: int = 100, points: Found | None = None, gap: float = _NEAR) -> Hull:
    """Return the hull of a problem's frontier, with at most ``n_lines`` lines; fewer if the search's deadline passes.

    Args:
        points: strategies that are known before.
        gap: a vertex that is within this of a known strategy is not looked at.

    Raises:
        InfeasibleError: no strategy is allowed.
        TimeIsUpError: not even the two lines that bound each cost alone were ready.
    """
    hull = Hull(search, near=max(gap / 2, STEP))
    if points is not None:
        hull.points += zip(points.mem.tolist(), points.time.tolist(), strict=True)
    hull.add(0, 1)
    hull.add(1, 0)
    count = itertools.count()  # of equal gaps, the first added goes first
    pending = [(-math.inf, next(count), hull.lines[0], hull.lines[1])]
    try:
        while pending and len(hull.lines) < n_lines:
            _, _, low, high = heapq.heappop(pending)
            vertex = low.vertex(high)
            if vertex is None or _gap(vertex, hull.points) <= gap:
                continue
            index = hull.add(*_between(hull, low, high))
            if index is None:
                continue
            middle = hull.lines[index]
            if middle.mem_weight * vertex[0] + middle.time_weight * vertex[1] >= middle.least * (1 - 1e-12):
                continue  # the new line does not exclude the vertex
            for pair in ((low, middle), (middle, high)):
                corner_of = pair[0].vertex(pair[1])
                if corner_of is not None:
                    heapq.heappush(pending, (-_gap(corner_of, hull.points), next(count), *pair))
    except TimeIsUpError:
        pass
    return hull


def _gap(vertex: tuple[float, float], points: list[tuple[int, int]]) -> float:
    """Return the fraction by which the nearest point is above a vertex, in the worse of both costs."""
    least = [math.ceil(cost * (1 - 1e-12)) for cost in vertex]
    gaps = (max((cost - low) / max(low, 1) for cost, low in zip(p, least, strict=True)) for p in points)
    return min(gaps, default=math.inf)


def _between(hull: Hull, low: Line, high: Line) -> tuple[float, float]:
    """Return weights between those of two neighbouring lines, if possible normal to the line through their corners."""
    indices = [next(k for k, line in enumerate(hull.lines) if line is neighbour) for neighbour in (low, high)]
    left, right = hull.corners[indices[1]], hull.corners[indices[0]]  # less memory; less time
    if left is not None and right is not None and right[0] > left[0] and left[1] > right[1]:
        slope = (left[1] - right[1]) / (right[0] - left[0])
        if low.slope < slope < high.slope:
            return slope, 1.0
    limits = hull.search.most
    least, largest = low.slope or 1e-4 * limits[1] / max(limits[0], 1), min(high.slope, 1e4 * limits[1] / max(limits[0], 1))
    return math.sqrt(least * largest), 1.0


def staircase(lines: list[Line]) -> LowerBound:
    """Return points such that every strategy above all lines costs at least as much, in both costs, as one of them."""
    first = max((-(-line.least // line.mem_weight) for line in lines if not line.time_weight), default=0)
    last_time = max((-(-line.least // line.time_weight) for line in lines if not line.mem_weight), default=0)
    steep = [line for line in lines if line.time_weight]
    sloped = [line for line in steep if line.mem_weight]
    # With at least this memory, the least time is that of the line with all weight on time.
    last = max([first, *(-(-(x.least - x.time_weight * last_time) // x.mem_weight) for x in sloped)])
    mems = {first, last}
    if last - first < MAX_STEPS:
        mems.update(range(first, last + 1))
    else:
        ratio = max(STEP, math.log(last / max(first, 1)) / MAX_STEPS * 2)
        mem = max(first, 1)
        while mem < last:
            mems.add(mem)
            mem += max(int(mem * ratio), 1)
        top = max(int(_least_times(steep, np.array([first]))[0]), last_time, 1)
        ratio = max(STEP, math.log(top / max(last_time, 1)) / MAX_STEPS * 2)
        limit = max(last_time, 1)
        while limit < top:  # the least memory with which the lines allow this time
            mem = max(-(-(x.least - x.time_weight * limit) // x.mem_weight) for x in sloped)
            mems.add(min(max(mem, first), last))
            limit += max(int(limit * ratio), 1)
    steps = np.array(sorted(mems), np.int64)
    times = np.append(np.maximum(_least_times(steep, steps[1:] - 1), last_time), last_time)
    indices = reduce_unsorted(steps, times)
    return LowerBound(steps[indices], times[indices], "Lagrangian")


def _least_times(lines: list[Line], mem: Ints) -> Ints:
    """Return the least integer time, from 0, that all lines allow with each memory."""
    result = np.zeros(len(mem), np.int64)
    for line in lines:
        # Limit the memory to where the line allows any time: then no product exceeds ``least`` by much, and none overflows.
        capped_mem = np.minimum(mem, line.least // line.mem_weight + 1) if line.mem_weight else np.zeros_like(mem)
        np.maximum(result, -((line.mem_weight * capped_mem - line.least) // line.time_weight), out=result)
    return result
