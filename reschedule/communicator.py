"""The interface of what carries out collectives between devices: the methods that steps call."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import numpy.typing as npt

from .layout import Axes, Shape
from .summing import Array


class Communicator(Protocol):
    """Collectives over groups of devices; ``axes`` name a group, whose members are ordered by rank.

    Every member calls the same methods in the same order. Shards are C-contiguous. Results are new arrays from
    :meth:`empty`, unless ``out`` is given: then the parts that arrive fill it in group order, one after the other.
    ``joined`` is an array of which ``sends`` are all consecutive parts, where the caller has such an array: it saves a
    copy.
    """

    @property
    def workspace_bytes(self) -> int:
        """The bytes of memory that are kept from one collective to the next."""

    def empty(self, shape: Shape, dtype: npt.DTypeLike) -> Array:
        """Return an uninitialised array for a result."""

    def scratch(self, name: str, count: int, dtype: npt.DTypeLike) -> Array:
        """Return a flat array of ``count`` elements, valid until scratch memory of the same ``name`` is asked for again."""

    def rounds(self) -> AbstractContextManager[object]:
        """Return a context manager to be entered around the rounds of one collective."""

    def all_gather(self, axes: Axes, send: Array, recv_shapes: Sequence[Shape], out: Array | None = None) -> list[Array]:
        """Return the members' ``send``, in group order."""

    def all_to_all(
        self,
        axes: Axes,
        sends: Sequence[Array],
        recv_shapes: Sequence[Shape],
        out: Array | None = None,
        joined: Array | None = None,
    ) -> list[Array]:
        """Return the arrays that the members send to this rank, in group order; ``sends[i]`` goes to member i."""

    def reduce_scatter(self, axes: Axes, sends: Sequence[Array], own_shape: Shape, joined: Array | None = None) -> Array:
        """Return the sum of the arrays that the members send to this rank; ``sends[i]`` goes to member i."""

    def all_reduce(self, axes: Axes, array: Array, op: str = "sum") -> Array:
        """Return the members' arrays combined by "sum", "max" or "min", with equal bits on every member."""
