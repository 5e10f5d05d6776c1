"""Bound strategies whose memory is the largest of several sums, by searches of sums that are chosen corner by corner.

A strategy S takes  mem(S) = saved(S) + max over segments b of T_b(S)  (:mod:`.segment_memory`). Its *level* is the largest
number of bytes that a single node or edge adds to any T_b, and  mem(S) >= saved(S) + level(S).  Where the states and pairs
above a level v aren't allowed (the problem is *capped* at v), the frontier of saved memory bounds the strategies of level v
and less. Of those between two capped levels u < v, it bounds the memory with the first level above u on top.

The weighted mean of the segments' memory, which the first search charges, leaves a gap wherever two segments take turns in
being the largest one. Levels close it where a segment's memory is mostly that of one tensor, as in small models.

A *corner* lies between two neighbouring known points, divided by 1 + gap: all strategies below it are to be excluded. For
the corner that the bound is farthest from, the capped levels that don't exclude it are split, at the least level by which
the upper part does.

Complexity: O(levels) for the level of a corner; the searches are the caller's.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import reduce

import numpy as np

from ..frontier import Frontier
from ..lower_bound import LowerBound
from ..problem import Ints, Problem
from ..weighted.lagrangian import Found
from .segment_memory import Transient


@dataclass(eq=False)
class Relaxations:
    """Bounds of a problem's strategies, proven by searches of relaxations.

    Attributes:
        problem: the problem; its memory is what is saved.
        transient: the memory of its segments.
        bound: a lower bound of all strategies, by all that was added.
    """

    problem: Problem
    transient: Transient
    bound: LowerBound
    _levels: Ints = field(init=False)
    _of_all: LowerBound = field(init=False)  # without capped levels
    _capped: dict[int, LowerBound | None] = field(init=False, default_factory=dict)  # by level; None without strategies

    def __post_init__(self) -> None:
        arrays = [each for segment in self.transient.segments for each in (*segment.nodes.values(), *segment.edges.values())]
        self._levels = np.unique(np.concatenate([np.zeros(1, np.int64), *(np.unique(each) for each in arrays)]))
        self._of_all = self.bound

    def relaxed(self, level: int) -> Problem:
        """Return the problem capped at a level, given by its index."""
        return self.transient.capped(self.problem, int(self._levels[level]))

    def prove(self, level: int | None, bound: LowerBound | None) -> None:
        """Add what a search proves.

        Args:
            level: the index of the level at which the problem was capped; None for a sum that all strategies are above.
            bound: a bound of its strategies; None if there are none.
        """
        if level is not None:
            self._capped[level] = bound
        elif bound is not None:
            self._of_all = self._of_all.tightened(bound)
        of_levels = [
            replace(found, mem_bytes=found.mem_bytes + self._levels[floor])
            for _, floor, found in self._groups()
            if found is not None
        ]
        self.bound = self._of_all.tightened(reduce(LowerBound.loosened, of_levels)) if of_levels else self._of_all

    def _groups(self) -> list[tuple[int, int, LowerBound | None]]:
        """Return the capped levels, ascending, each with the least level that no lower cap includes, and its bound."""
        caps = sorted(self._capped)
        return [(cap, below + 1, self._capped[cap]) for below, cap in zip([-1, *caps], caps, strict=False)]

    def next(self, best: Frontier, gap: float) -> int | None:
        """Return the index of the level to search next; None if none helps the point that the bound is farthest from.

        Args:
            best: the known points.
            gap: how near to the bound they are to be.
        """
        gaps = self.bound.gaps(best.mem_bytes, best.time_ns)
        worst = int(gaps.argmax())
        if gaps[worst] <= gap:
            return None
        mem, time_ns = Found(best.mem_bytes, best.time_ns, best.strategies).scaled_costs(gap)
        after = int(np.searchsorted(mem, self.bound.mem_bytes[worst], side="right"))
        if after == len(mem):
            return None  # no sum is too small here, but the search of sums isn't exact
        return self._cap(float(mem[after]), float(time_ns[after - 1]) if after else np.inf)

    def _cap(self, mem: float, time_ns: float) -> int | None:
        """Return the index of the level at which to split a capped one, to exclude strategies below a memory and a time."""
        if self._levels[0] < 0:
            return None  # the largest part is no lower bound of a sum
        last = len(self._levels) - 1
        if last not in self._capped:
            return last
        for cap, floor, found in reversed(self._groups()):
            if found is None:
                continue
            below = np.flatnonzero(found.time_ns < time_ns)
            if not len(below) or found.mem_bytes[below[0]] + self._levels[floor] >= mem:
                continue
            split = int(np.searchsorted(self._levels, mem - found.mem_bytes[below[0]], side="left"))
            if split <= cap:
                return split - 1
        return None


def bound_of(found: Frontier) -> LowerBound:
    """Return the lower bound that a search proves: its own points if they are exact."""
    return found.bound or LowerBound(found.mem_bytes, found.time_ns, "sums by segment")
