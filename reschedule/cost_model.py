"""What steps cost: the interface at which cost models plug in."""

from __future__ import annotations

from typing import Protocol

from .layout import Axes
from .mesh import Mesh


class StepCosts(Protocol):
    """What steps cost: the interface at which cost models plug in. Must be deterministic and never negative."""

    def time_ns(self, kind: str, mesh: Mesh, axes: Axes, n_bytes: int) -> int:
        """Time of a collective over ``axes`` (ascending), or of a local step (``kind`` "local").

        ``n_bytes`` is what :meth:`Step.n_bytes` gives: for the rank with the largest piece.
        """
        ...
