"""Trace steps by TensorFlow's profiler: when each operator ran, and the exact peak of memory.

The profiler writes allocations and releases with the requested bytes and their addresses. Summed up in the order of time
they give the peak of what a step allocates, to the byte, where the allocators' own counters count chunks. Memory that
was allocated before the trace (variables) isn't in it, but its release within the trace is subtracted: an update may
copy a parameter and release the old one. On a CPU with oneDNN tensors of less than 256 KiB aren't in it either:
TensorFlow 2.21 has an allocator for them that reports nothing. Without oneDNN, which TensorFlow has off on CPUs without
AVX-512 unless ``TF_ENABLE_ONEDNN_OPTS=1``, none are. Memory that isn't TensorFlow's (received by collectives) is reported by
the caller.

On a GPU an operator takes the time of its kernels, which the device's plane has by their operator; the host's plane has only
how long their launches took. Of the allocators the GPU's counts.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

_ALLOCATION, _DEALLOCATION = "MemoryAllocation", "MemoryDeallocation"
_GPU_PLANE = "/device:GPU:"
_GPU_ALLOCATORS = ("GPU_", "gpu_async_")  # Not gpu_host_bfc: that is memory of the host, for copies.


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


def traced_step(step: Callable[[], object], other_memory: Callable[[], Iterable[MemoryEvent]] = lambda: ()) -> StepTrace:
    """Run a step, or several, under TensorFlow's profiler, and return the trace.

    The step should have run before, so that nothing is built meanwhile.

    Args:
        other_memory: is called after the step, and returns the events of memory that isn't TensorFlow's, by the system's
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
        return read_trace(file.read_bytes(), other_memory())


def read_trace(content: bytes, other_memory: Iterable[MemoryEvent] = ()) -> StepTrace:
    """Read what TensorFlow's profiler has written (an ``.xplane.pb``), and add the events of other memory."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    space = xplane_pb2.XSpace.FromString(content)
    others, launched, on_device = tuple(other_memory), list[OperatorEvent](), list[OperatorEvent]()
    memory: dict[bool, list[MemoryEvent]] = {False: [], True: []}
    # The times of events are relative to the start of the trace.
    start_ps = 1000 * max(dict(_stats(plane, plane)).get("profile_start_time", 0) for plane in space.planes)
    for plane in space.planes:
        is_device = plane.name.startswith(_GPU_PLANE)
        for line in plane.lines:
            for event in line.events:
                name = plane.event_metadata[event.metadata_id].name
                time_ps = start_ps + line.timestamp_ns * 1000 + event.offset_ps
                if name in (_ALLOCATION, _DEALLOCATION):
                    stats = dict(_stats(plane, event))
                    of_gpu = str(stats.get("allocator_name", "")).startswith(_GPU_ALLOCATORS)
                    n_bytes = int(stats["requested_bytes"]) * (1 if name == _ALLOCATION else -1)
                    memory[of_gpu].append(MemoryEvent(time_ps, int(stats["addr"]), n_bytes))
                    continue
                if is_device:
                    name = str(dict(_stats(plane, event)).get("tf_op", ""))
                # Operators' events are called ``name:Type``, the runtime's own have ``::`` or a space.
                operator, _, kind = name.rpartition(":")
                if operator and kind.isidentifier() and "::" not in name and " " not in name:
                    run = OperatorEvent(operator, kind, line.id, time_ps, event.duration_ps)
                    (on_device if is_device else launched).append(run)
    names = {event.name for event in on_device}
    operators = (*on_device, *(event for event in launched if event.name not in names))
    own_memory = memory[True] or memory[False]
    return StepTrace(operators, (*others, *own_memory), bool(own_memory))


def _stats(plane: Any, record: Any) -> Iterator[tuple[str, Any]]:
    """Yield name and value of the integers and texts among the statistics of an event, or of a plane."""
    for stat in record.stats:
        kind = stat.WhichOneof("value")
        if kind == "ref_value":  # A text that the plane has once for all of its events.
            yield plane.stat_metadata[stat.metadata_id].name, plane.stat_metadata[stat.ref_value].name
        elif kind in ("int64_value", "uint64_value", "str_value"):
            yield plane.stat_metadata[stat.metadata_id].name, getattr(stat, kind)
