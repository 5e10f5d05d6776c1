"""Decide which rank writes which part of which variable, and how SaveV2 names a part.

A variable's layout cuts it into shards, and a shard has one holder, or several that hold replicas. The holders share the
work: they cut the shard into as many parts as there are holders, and each writes its own. So a model that is replicated on N
ranks is saved N times as fast as by one rank. Small shards have one part, and the holders of different variables take turns.
Every element of a variable is in exactly one part.

A part is also at most ``PART_BYTES`` long. RestoreV2 reads a stored part completely, even for a few of its rows, so a rank
must have room for the longest part beside its own shards.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import tensorflow as tf

from ...lowering.variables import StateEntry
from ...reschedule.layout import Shape, block_bounds
from .variable import in_slices

Bounds = tuple[tuple[int, int], ...]

PART_BYTES = 32 << 20
# A part takes a few hundred bytes in the index and some microseconds: shorter parts are not worth more writers.
SHARED_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class VariablePart:
    """The elements of a variable that one rank writes.

    Attributes:
        bounds: for each dimension, start and end in the global variable.
    """

    variable: StateEntry
    bounds: Bounds

    @property
    def n_bytes(self) -> int:
        return math.prod(end - start for start, end in self.bounds) * int(tf.as_dtype(self.variable.dtype).size)

    @property
    def spec(self) -> str:
        """SaveV2's name of the slice."""
        return slice_spec(self.variable.shape, self.bounds)


def slice_spec(shape: Shape, bounds: Bounds) -> str:
    """Return how SaveV2 and RestoreV2 name a slice; empty for the global variable.

    ``6 2 0,3:-`` are the first 3 rows of 6 by 2.

    >>> slice_spec((6, 2), ((0, 3), (0, 2)))
    '6 2 0,3:-'
    """
    slices = [
        "-" if (start, end) == (0, extent) else f"{start},{end - start}"
        for (start, end), extent in zip(bounds, shape, strict=True)
    ]
    if all(text == "-" for text in slices):
        return ""
    return " ".join(map(str, shape)) + " " + ":".join(slices)


def parts_of_device(variables: Sequence[StateEntry], device: int) -> Iterator[VariablePart]:
    """Yield the parts that a device writes of those variables that are saved in slices."""
    for turn, variable in enumerate(variables):
        rank = device - variable.first_device
        if in_slices(variable) and 0 <= rank < variable.layout.mesh.n_devices:
            for bounds in _bounds_of_rank(variable, rank, turn):
                yield VariablePart(variable, bounds)


def _bounds_of_rank(variable: StateEntry, rank: int, turn: int) -> list[Bounds]:
    shard = variable.layout.bounds(variable.shape, rank)
    n_bytes, holders = VariablePart(variable, shard).n_bytes, variable.layout.holders(rank)
    n_writers = len(holders) if n_bytes >= SHARED_BYTES * len(holders) else 1
    writers = [holders[(turn + i) % len(holders)] for i in range(n_writers)]
    if not n_bytes or rank not in writers:
        return []
    n_parts = -(-max(n_bytes // n_writers, 1) // PART_BYTES) * n_writers
    parts = _cut(shard, n_parts)
    first, end = block_bounds(len(parts), n_writers, writers.index(rank))
    return parts[first:end]


def _cut(shard: Bounds, n_parts: int) -> list[Bounds]:
    """Cut a shard into parts along its first dimension if that is long enough, else along the longest."""
    extents = [end - start for start, end in shard]
    if n_parts == 1 or not extents:
        return [shard]
    dim = 0 if extents[0] >= n_parts else extents.index(max(extents))
    start, n_blocks = shard[dim][0], min(n_parts, extents[dim])
    blocks = [block_bounds(extents[dim], n_blocks, i) for i in range(n_blocks)]
    return [(*shard[:dim], (start + first, start + end), *shard[dim + 1 :]) for first, end in blocks]
