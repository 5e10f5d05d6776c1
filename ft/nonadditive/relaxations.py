"""Bound strategies whose memory is the largest of several sums, by searches of sums that are chosen corner by corner.

A strategy S takes  mem(S) = saved(S) + max over segments b of T_b(S)  (:mod:`.segment_memory`). Two kinds of relaxation are
problems whose costs are sums, so that their frontiers bound all strategies, or some:

- *Charged*: for weights w >= 0 of the segments that add up to 1,  mem(S) >= saved(S) + sum over b of w_b T_b(S).
- *Capped*: let a strategy's *level* be the largest number of bytes that a single node or edge adds to any T_b. Then
  mem(S) >= saved(S) + level(S). Where the states and pairs above a level v aren't allowed, the frontier of saved memory
  bounds the strategies of level v and less. Of those between two capped levels u < v, it bounds the memory with the first
  level above u on top.

Weights alone leave a gap wherever two segments take turns in being the largest one. Levels close it where a segment's
memory is mostly that of one tensor, as in small models.

A *corner* lies between two neighbouring known points, divided by 1 + gap: all strategies below it are to be excluded. For
the corner that the bound is farthest from, the capped levels that don't exclude it are split, at the least level by which
the upper part does. Where that isn't possible, the weights by which the cheapest of the known strategies is dearest are
charged (:mod:`.matrix_game`), if they promise anything ("column generation").

Complexity: O(segments x strategies) for the weights of a corner; the searches are the caller's.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property, reduce

import numpy as np
import numpy.typing as npt

from ..frontier import Frontier
from ..lower_bound import LowerBound
from ..problem import Ints, Problem
from ..weighted.lagrangian import Found
from .matrix_game import best_parts
from .segment_memory import Transient, summed

UNITS = 256
"""Weights are multiples of 1 / UNITS."""
TRIES = 4
"""The most weights that are charged for one corner."""


@dataclass(frozen=True, slots=True)
class Charge:
    """Weights of the segments, in units of 1 / UNITS, which add up to UNITS."""

    weights: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Cap:
    """The index of the highest level that is allowed."""

    level: int


@dataclass(eq=False)
class Relaxations:
    """Bounds of a problem's strategies, proven by searches of relaxations.

    Attributes:
        problem: the problem; its memory is what is saved.
        bound: a lower bound of all strategies, by all that was added.
    """

    problem: Problem
    transient: Transient
    bound: LowerBound
    _of_all: LowerBound = field(init=False)  # without capped levels
    _capped: dict[int, LowerBound | None] = field(init=False, default_factory=dict)  # by level; None without strategies
    _charged: set[Charge] = field(init=False, default_factory=set)
    _costs: npt.NDArray[np.float64] = field(init=False)  # of known strategies: saved memory and each segment's, by segment
    _times: Ints = field(init=False)
    _tries: dict[tuple[float, float], int] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._of_all = self.bound
        self._costs, self._times = np.zeros((len(self.transient.segments), 0)), np.zeros(0, np.int64)

    @cached_property
    def _levels(self) -> Ints:
        """The bytes of segments' parts, ascending, each once; equal layers have the same arrays."""
        segments = self.transient.segments
        arrays = {id(part): part for segment in segments for part in (*segment.nodes.values(), *segment.edges.values())}
        return np.unique(np.concatenate([np.zeros(1, np.int64), *map(np.unique, arrays.values())]))

    def relaxed(self, relaxation: Charge | Cap) -> Problem:
        if isinstance(relaxation, Charge):
            return self.transient.weighted(self.problem, np.array(relaxation.weights) / UNITS)
        return self.transient.capped(self.problem, int(self._levels[relaxation.level]))

    def know(self, time_ns: Ints, strategies: npt.NDArray[np.int32]) -> None:
        """Add strategies, int32[P, nodes], and their times, int64[P], to those that weights are chosen by."""
        costs = summed(self.problem, strategies)[0] + self.transient.by_segment(self.problem, strategies)
        self._costs, self._times = np.concatenate([self._costs, costs], axis=1), np.append(self._times, time_ns)

    def prove(self, relaxation: Charge | Cap | None, bound: LowerBound | None) -> None:
        """Add what a search of a relaxation proves.

        Args:
            relaxation: the relaxation; None for any that all strategies are above.
            bound: a bound of its strategies; None if there are none.
        """
        if isinstance(relaxation, Cap):
            self._capped[relaxation.level] = bound
        elif bound is not None:
            self._of_all = self._of_all.tightened(bound)
        of_levels = [
            replace(group_bound, mem_bytes=group_bound.mem_bytes + self._levels[floor])
            for _, floor, group_bound in self._groups()
            if group_bound is not None
        ]
        self.bound = self._of_all.tightened(reduce(LowerBound.loosened, of_levels)) if of_levels else self._of_all

    def _groups(self) -> list[tuple[int, int, LowerBound | None]]:
        """Return the capped levels, ascending, each with the least level that no lower cap includes, and its bound."""
        caps = sorted(self._capped)
        return [(cap, lower_cap + 1, self._capped[cap]) for lower_cap, cap in zip([-1, *caps], caps, strict=False)]

    def next(self, best: Frontier, gap: float) -> Charge | Cap | None:
        """Return what to search next; None if nothing helps the point of the bound that is farthest from what is known.

        Args:
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
        corner = float(mem[after]), float(time_ns[after - 1]) if after else np.inf
        cap = self._cap(*corner)
        if cap is not None:
            return cap
        tries = self._tries[corner] = self._tries.get(corner, 0) + 1
        if tries > TRIES:
            return None
        # Where nothing excludes the corner, weights that raise the bound still find strategies.
        at = float(self.bound.mem_bytes[worst]), float(self.bound.time_ns[worst]) * (1 + gap)
        charge = self._charge(*corner) or self._charge(*at)
        if charge is not None:
            self._charged.add(charge)
        return charge

    def _charge(self, mem: float, time_ns: float) -> Charge | None:
        """Return weights by which all known strategies up to a time take more than so much memory; None if none do."""
        costs = self._costs[:, self._times <= time_ns]
        if not costs.shape[1]:
            return None
        parts, least = best_parts(costs / max(mem, 1.0))
        weights = np.floor(parts * UNITS).astype(np.int64)
        weights[parts.argmax()] += UNITS - weights.sum()
        charge = Charge(tuple(weights.tolist()))
        return None if least <= 1 or charge in self._charged else charge

    def _cap(self, mem: float, time_ns: float) -> Cap | None:
        """Return the level at which a capped one is to be split, to exclude strategies below a memory and a time."""
        if self._levels[0] < 0:
            return None  # the largest part is no lower bound of a sum
        last = len(self._levels) - 1
        if last not in self._capped:
            return Cap(last)
        for cap, floor, bound in reversed(self._groups()):
            if bound is None:
                continue
            indices = np.flatnonzero(bound.time_ns < time_ns)
            if not len(indices) or bound.mem_bytes[indices[0]] + self._levels[floor] >= mem:
                continue
            split = int(np.searchsorted(self._levels, mem - bound.mem_bytes[indices[0]], side="left"))
            if split <= cap:
                return Cap(split - 1)
        return None
