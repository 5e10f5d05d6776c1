"""Record how long each collective took and what memory its results take, to compare plans with their predictions.

TensorFlow takes over the results without a copy. TensorFlow's profiler sees only its own memory, so it misses theirs. It is
freed only when TensorFlow lets go of the results.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ...profiling.trace import MemoryEvent
from ...reschedule.communicator import Communicator
from ...reschedule.layout import Axes, Shape

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class TimedCall:
    """One collective of one rank, timed by the communicator's clock; ``n_bytes`` is defined per kind, as in the costs."""

    kind: str
    axes: Axes
    n_bytes: int
    started_s: float
    seconds: float


@dataclass
class TimedCommunicator:
    """A communicator that records the time of each collective, and the memory of its results.

    Attributes:
        clock: returns the time in seconds.
        calls: the collectives since :meth:`take` was called last.
        memory: the changes of memory since :meth:`take_memory` was called last, with times in picoseconds of the system's
            clock.
        follows_memory: whether memory is recorded, which takes longer than a small collective does.
    """

    inner: Communicator
    clock: Callable[[], float] = time.perf_counter
    calls: list[TimedCall] = field(default_factory=list)
    memory: list[MemoryEvent] = field(default_factory=list)
    follows_memory: bool = False

    @property
    def workspace_bytes(self) -> int:
        return self.inner.workspace_bytes

    def take(self) -> tuple[TimedCall, ...]:
        """Return the calls recorded so far, and forget them."""
        calls, self.calls = tuple(self.calls), []
        return calls

    def take_memory(self) -> tuple[MemoryEvent, ...]:
        """Return the allocations and releases recorded so far, and forget them."""
        events, self.memory = tuple(self.memory), []
        return events

    def empty(self, shape: Shape, dtype: npt.DTypeLike) -> Array:
        return self._followed(self.inner.empty(shape, dtype))

    def scratch(self, name: str, count: int, dtype: npt.DTypeLike) -> Array:
        return self.inner.scratch(name, count, dtype)

    @contextmanager
    def rounds(self) -> Iterator[None]:
        """Record the calls within this context as one call, with the sums of their bytes and seconds."""
        n_before = len(self.calls)
        yield
        calls, self.calls[n_before:] = self.calls[n_before:], []
        n_bytes, seconds = sum(call.n_bytes for call in calls), sum(call.seconds for call in calls)
        self.calls.append(replace(calls[0], n_bytes=n_bytes, seconds=seconds))

    def all_gather(self, axes: Axes, send: Array, recv_shapes: Sequence[Shape], out: Array | None = None) -> list[Array]:
        return self._timed("all_gather", axes, None, send, recv_shapes, out)

    def all_to_all(self, axes: Axes, sends: Sequence[Array], *arguments: Any, **options: Any) -> list[Array]:
        return self._timed("all_to_all", axes, sends, sends, *arguments, **options)

    def reduce_scatter(self, axes: Axes, sends: Sequence[Array], own_shape: Shape, joined: Array | None = None) -> Array:
        return self._followed(self._timed("reduce_scatter", axes, sends, sends, own_shape, joined))

    def all_reduce(self, axes: Axes, array: Array, op: str = "sum") -> Array:
        return self._followed(self._timed("all_reduce", axes, [array], array, op))

    def _timed(self, kind: str, axes: Axes, arrays: Sequence[Array] | None, *arguments: Any, **options: Any) -> Any:
        """Run a collective, and record its time and the bytes of some arrays; None for those that it returns."""
        start = self.clock()
        result = getattr(self.inner, kind)(axes, *arguments, **options)
        n_bytes = sum(block.nbytes for block in (result if arrays is None else arrays))
        self.calls.append(TimedCall(kind, axes, n_bytes, start, self.clock() - start))
        return result

    def _followed(self, result: Array) -> Array:
        """Record a new result's memory, and its release once nothing refers to it any more. Return the result."""
        if not self.follows_memory:
            return result
        owner = result
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        address = owner.ctypes.data
        self.memory.append(MemoryEvent(time.time_ns() * 1000, address, result.nbytes))
        weakref.finalize(owner, lambda: self.memory.append(MemoryEvent(time.time_ns() * 1000, address, 0)))
        return result
