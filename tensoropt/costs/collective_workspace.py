"""Compute the memory that collectives take beside what they read and write.

:class:`MpiCommunicator` keeps one buffer of each name, as large as the largest that any collective has needed. TensorFlow's
collectives are operators on tensors that live while they run: packed, padded, received, added. NCCL keeps buffers for each
group of GPUs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from ..reschedule.halo import RankHalo
from ..reschedule.layout import Axes, Shape
from ..reschedule.mesh import Mesh
from ..reschedule.rank_steps import ROUND_BYTES, RankStep, slab

CONNECTION_BYTES, NETWORK_BYTES = 14 << 20, 24 << 20
"""NCCL's buffers on a GPU for each channel: to a GPU of its machine, and in a ring through the network.

FIFOs of three protocols have 4 (``NCCL_BUFFSIZE``), 4.7 and 0.5 MiB (``src/init.cc``), in pages of 2 MiB: for 7 GPUs x 32
channels 8 H100s took 3.28 GB (NVIDIA/nccl#1685). To a network each way has as much, and pairs share 4 MiB (``net.cc``).
"""
CHANNELS, CHANNELS_BETWEEN_MACHINES = ((2e11, 32, 32), (7e10, 12, 2), (0.0, 4, 2)), (16, 4)
"""By the least rate of a machine's links, NCCL's channels in a ring and between two GPUs; the most in a group over machines.

A pair has 2 for each NVLink (``src/graph/paths.cc``). 8 V100s: aws/aws-k8s-tester#454; PCIe: NVIDIA/nccl#1706."""

GATHER_AND_ADD_BYTES = 1 << 18
"""An all-reduce that would receive at most this many bytes by an all-gather uses one, and adds.

Saving one message pays up to about this size.
"""


def workspace_bytes(step: RankStep, item_bytes: int) -> dict[str, int]:
    """Return the bytes that a step needs of each buffer, by the buffer's name, on the rank that ``step`` describes.

    Where the step runs in rounds, these are the bytes of the largest round.
    """
    n_members, n_local = len(step.recv_shapes), math.prod(step.local_shape)
    if step.kind == "all_reduce":
        if n_members > 2 and n_local * item_bytes * n_members <= GATHER_AND_ADD_BYTES:
            return {"reduce": n_local * n_members * item_bytes}
        limit = max(1, ROUND_BYTES // item_bytes) * (2 if n_members == 2 else 1)
        chunk = -(-min(n_local, limit) // n_members)
        return {"reduce": chunk * (n_members if n_members > 2 else 1) * item_bytes}
    n_rounds = step.n_rounds(item_bytes)
    n_bytes = {}
    if step.send_slices:
        sent = [tuple(part.stop - part.start for part in tile) for tile in step.send_slices]
        if not step.sends_in_place or n_rounds > 1:
            n_bytes["send"] = _in_rounds(sent, n_rounds) * item_bytes
    elif n_rounds > 1 and len(slab(step.local_shape, n_rounds, 0)) > 1:
        n_bytes["send"] = _in_rounds([step.local_shape], n_rounds) * item_bytes
    if step.kind == "reduce_scatter":
        largest = max(_in_rounds([tile], n_rounds) for tile in sent)
        rounds_within = max(1, -(-largest * n_members * item_bytes // ROUND_BYTES))
        own = _in_rounds([step.result_shape], n_rounds)
        n_bytes["reduce"] = -(-own // rounds_within) * n_members * item_bytes
    elif n_members and (not step.receives_in_place or n_rounds > 1):
        n_bytes["receive"] = _in_rounds(step.recv_shapes, n_rounds) * item_bytes
    return n_bytes


def in_graph_bytes(step: RankStep | RankHalo, item_bytes: int) -> int:
    """Return the most bytes that TensorFlow's operators for a step have at once beside its operand and its result."""
    if isinstance(step, RankHalo):
        tiles = [math.prod(part.stop - part.start for part in tile) for tile in (*step.before.parts, *step.after.parts)]
        # The last rank may have one neighbour, where others have two.
        return (4 * sum(tiles) + 2 * len(step.before.parts) * max(tiles)) * item_bytes
    n, local, result = len(step.recv_shapes), math.prod(step.local_shape), math.prod(step.result_shape)
    wider = 2 if item_bytes <= 2 else 1  # numbers of 16 bits are added in float32
    if step.kind == "all_reduce" and n == 2:
        return max(-(-local // 2) * wider, (wider - 1) * 2 * local) * item_bytes
    sent = [math.prod(part.stop - part.start for part in tile) for tile in step.send_slices]
    received = [math.prod(shape) for shape in step.recv_shapes]
    if step.kind == "all_reduce":
        received = [-(-local // n)] * n
    largest = max(*received, *sent)
    is_even, padded = min(*received, *sent) == largest, n * largest
    alive = [padded + (largest if step.kind == "all_gather" else padded)]
    if sent:
        # Parts are cut out and put in a row; where they are uneven, out of that again, padded, and in another row.
        alive.append((0 if step.sends_in_place else 2 * local) if is_even else 3 * local + 2 * padded)
    if step.kind in ("all_reduce", "reduce_scatter"):
        alive.append(2 * wider * padded + wider * largest)
    elif not is_even or not step.receives_in_place:
        alive.append(padded + 2 * result)
    elif step.kind == "all_gather":
        alive = [result]
    return max(0, max(alive) - result) * item_bytes * (2 if item_bytes == 1 else 1)  # bytes move as float16


def nccl_bytes(mesh: Mesh, axes: Axes, bytes_per_s: float) -> int:
    """Return the bytes of a GPU that NCCL's communicator of a group takes; GPUs of a machine have links of a rate."""
    inner = len(mesh.levels) - 1
    n_here = mesh.size_of(tuple(axis for axis in axes if mesh.level_of_axis[axis] == inner))
    in_ring, in_pair = next(channels for least, *channels in CHANNELS if bytes_per_s >= least)
    if mesh.size_of(axes) == n_here:
        return (in_ring + in_pair * (n_here - 1)) * CONNECTION_BYTES
    in_ring, in_pair = map(min, (in_ring, in_pair), CHANNELS_BETWEEN_MACHINES)
    return in_ring * NETWORK_BYTES + in_pair * (n_here - 1) * CONNECTION_BYTES


def _in_rounds(tiles: Iterable[Shape], n_rounds: int) -> int:
    """Return the elements of one round: the sum, over tiles, of each tile's largest slab."""
    if n_rounds == 1:
        return sum(map(math.prod, tiles))
    extents = [(math.prod(tile), tile[len(slab(tile, n_rounds, 0)) - 1]) for tile in tiles]
    return sum(size // max(1, extent) * -(-extent // n_rounds) for size, extent in extents)
