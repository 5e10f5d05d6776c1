"""The result of a search: the Pareto-minimal (memory, time) points, each with its strategy (Definition 1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ..common.turning_point import turning_point
from .lower_bound import LowerBound
from .pareto import union
from .problem import Ints

ELIMINATIONS = ("node", "edge", "branch", "heuristic")


@dataclass(frozen=True, slots=True, eq=False)
class Frontier:
    """A frontier of at least one point, by ascending memory and therefore descending time.

    Attributes:
        mem_bytes: int64[P], strictly ascending.
        time_ns: int64[P], strictly descending.
        strategies: int32[P, n_nodes], the state of every node at each point.
        eliminations: how often each of "node", "edge", "branch" and "heuristic" elimination was used.
        bound: a lower bound of all strategies; None if these are exactly the Pareto-minimal points of the problem.

    Raises:
        ValueError: there is no point, the shapes don't fit, or a cost isn't strictly ordered.
    """

    mem_bytes: Ints
    time_ns: Ints
    strategies: npt.NDArray[np.int32]
    eliminations: Mapping[str, int]
    algorithm: str
    bound: LowerBound | None = None

    def __post_init__(self) -> None:
        n_points = len(self.mem_bytes)
        if n_points == 0 or self.time_ns.shape != (n_points,) or self.strategies.shape[:1] != (n_points,):
            shapes = self.mem_bytes.shape, self.time_ns.shape, self.strategies.shape
            raise ValueError(f"a frontier needs P >= 1 points with one strategy each, got shapes {shapes}")
        if (np.diff(self.mem_bytes) <= 0).any() or (np.diff(self.time_ns) >= 0).any():
            raise ValueError("a frontier must have strictly ascending memory and strictly descending time")
        counts = {kind: self.eliminations.get(kind, 0) for kind in ELIMINATIONS}
        object.__setattr__(self, "eliminations", counts)

    @property
    def exact(self) -> bool:
        """Return whether the points are all Pareto-minimal points of the problem, and no others."""
        return self.bound is None

    @property
    def exact_points(self) -> npt.NDArray[np.bool_]:
        """Return which points are proven to be Pareto-minimal: bool[P]."""
        if self.bound is None:
            return np.ones(len(self), np.bool_)
        return self.bound.proves(self.mem_bytes, self.time_ns)

    @property
    def gaps(self) -> npt.NDArray[np.float64]:
        """Return the gap of each point of the lower bound: float64[L] (see :mod:`.lower_bound`).

        If the frontier is exact, they are zeros, one for each of its own points: float64[P].
        """
        if self.bound is None:
            return np.zeros(len(self))
        return self.bound.gaps(self.mem_bytes, self.time_ns)

    @property
    def worst_gap(self) -> float:
        """Return the largest gap: every strategy is within a factor of 1 plus this of some point, in both costs."""
        return float(self.gaps.max())

    @property
    def median_gap(self) -> float:
        """Return the median of the gaps."""
        return float(np.median(self.gaps))

    @property
    def certificate(self) -> str:
        """Return in words that the frontier is exact, or how far from exact it is at most."""
        if self.bound is None:
            return "exact"
        n_proven = int(self.exact_points.sum())
        return (
            f"not exact: {n_proven} of {len(self)} points proven minimal, gap at most {self.worst_gap:.2%} "
            f"(median {self.median_gap:.2%}), by {self.bound.source}"
        )

    def lower_bound(self, source: str = "") -> LowerBound:
        """Return the lower bound of all strategies: if the points are exact these, as proven by ``source``."""
        return self.bound or LowerBound(self.mem_bytes, self.time_ns, source)

    def least_time(self, mem_bytes: Ints) -> Ints:
        """Return the least time that a strategy of at most this memory could have, int64[K]; see :class:`.LowerBound`."""
        return self.lower_bound().least_time(mem_bytes)

    def __len__(self) -> int:
        return len(self.mem_bytes)

    def with_points(self, mem_bytes: Ints, time_ns: Ints, strategies: npt.NDArray[np.int32]) -> Frontier:
        """Return the frontier of its points and further ones, each with its strategy; of equal points, its own stay.

        All else is this frontier's, the lower bound too unless the points now meet it.
        """
        mem_bytes, time_ns, indices = union(self.mem_bytes, self.time_ns, mem_bytes, time_ns)
        strategies = np.concatenate([self.strategies, strategies])[indices]
        return settled(replace(self, mem_bytes=mem_bytes, time_ns=time_ns, strategies=strategies))

    def joined(self, other: Frontier) -> Frontier:
        """Return the frontier of two searches' points, with the lower bound that both prove and the other's eliminations."""
        if self.bound is None or other.bound is None:
            return self if self.bound is None else other
        together = replace(self, eliminations=other.eliminations, bound=self.bound.tightened(other.bound))
        return together.with_points(other.mem_bytes, other.time_ns, other.strategies)

    def fastest(self) -> int:
        """Return the index of the point with the least time, which has the most memory."""
        return len(self) - 1

    def smallest(self) -> int:
        """Return the index of the point with the least memory, which has the most time."""
        return 0

    def at(self, mem_bytes: int) -> int | None:
        """Return the index of the point of least time within ``mem_bytes``; None if no point fits."""
        index = int(np.searchsorted(self.mem_bytes, mem_bytes, side="right")) - 1
        return None if index < 0 else index

    def turning_point(self) -> int:
        """Return the index of the point at which the frontier bends: up to it, memory buys much time; beyond it, little.

        See :func:`..common.turning_point.turning_point`.
        """
        return turning_point(self.mem_bytes, self.time_ns)


def settled(frontier: Frontier) -> Frontier:
    """Return the frontier without its lower bound if the two meet: it is then exact."""
    return replace(frontier, bound=None) if frontier.worst_gap == 0 else frontier
