"""Carry out a step on one rank: the same code for the simulation and for real communicators.

The geometry of every step follows from the blocks' bounds alone. In an all-gather or an all-to-all, rank r sends member
m that part of r's source shard that lies in m's target shard. A reduce-scatter does the same and sums the parts that
arrive. This covers uneven blocks and any order of axes. A group's members are ordered by rank.

Where the parts follow each other in memory (along the leading dimension) they are sent from the tensor itself and
received straight into the result, without copies. Otherwise they are packed and unpacked, which takes memory beside the
tensor: a large step is done in rounds, each with a slab of every part, so that it takes no more than ``ROUND_BYTES``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from .bounds import Slices, extents, intersection, packed, relative
from .communicator import Communicator
from .halo import HaloStep, RankHalo, rank_halo
from .layout import Axes, Shape, block_bounds
from .path import Path
from .steps import COMMUNICATING, Step
from .summing import Array, reduce_in_order

ROUND_BYTES = 1 << 23
"""The bytes that are packed, unpacked or summed at a time.

So little stays in caches. Measured with 192 MB between two ranks on shared memory, all at once and in rounds of 16, 8, 4
and 2 MiB: the all-gather along the second dimension took 84, 85, 71, 71, 74 ms, the reduce-scatter along it 82, 72, 66,
65, 66 ms, and the sum 74, 72, 68, 71, 80 ms.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStep:
    """A step as one rank carries it out: the parts of its shard that it sends, and where received parts belong."""

    kind: str
    axes: Axes  # of the communicator, ascending
    local_shape: Shape
    result_shape: Shape
    send_slices: tuple[Slices, ...]  # of the local shard, for each member; empty where all of it goes to all members
    sends_in_place: bool  # whether the parts that are sent, one after the other in memory, are the local shard
    recv_shapes: tuple[Shape, ...]
    recv_slices: tuple[Slices, ...]  # of the result, for each member; empty where the received parts are summed
    receives_in_place: bool  # whether the received parts, one after the other in memory, are the result
    local_slices: Slices  # of a local step: the slices of the local shard (slice) or of the result (pad)
    is_first: bool  # whether the rank is at coordinate 0 of the step's axes, where "keep" keeps the value
    most_packed: int  # the most elements that any rank packs or unpacks

    def n_rounds(self, item_bytes: int) -> int:
        """Return the number of rounds, which is the same on all ranks."""
        return max(1, -(-self.most_packed * item_bytes // ROUND_BYTES))

    def pack(self, local: Array, buffer: Array | None = None) -> list[Array]:
        """Return the C-contiguous arrays to send, one per member, which follow each other in ``local`` or ``buffer``.

        Raises:
            ValueError: ``local`` does not have the shape of the rank's shard.
        """
        if local.shape != self.local_shape:
            raise ValueError(f"{self.kind} got a shard of shape {local.shape}, expected {self.local_shape}")
        if not self.send_slices:
            return [np.asarray(local, order="C")] * len(self.recv_shapes)
        parts = [local[part] for part in self.send_slices]
        if self.sends_in_place and local.flags.c_contiguous:
            return parts
        return packed(parts, np.empty(local.size, local.dtype) if buffer is None else buffer)

    def unpack(self, local: Array, received: Sequence[Array], out: Array | None = None) -> Array:
        """Return the result of the step, made from the arrays that the members sent, in ``out`` where given.

        What the rank keeps of ``local`` is among these arrays, unlike in :meth:`.halo.RankHalo.unpack`.
        """
        if out is None:
            out = np.empty(self.result_shape, received[0].dtype)
        if not self.recv_slices:
            return reduce_in_order(received, out=out)
        for part, shard in zip(self.recv_slices, received, strict=True):
            out[part] = shard
        return out

    def apply_local(self, local: Array, out: Array | None = None) -> Array:
        """Return the result of a local step, in ``out`` where given; it never shares memory with ``local``.

        Raises:
            ValueError: ``local`` does not have the shape of the rank's shard.
        """
        if local.shape != self.local_shape:
            raise ValueError(f"{self.kind} got a shard of shape {local.shape}, expected {self.local_shape}")
        if out is None:
            out = np.empty(self.result_shape, local.dtype)
        if self.kind == "slice":
            out[...] = local[self.local_slices]
        elif self.kind == "keep" and self.is_first:
            out[...] = local
        else:
            out[...] = 0
            if self.kind == "pad":
                out[self.local_slices] = local
        return out

    def run(self, local: Array, communicator: Communicator) -> Array:
        """Carry out the step; the result is new memory."""
        if self.kind not in COMMUNICATING:
            return self.apply_local(local, communicator.empty(self.result_shape, local.dtype))
        n_rounds = self.n_rounds(local.dtype.itemsize)
        if n_rounds > 1:
            return self._run_in_rounds(local, communicator, n_rounds)
        is_packed = self.send_slices and not (self.sends_in_place and local.flags.c_contiguous)
        joined = communicator.scratch("send", local.size, local.dtype) if is_packed else local
        sends = self.pack(local, joined)
        if self.kind == "all_reduce":
            return communicator.all_reduce(self.axes, sends[0])
        if self.kind == "reduce_scatter":
            return communicator.reduce_scatter(self.axes, sends, self.result_shape, joined)
        result = communicator.empty(self.result_shape, local.dtype)
        out = result.reshape(-1) if self.receives_in_place else communicator.scratch("receive", result.size, local.dtype)
        if self.kind == "all_gather":
            received = communicator.all_gather(self.axes, sends[0], self.recv_shapes, out)
        else:
            received = communicator.all_to_all(self.axes, sends, self.recv_shapes, out, joined)
        return result if self.receives_in_place else self.unpack(local, received, result)

    def _run_in_rounds(self, local: Array, communicator: Communicator, n_rounds: int) -> Array:
        result = communicator.empty(self.result_shape, local.dtype)
        tiles = [local[tile] for tile in self.send_slices] or [local]
        own = [result[tile] for tile in self.recv_slices] or [result]
        with communicator.rounds():
            for number in range(n_rounds):
                parts, places = ([tile[slab(tile.shape, n_rounds, number)] for tile in side] for side in (tiles, own))
                self._run_round(parts, places, communicator)
        return result

    def _run_round(self, parts: Sequence[Array], places: Sequence[Array], communicator: Communicator) -> None:
        """Send ``parts`` of the local shard, and receive into ``places`` of the result."""
        dtype, shapes, sends, joined = parts[0].dtype, [place.shape for place in places], parts, parts[0]
        if self.send_slices or not parts[0].flags.c_contiguous:
            joined = communicator.scratch("send", sum(part.size for part in parts), dtype)
            sends = packed(parts, joined)
        if self.kind == "reduce_scatter":
            places[0][...] = communicator.reduce_scatter(self.axes, sends, shapes[0], joined)
            return
        out = communicator.scratch("receive", sum(place.size for place in places), dtype)
        if self.kind == "all_gather":
            received = communicator.all_gather(self.axes, sends[0], shapes, out)
        else:
            received = communicator.all_to_all(self.axes, sends, shapes, out, joined)
        for place, shard in zip(places, received, strict=True):
            place[...] = shard


def slab(shape: Shape, n_slabs: int, number: int) -> Slices:
    """Return the slices of one of ``n_slabs`` slabs of an array.

    Slabs are cut along the first dimension that is long enough for all of them, else along the longest.
    """
    longest = max(range(len(shape)), key=lambda dim: shape[dim])
    axis = next((dim for dim, extent in enumerate(shape) if extent >= n_slabs), longest)
    return (*(slice(None),) * axis, slice(*block_bounds(shape[axis], n_slabs, number)))


@lru_cache(maxsize=65536)
def rank_step(step: Step, shape: Shape, rank: int) -> RankStep:
    """Return the step, on a tensor of global ``shape``, as ``rank`` carries it out."""
    source, target, mesh = step.source, step.target, step.source.mesh
    mine_before, mine_after = source.bounds(shape, rank), target.bounds(shape, rank)
    group = mesh.group(step.group_axes, rank) if step.communicates else ()
    sends: list[Slices] = []
    recvs: list[Slices] = []
    recv_shapes: list[Shape] = []
    for member in group:
        sent = intersection(mine_before, target.bounds(shape, member))
        received = intersection(source.bounds(shape, member), mine_after)
        if step.kind in ("all_to_all", "reduce_scatter"):
            sends.append(relative(sent, mine_before))
        if step.kind in ("all_to_all", "all_gather"):
            recvs.append(relative(received, mine_after))
        recv_shapes.append(extents(received))
    result_shape = extents(mine_after)
    local_slices: Slices = ()
    if step.kind == "slice":
        local_slices = relative(mine_after, mine_before)
    elif step.kind == "pad":
        local_slices = relative(mine_before, mine_after)
    sends_in_place = bool(sends) and _follow_in_memory(extents(mine_before), sends)
    receives_in_place = bool(recvs) and _follow_in_memory(result_shape, recvs)
    last = mesh.n_devices - 1  # where blocks are uneven, the last rank has the largest in each dimension
    if rank != last:
        most_packed = rank_step(step, shape, last).most_packed
    else:
        packed = math.prod(extents(mine_before)) if sends and not sends_in_place else 0
        most_packed = max(packed, math.prod(result_shape) if recvs and not receives_in_place else 0)
    return RankStep(
        kind=step.kind,
        axes=step.group_axes,
        local_shape=extents(mine_before),
        result_shape=result_shape,
        send_slices=tuple(sends),
        sends_in_place=sends_in_place,
        recv_shapes=tuple(recv_shapes),
        recv_slices=tuple(recvs),
        receives_in_place=receives_in_place,
        local_slices=local_slices,
        is_first=mesh.index_along(step.axes, rank) == 0,
        most_packed=most_packed,
    )


def _follow_in_memory(shape: Shape, tiles: Sequence[Slices]) -> bool:
    """Return whether tiles of an array of ``shape``, each C-contiguous, are the array when put one after the other.

    They are if each tile starts where those before it end: a tile that is not one run of memory puts the next one off.
    """
    filled = 0
    for tile in tiles:
        size = math.prod(part.stop - part.start for part in tile)
        if size and np.ravel_multi_index([part.start for part in tile], shape) != filled:
            return False
        filled += size
    return True


def as_rank(step: Step | HaloStep, shape: Shape, rank: int) -> RankStep | RankHalo:
    """Return a step of either sort as ``rank`` carries it out."""
    return rank_halo(step, shape, rank) if isinstance(step, HaloStep) else rank_step(step, shape, rank)


@dataclass(frozen=True, slots=True)
class RankPath:
    """A path as one rank carries it out: worked out once, run many times."""

    steps: tuple[RankStep | RankHalo, ...]

    @classmethod
    def of(cls, path: Path, rank: int) -> RankPath:
        return cls(tuple(as_rank(step, path.shape, rank) for step in path.steps))

    def run(self, local: Array, communicator: Communicator) -> Array:
        """Return the rank's shard at the end of the path. The result is new memory, unless the path is empty."""
        for step in self.steps:
            local = step.run(local, communicator)
        return local
