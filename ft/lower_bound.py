"""Bound a frontier from below, and measure how far a frontier is from such a bound.

A lower bound is a staircase: *every allowed strategy costs at least as much, in both costs, as one of its points*. It comes
from a relaxation, from a frontier that is known to be within a factor of the true one, or from Lagrangian bounds.

The *gap* of a point l of the lower bound is the smallest e such that the frontier has a point within (1 + e) of l in both
costs. So every strategy is within (1 + the worst gap) of a point of the frontier, in both costs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .pareto import reduce_unsorted
from .problem import Floats, Ints
from .tables.table import Slack

_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True, eq=False)
class LowerBound:
    """A staircase that bounds strategies from below, by strictly ascending memory and strictly descending time.

    Attributes:
        mem_bytes, time_ns: int64[L], L >= 1.
        source: the method that it comes from, as text for people.
    """

    mem_bytes: Ints
    time_ns: Ints
    source: str

    @classmethod
    def within(cls, mem: Ints, time: Ints, slack: Slack, source: str) -> LowerBound:
        """Return the bound that points with slack give.

        Args:
            mem, time: points such that every strategy, with the slack added, costs at least as much in both costs as one of
                them.
        """
        mem, time = (np.maximum(cost - allowance, 0) for cost, allowance in zip((mem, time), slack, strict=True))
        indices = reduce_unsorted(mem, time)
        return cls(mem[indices], time[indices], source)

    def least_time(self, mem: Ints) -> Ints:
        """Return the least time that a strategy of exactly this memory could have; the largest integer if none can."""
        step = np.searchsorted(self.mem_bytes, mem, side="right") - 1
        return np.where(step < 0, _NEVER, self.time_ns[np.maximum(step, 0)])

    def tightened(self, other: LowerBound) -> LowerBound:
        """Return the tightest staircase that follows from both bounds: what both allow."""
        mem = np.union1d(self.mem_bytes, other.mem_bytes)
        mem = mem[mem >= max(self.mem_bytes[0], other.mem_bytes[0])]
        time = np.maximum(self.least_time(mem), other.least_time(mem))
        indices = reduce_unsorted(mem, time)
        return LowerBound(mem[indices], time[indices], _named(self, other))

    def lowered(self, time_ns: int) -> LowerBound:
        """Return the bound of strategies that take less time than this one bounds, by at most ``time_ns``."""
        times = np.maximum(self.time_ns - time_ns, 0)
        indices = reduce_unsorted(self.mem_bytes, times)
        return LowerBound(self.mem_bytes[indices], times[indices], self.source)

    def loosened(self, other: LowerBound) -> LowerBound:
        """Return the bound of all strategies, if each is known to be bounded by at least one of the two."""
        mem, time = np.concatenate([self.mem_bytes, other.mem_bytes]), np.concatenate([self.time_ns, other.time_ns])
        indices = reduce_unsorted(mem, time)
        return LowerBound(mem[indices], time[indices], _named(self, other))

    def gaps(self, mem: Ints, time: Ints) -> Floats:
        """Return the gap of each of the bound's points to a frontier: float64[L]; infinite only where the bound has a zero.

        Along the frontier the factor in memory grows and the factor in time falls: the best point is where they cross.
        """
        low, high = np.zeros(len(self.mem_bytes), np.int64), np.full(len(self.mem_bytes), len(mem), np.int64)
        while (low < high).any():
            middle = (low + high) // 2
            index = np.minimum(middle, len(mem) - 1)
            is_crossed = (_excess(mem[index], self.mem_bytes) >= _excess(time[index], self.time_ns)) | (middle >= high)
            low, high = np.where(is_crossed, low, middle + 1), np.where(is_crossed, np.minimum(middle, high), high)
        best = np.full(len(low), np.inf)
        for index in (np.minimum(low, len(mem) - 1), np.maximum(low - 1, 0)):
            best = np.minimum(best, np.maximum(_excess(mem[index], self.mem_bytes), _excess(time[index], self.time_ns)))
        return best

    def proves(self, mem: Ints, time: Ints) -> npt.NDArray[np.bool_]:
        """Return which of these points no strategy can dominate: bool[P].

        That is so where the bound has no point that is at least as good in both costs, other than the point itself.
        """
        index = np.maximum(np.searchsorted(self.mem_bytes, mem, side="right") - 1, 0)
        is_of_bound = (self.mem_bytes[index] == mem) & (self.time_ns[index] == time)
        result: npt.NDArray[np.bool_] = is_of_bound | (self.least_time(mem) > time)
        return result


def _named(*bounds: LowerBound) -> str:
    return " and ".join(dict.fromkeys(source for bound in bounds for source in bound.source.split(" and ")))


def _excess(cost: Ints, bound: Ints) -> Floats:
    """Return the fraction by which a cost exceeds a bound; 0 if it doesn't."""
    difference = np.maximum(cost - bound, 0)
    quotient = difference / np.maximum(bound, 1)
    result: Floats = np.where((bound == 0) & (difference > 0), np.inf, quotient)
    return result
