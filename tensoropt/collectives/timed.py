"""A communicator that writes down how long each collective took, for holding plans against what they predicted."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

from ..reschedule.execute import Communicator
from ..reschedule.layout import Axes, Shape

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class TimedCall:
    """One collective of one rank; ``n_bytes`` in the sense of its kind, as costs have it."""

    kind: str
    axes: Axes
    n_bytes: int
    seconds: float


@dataclass
class TimedCommunicator:
    """Attributes:
    inner: carries out the collectives.
    calls: since they were last taken.
    """

    inner: Communicator
    clock: Callable[[], float] = time.perf_counter
    calls: list[TimedCall] = field(default_factory=list)

    def take(self) -> tuple[TimedCall, ...]:
        """The calls so far, which are forgotten."""
        taken = tuple(self.calls)
        self.calls.clear()
        return taken

    def empty(self, shape: Shape, dtype: npt.DTypeLike) -> Array:
        return self.inner.empty(shape, dtype)

    def scratch(self, name: str, count: int, dtype: npt.DTypeLike) -> Array:
        return self.inner.scratch(name, count, dtype)

    def all_gather(
        self, axes: Axes, send: Array, recv_shapes: Sequence[Shape], out: Array | None = None
    ) -> list[Array]:
        started = self.clock()
        received = self.inner.all_gather(axes, send, recv_shapes, out)
        self._note("all_gather", axes, sum(piece.nbytes for piece in received), started)
        return received

    def all_to_all(
        self,
        axes: Axes,
        sends: Sequence[Array],
        recv_shapes: Sequence[Shape],
        out: Array | None = None,
        joined: Array | None = None,
    ) -> list[Array]:
        started = self.clock()
        received = self.inner.all_to_all(axes, sends, recv_shapes, out, joined)
        self._note("all_to_all", axes, sum(piece.nbytes for piece in sends), started)
        return received

    def reduce_scatter(
        self, axes: Axes, sends: Sequence[Array], own_shape: Shape, joined: Array | None = None
    ) -> Array:
        started = self.clock()
        result = self.inner.reduce_scatter(axes, sends, own_shape, joined)
        self._note("reduce_scatter", axes, sum(piece.nbytes for piece in sends), started)
        return result

    def all_reduce(self, axes: Axes, array: Array, op: str = "sum") -> Array:
        started = self.clock()
        result = self.inner.all_reduce(axes, array, op)
        self._note("all_reduce", axes, array.nbytes, started)
        return result

    def _note(self, kind: str, axes: Axes, n_bytes: int, started: float) -> None:
        self.calls.append(TimedCall(kind, axes, n_bytes, self.clock() - started))
