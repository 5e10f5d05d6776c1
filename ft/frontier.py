"""The result of a search: the Pareto-minimal (memory, time) points, each with its strategy (Definition 1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from .problem import Ints

KINDS = ("node", "edge", "branch", "heuristic")


@dataclass(frozen=True, slots=True, eq=False)
class Frontier:
    """At least one point, by ascending memory and therefore descending time.

    Attributes:
        mem_bytes: int64[P], strictly ascending.
        time_ns: int64[P], strictly descending.
        strategies: int32[P, n_nodes], the state of every node at each point.
        exact: whether these are all Pareto-minimal points of the problem (no heuristic elimination was used).
        eliminations: how often each of "node", "edge", "branch" and "heuristic" elimination was used.
        algorithm: the name that was given to the search.
    """

    mem_bytes: Ints
    time_ns: Ints
    strategies: npt.NDArray[np.int32]
    exact: bool
    eliminations: Mapping[str, int]
    algorithm: str

    def __post_init__(self) -> None:
        n_points = len(self.mem_bytes)
        if n_points == 0 or self.time_ns.shape != (n_points,) or self.strategies.shape[:1] != (n_points,):
            shapes = self.mem_bytes.shape, self.time_ns.shape, self.strategies.shape
            raise ValueError(f"a frontier needs P >= 1 points with one strategy each, got shapes {shapes}")
        if (np.diff(self.mem_bytes) <= 0).any() or (np.diff(self.time_ns) >= 0).any():
            raise ValueError("a frontier must have strictly ascending memory and strictly descending time")
        counts = {kind: self.eliminations.get(kind, 0) for kind in KINDS}
        object.__setattr__(self, "eliminations", MappingProxyType(counts))

    def __len__(self) -> int:
        return len(self.mem_bytes)

    def fastest(self) -> int:
        """The index of the point with the least time, which has the most memory."""
        return len(self) - 1

    def smallest(self) -> int:
        """The index of the point with the least memory, which has the most time."""
        return 0

    def at(self, mem_bytes: int) -> int | None:
        """The index of the least time within ``mem_bytes``; None if nothing fits."""
        index = int(np.searchsorted(self.mem_bytes, mem_bytes, side="right")) - 1
        return None if index < 0 else index

    def turning_point(self) -> int:
        """The index of the point farthest below the line between the two ends, both costs normalised to [0, 1].

        Up to it, memory buys much time; beyond it, little. With no point below the line (one or two points, or a
        frontier that bulges outwards) there is no bend, and it is the point of least memory; so is the first of equals.
        """
        if len(self) < 3:
            return 0
        mem = (self.mem_bytes - self.mem_bytes[0]) / (self.mem_bytes[-1] - self.mem_bytes[0])
        time = (self.time_ns - self.time_ns[-1]) / (self.time_ns[0] - self.time_ns[-1])
        depth = 1.0 - mem - time  # proportional to the signed distance from the line mem + time = 1
        return int(np.argmax(depth))
