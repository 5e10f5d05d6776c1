"""Trace steps by TensorFlow's profiler: when each operator ran, and the exact peak of memory.

The profiler writes allocations and releases with the requested bytes and their addresses. Summed up in the order of time
they give the peak of what a step allocates, to the byte, where the allocators' own counters count chunks. Memory that
was allocated before the trace (variables) isn't in it, but its release within the trace is subtracted: an update may
copy a parameter and release the old one. On a CPU with oneDNN tensors of less than 256 KiB aren't in it either:
TensorFlow 2.21 has an allocator for them that reports nothing. Without oneDNN, which TensorFlow has off on CPUs without
AVX-512 unless ``TF_ENABLE_ONEDNN_OPTS=1``, none are. Memory that isn't TensorFlow's (received by collectives) is reported by
the caller.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

_ALLOCATION, _DEALLOCATION = "MemoryAllocation", "MemoryDeallocation"


@dataclass(frozen=True, slots=True)
class MemoryEvent:
    """An allocation of the memory at ``address``, or a release of it, whose ``n_bytes`` are 0 or less.

    A release of memory that was allocated before the first event has minus the bytes of it, or 0 where it is not
    counted.
    """

    time_ps: int
    address: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class OperatorEvent:
    """One run of a TensorFlow operator, by the system's clock.

    Attributes:
        name: the operator's name in the graph.
        type: TensorFlow's operator type; of operators that TensorFlow runs as one, theirs together.
        thread: the number of the thread that ran it, or of the device's stream.
    """

    name: str
    type: str
    thread: int
    start_ps: int
    duration_ps: int


@dataclass(frozen=True)
class StepTrace:
    """The operators that ran in a step and its memory events, in no order; times are the system clock's.

    Attributes:
        reports_memory: whether TensorFlow has reported any allocation or release.
    """

    operators: tuple[OperatorEvent, ...] = ()
    memory: tuple[MemoryEvent, ...] = ()
    reports_memory: bool = True

    @cached_property
    def operators_us(self) -> dict[str, float]:
        """The microseconds of each operator, by its name in the graph; several runs add up."""
        total_us: dict[str, float] = {}
        for event in self.operators:
            total_us[event.name] = total_us.get(event.name, 0.0) + event.duration_ps / 1e6
        return total_us

    @cached_property
    def peak_bytes(self) -> int:
        """The most bytes that were allocated at once since the trace began."""
        return traced_peak(self.memory)


def traced_peak(events: Iterable[MemoryEvent]) -> int:
    """Return the most bytes at once, relative to what was allocated before the first event; releases of that are subtracted.
    """
    return max([0, *(n_bytes for _, n_bytes in allocated(events))])


def allocated(events: Iterable[MemoryEvent]) -> Iterator[tuple[int, int]]:
    """Yield (picoseconds, bytes allocated from then on), relative to what was allocated before the first event."""
    alive: dict[int, int] = {}
    total = 0
    for event in sorted(events, key=lambda event: event.time_ps):
        total -= alive.pop(event.address, max(0, -event.n_bytes))
        if event.n_bytes > 0:
            alive[event.address] = event.n_bytes
            total += event.n_bytes
        yield event.time_ps, total


def traced_step(step: Callable[[], object], between: Callable[[], Iterable[MemoryEvent]] = lambda: ()) -> StepTrace:
    """Run a step, or several, under TensorFlow's profiler, and return the trace.

    The step should have run before, so that nothing is built meanwhile.

    Args:
        between: is called after the step, and returns the events of memory that isn't TensorFlow's, by the system's
            clock.
    """
    import tensorflow as tf

    options = tf.profiler.experimental.ProfilerOptions(host_tracer_level=2, python_tracer_level=0, device_tracer_level=1)
    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder, options)
        try:
            step()
        finally:
            tf.profiler.experimental.stop()
        (file,) = Path(folder).rglob("*.xplane.pb")
        return _read(file.read_bytes(), between())


def _read(content: bytes, between: Iterable[MemoryEvent]) -> StepTrace:
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    space = xplane_pb2.XSpace.FromString(content)
    operators: list[OperatorEvent] = []
    others, memory = tuple(between), list[MemoryEvent]()
    # The times of events are relative to the start of the trace.
    start_ps = 1000 * max(dict(_stats(plane, plane)).get("profile_start_time", 0) for plane in space.planes)
    for plane in space.planes:
        for line in plane.lines:
            for event in line.events:
                name = plane.event_metadata[event.metadata_id].name
                time_ps = start_ps + line.timestamp_ns * 1000 + event.offset_ps
                if name in (_ALLOCATION, _DEALLOCATION):
                    memory.append(_memory_event(plane, event, time_ps, name == _ALLOCATION))
                elif _is_operator(name):
                    operator, _, kind = name.rpartition(":")
                    operators.append(OperatorEvent(operator, kind, line.id, time_ps, event.duration_ps))
    return StepTrace(tuple(operators), (*others, *memory), bool(memory))


def _is_operator(name: str) -> bool:
    """Return whether an event is an operator's: those are called ``name:Type``, the runtime's own have ``::`` or a space."""
    operator, _, kind = name.rpartition(":")
    return bool(operator) and kind.isidentifier() and "::" not in name and " " not in name


def _memory_event(plane: Any, event: Any, time_ps: int, is_allocation: bool) -> MemoryEvent:
    stats = dict(_stats(plane, event))
    n_bytes = int(stats["requested_bytes"])
    return MemoryEvent(time_ps, int(stats["addr"]), n_bytes if is_allocation else -n_bytes)


def _stats(plane: Any, of: Any) -> Iterator[tuple[str, int]]:
    """Yield name and value of the integer statistics of an event, or of a plane."""
    for stat in of.stats:
        kind = stat.WhichOneof("value")
        if kind in ("int64_value", "uint64_value"):
            yield plane.stat_metadata[stat.metadata_id].name, getattr(stat, kind)
