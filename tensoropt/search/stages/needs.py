"""Estimate what stages need in memory, and how long they compute again to fit a limit, wherever a model is cut.

A stage holds its variables with their gradients and slots, and of each micro-batch in flight what it was sent and what its
backward pass reads. What it rematerializes is there for one micro-batch and one segment at a time. All of it is counted as
split over the stage's devices. Stages first rematerialize what saves the most bytes for its time: *levels* are how far that
goes, and between two levels bytes and time are in proportion.

Complexity: O(levels x operators).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from ...ir.graph import PLACEHOLDER, SOURCES, VARIABLE, Graph, Operator
from ..problem.fusion_groups import FusionGroup
from ..problem.remat_segments import segments_of
from .times import OperatorTimes, TimesBySize

LEVELS = 8
"""The most levels beside that at which nothing is rematerialized."""
FULL = 0.8
"""The share of a memory limit that these estimates may take: plans also hold gradients, messages and what isn't split."""
Place = np.ndarray | int


@dataclass(frozen=True, eq=False)
class StageNeeds:
    """The memory needs of all operators before each place: before each of N operators in program order, and after all.

    Attributes:
        held: the bytes of variables, with gradients and slots, and of what is fed, of the first operators that use them,
            int64[N + 1].
        trained: the number of these variables, int64[N + 1].
        saved: by level, the bytes that a micro-batch saves, int64[levels, N + 1].
        crossing: the bytes of a micro-batch that cross at each place itself, int64[N + 1].
        at_once: by level, the bytes of the segment that rematerializes the most, int64[levels].
        again_us: by number of devices, by level, the time of what is rematerialized in all micro-batches,
            float64[levels, N + 1].
    """

    names: Sequence[str]
    held: np.ndarray
    trained: np.ndarray
    saved: np.ndarray
    crossing: np.ndarray
    at_once: np.ndarray
    again_us: Mapping[int, np.ndarray]

    @classmethod
    def of(cls, times: TimesBySize, sizes: Sequence[int], rematerializes: bool = True) -> StageNeeds:
        """Return what a model's operators need.

        Args:
            sizes: the numbers of devices that stages may have.
            rematerializes: whether plans may rematerialize.
        """
        graph_times = times[min(sizes)]
        graph, program = graph_times.graph, _program(graph_times.graph)
        held, n_trained = _held(graph, program)
        repeats = [_Again.of(times[size], program) for size in sizes] if rematerializes else []
        read = _read(graph_times)
        saved = {op.name: sum(tensor.mem_bytes for tensor in op.outputs if tensor.name in read) for op in program}
        levels, kept_levels = _levels(repeats[0], saved) if repeats else ({}, {})
        n_levels = 1 + max(levels.values(), default=0)
        level_bytes, segment_bytes = np.zeros((n_levels, len(program)), np.int64), [Counter[int]() for _ in range(n_levels)]
        for place, op in enumerate(program):
            first = levels.get(op.name, n_levels)
            level_bytes[:first, place] = saved[op.name]
            level_bytes[kept_levels.get(op.name, n_levels) :, place] = op.result.mem_bytes if op.outputs else 0
            for counter in segment_bytes[first:]:
                counter[repeats[0].segments[op.name]] += saved[op.name]
        again_us = {}
        for size, repeat in zip(sizes, repeats, strict=False):
            us = np.zeros((n_levels, len(program)))
            for place, op in enumerate(program):
                us[levels.get(op.name, n_levels) :, place] = graph.n_micro_batches * repeat.own_us.get(op.name, 0.0)
            again_us[size] = _summed(us)
        peaks = np.array([max(counts.values(), default=0) for counts in segment_bytes])
        return cls([op.name for op in program], held, n_trained, _summed(level_bytes), _crossing(program), peaks, again_us)

    def n_bytes(self, start: Place, end: Place, in_flight: int) -> Iterator[np.ndarray]:
        """Yield by level the bytes of a stage's devices together, of the operators between two places."""
        for saved, segment_bytes in zip(self.saved, self.at_once.tolist(), strict=True):
            bytes_before = self.held[start] + in_flight * (saved[start] - self.crossing[start])
            yield self.held[end] + in_flight * saved[end] + segment_bytes - bytes_before  # one array over both places

    def least_bytes(self, start: Place, end: Place, in_flight: int) -> np.ndarray:
        """Return the bytes at the level that needs the fewest."""
        return reduce(np.minimum, self.n_bytes(start, end, in_flight))

    def own_us(self, own_us: np.ndarray, size: int, start: Place, end: Place, in_flight: int, limit: float) -> np.ndarray:
        """Return the times of stages with what they compute again to fit a limit in bytes, given the times without.

        A stage that doesn't fit takes as much longer as it needs more memory.
        """
        n_bytes = [level_bytes / size for level_bytes in self.n_bytes(start, end, in_flight)]
        extra_us = np.zeros_like(own_us)
        if self.again_us:
            level_us = [sums[end] - sums[start] for sums in self.again_us[size]]
            for level in range(1, len(self.saved)):
                saved_bytes = np.maximum(1.0, n_bytes[level - 1] - n_bytes[level])
                share = np.clip((n_bytes[level - 1] - limit) / saved_bytes, 0.0, 1.0)
                # What fits with less rematerialized needs none of this level.
                extra_us += share * (level_us[level] - level_us[level - 1])
        return (own_us + extra_us) * np.maximum(1.0, np.minimum.reduce(n_bytes) / limit)


