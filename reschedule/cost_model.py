"""The interface at which cost models plug in: the times of steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from .layout import Axes
from .mesh import Mesh


class StepCosts(Protocol):
    """The times of steps: the interface at which cost models plug in. Times must be deterministic and never negative."""

    def time_ns(self, kind: str, mesh: Mesh, axes: Axes, n_bytes: int) -> int:
        """Return the time of a collective over ``axes`` (ascending), or of a local step (``kind`` "local").

        ``n_bytes`` is the result of :meth:`Step.n_bytes`: the bytes of the rank with the largest shard.
        """

    def __hash__(self) -> int:
        """Return a hash that is equal for equal costs: caches of times go by it."""


@runtime_checkable
class ManyStepCosts(StepCosts, Protocol):
    """Step costs that can be asked for many times at once, in arrays."""

    def times_ns(
        self, kinds: Sequence[str], mesh: Mesh, subsets: Sequence[tuple[int, ...]], n_bytes: np.ndarray
    ) -> np.ndarray:
        """Return ``time_ns`` of each kind, each set of axes and each number of bytes, int64[kinds, subsets, sizes]."""
