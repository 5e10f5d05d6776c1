"""One step as TensorFlow's profiler saw it: what each operator took, and the exact peak of memory.

The profiler writes allocations and releases with the bytes that were asked for and their addresses; summed up in the order
of time they give the peak of what a step allocates, to the byte, where the allocators' own counters count chunks. What was
allocated before the trace (variables) isn't in it, but what is released of that is taken off: an update may copy a parameter
and give back the old one. On a CPU with oneDNN tensors of less than 256 KiB aren't in it either: TensorFlow 2.21 has an
allocator for them that tells nothing. Memory that isn't TensorFlow's (what collectives receive) is told beside.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

_ALLOCATION, _DEALLOCATION = "MemoryAllocation", "MemoryDeallocation"


@dataclass(frozen=True, slots=True)
class MemoryEvent:
    """An allocation of the memory at ``address``, or a release of it, whose ``n_bytes`` are 0 or less.

    A release of what was allocated before the first event tells how much that was, or 0 where it counted nowhere.
    """

    time_ps: int
    address: int
    n_bytes: int


@dataclass(frozen=True)
class StepTrace:
    """Attributes:
    operators_us: what each TensorFlow operator of the step took, by its name in the graph; several runs add up.
    peak_bytes: the most that was allocated at once since the trace began.
    """

    operators_us: dict[str, float] = field(default_factory=dict)
    peak_bytes: int = 0


def peak_of(events: Iterable[MemoryEvent]) -> int:
    """The most bytes at once, beside what was allocated before the first event; what is released of that counts."""
    alive: dict[int, int] = {}
    total = peak = 0
    for event in sorted(events, key=lambda event: event.time_ps):
        total -= alive.pop(event.address, max(0, -event.n_bytes))
        if event.n_bytes > 0:
            alive[event.address] = event.n_bytes
            total += event.n_bytes
            peak = max(peak, total)
    return peak


def traced_step(
    step: Callable[[], object], beside: Callable[[], Iterable[MemoryEvent]] = lambda: ()
) -> StepTrace:
    """Run a step under TensorFlow's profiler. It should have run before, so that nothing is built meanwhile.

    Args:
        beside: is called after the step: memory that TensorFlow doesn't tell of, by the system's clock.
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
        return _read(file.read_bytes(), beside())


def _read(content: bytes, beside: Iterable[MemoryEvent]) -> StepTrace:
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    space = xplane_pb2.XSpace.FromString(content)
    operators_us: dict[str, float] = {}
    memory: list[MemoryEvent] = []
    start_ps = 0
    for plane in space.planes:
        # Events are told from the start of the trace on.
        start_ps = max(start_ps, 1000 * dict(_stats(plane, plane)).get("profile_start_time", 0))
        for line in plane.lines:
            for event in line.events:
                name = plane.event_metadata[event.metadata_id].name
                if name in (_ALLOCATION, _DEALLOCATION):
                    memory.append(_memory_event(plane, line, event, name == _ALLOCATION))
                elif _is_operator(name):
                    operator = name.rpartition(":")[0]
                    operators_us[operator] = operators_us.get(operator, 0.0) + event.duration_ps / 1e6
    memory += [replace(event, time_ps=event.time_ps - start_ps) for event in beside]
    return StepTrace(operators_us, peak_of(memory))


def _is_operator(name: str) -> bool:
    """Operators are called ``name:Type``; the runtime's own events have ``::`` or a space."""
    operator, _, kind = name.rpartition(":")
    return bool(operator) and kind.isidentifier() and "::" not in name and " " not in name


def _memory_event(plane: Any, line: Any, event: Any, is_allocation: bool) -> MemoryEvent:
    stats = dict(_stats(plane, event))
    time_ps = line.timestamp_ns * 1000 + event.offset_ps
    n_bytes = int(stats["requested_bytes"])
    return MemoryEvent(time_ps, int(stats["addr"]), n_bytes if is_allocation else -n_bytes)


def _stats(plane: Any, of: Any) -> Iterator[tuple[str, int]]:
    """The whole numbers that are told of an event, or of a plane."""
    for stat in of.stats:
        kind = stat.WhichOneof("value")
        if kind in ("int64_value", "uint64_value"):
            yield plane.stat_metadata[stat.metadata_id].name, getattr(stat, kind)