@dataclass(frozen=True, eq=False)
class _Again:
    """The operators that may be rematerialized, on some devices.

    Attributes:
        segments: the number of each one's segment.
        own_us: the time of each, and of what it is made of that isn't saved, in a micro-batch.
        made_of: what isn't saved otherwise, and must be where it is rematerialized.
    """

    segments: Mapping[str, int]
    own_us: Mapping[str, float]
    made_of: Mapping[str, frozenset[str]]

    @classmethod
    def of(cls, times: OperatorTimes, program: Sequence[Operator]) -> _Again:
        graph, read = times.graph, _read(times)
        remat_segments = segments_of([FusionGroup((op,), ()) for op in program], times.costing, times.n_devices)
        segments = {program[number].name: node.segment for number, node in remat_segments.nodes.items()}
        own_us: dict[str, float] = {}
        sources: dict[str, frozenset[str]] = {}
        for op in program:
            if op.name not in segments:
                continue
            us, names = times.of[op.name].forward if op.name in times.of else 0.0, frozenset[str]()
            for _, tensor in op.operands:
                producer = graph.producers[tensor.name]
                if tensor.name in read or producer.type in SOURCES:
                    continue
                if producer.name in segments:
                    us, names = us + own_us[producer.name], names | sources[producer.name]
                elif graph.n_runs(tensor.name) > 1 or graph.n_micro_batches == 1:
                    names |= {producer.name}
            own_us[op.name], sources[op.name] = us, names
        return cls(segments, own_us, sources)


def _levels(remat: _Again, saved: Mapping[str, int]) -> tuple[dict[str, int], dict[str, int]]:
    """Return from which level on operators are rematerialized, and from which others are saved for that.

    Operators of equal layers have equal levels.
    """
    per_byte: dict[str, float] = {name: float(f"{us / saved[name]:.6e}") for name, us in remat.own_us.items() if saved[name]}
    ratio_bytes = Counter[float]()
    for name, ratio in per_byte.items():
        ratio_bytes[ratio] += saved[name]
    total, n_bytes, level, end = sum(ratio_bytes.values()), 0, 0, 0.0
    level_of = {}
    for ratio in sorted(ratio_bytes):
        if n_bytes >= end:
            level, end = level + 1, (n_bytes // (total / LEVELS) + 1) * (total / LEVELS)
        level_of[ratio] = level
        n_bytes += ratio_bytes[ratio]
    levels = {name: level_of[ratio] for name, ratio in per_byte.items()}
    save_levels: dict[str, int] = {}
    for name, level in levels.items():
        for producer in remat.made_of[name]:
            save_levels[producer] = min(level, save_levels.get(producer, level))
    return levels, save_levels


def _program(graph: Graph) -> list[Operator]:
    names = {op.name for op in graph.step_operators}
    operators = graph.operators.values()
    return [op for op in operators if op.name in names and op.type not in SOURCES and op.updates is None]


def _read(times: OperatorTimes) -> set[str]:
    """Return the names of the tensors that the backward pass reads, and that the program makes in each micro-batch."""
    return {name for name in times.costing.saved if times.graph.producers[name].type != VARIABLE}


def _held(graph: Graph, program: Sequence[Operator]) -> tuple[np.ndarray, np.ndarray]:
    """Return the bytes that are held whatever a step saves, and the number of trained variables, int64[N + 1]."""
    held_bytes, n_trained = np.zeros((2, len(program)), np.int64)
    sources: set[str] = set()
    for place, op in enumerate(program):
        names = {graph.producers[tensor.name].name for _, tensor in op.operands} - sources
        for producer in (graph.operators[name] for name in names):
            if producer.is_trainable:
                slots = max((update.slots for update in graph.full_batch.updates.get(producer.name, ())), default=0)
                held_bytes[place] += (2 + slots) * producer.result.mem_bytes
                n_trained[place] += 1
            elif producer.type == PLACEHOLDER:
                held_bytes[place] += graph.full_batch.tensors[producer.result.name].mem_bytes
        sources |= names
    return _summed(held_bytes), _summed(n_trained)


def _crossing(program: Sequence[Operator]) -> np.ndarray:
    """Return the bytes of a micro-batch that cross at each place."""
    last = {tensor.name: place for place, op in enumerate(program) for _, tensor in op.operands}
    released = Counter[int]()
    totals, alive = [0], 0
    for place, op in enumerate(program):
        for tensor in op.outputs:
            if last.get(tensor.name, place) > place:
                alive += tensor.mem_bytes
                released[last[tensor.name]] += tensor.mem_bytes
        alive -= released[place]
        totals.append(alive)
    return np.array(totals)


def _summed(values: np.ndarray) -> np.ndarray:
    """Return sums before each place, and of all: [..., N] to [..., N + 1]."""
    start = np.zeros((*values.shape[:-1], 1), values.dtype)
    return np.concatenate([start, values.cumsum(axis=-1)], axis=-1)
