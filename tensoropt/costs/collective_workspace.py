"""Compute the memory that :class:`MpiCommunicator` keeps from one collective to the next.

It keeps one buffer of each name, as large as the largest that any collective has needed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from ..reschedule.layout import Shape
from ..reschedule.rank_steps import ROUND_BYTES, RankStep, slab

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
        most = max(1, ROUND_BYTES // item_bytes) * (2 if n_members == 2 else 1)
        chunk = -(-min(n_local, most) // n_members)
        return {"reduce": chunk * (n_members if n_members > 2 else 1) * item_bytes}
    n_rounds = step.n_rounds(item_bytes)
    found = {}
    if step.send_slices:
        sent = [tuple(part.stop - part.start for part in tile) for tile in step.send_slices]
        if not step.send_in_place or n_rounds > 1:
            found["send"] = _in_rounds(sent, n_rounds) * item_bytes
    elif n_rounds > 1 and len(slab(step.local_shape, n_rounds, 0)) > 1:
        found["send"] = _in_rounds([step.local_shape], n_rounds) * item_bytes
    if step.kind == "reduce_scatter":
        most = max(_in_rounds([tile], n_rounds) for tile in sent)
        rounds_within = max(1, -(-most * n_members * item_bytes // ROUND_BYTES))
        own = _in_rounds([step.result_shape], n_rounds)
        found["reduce"] = -(-own // rounds_within) * n_members * item_bytes
    elif n_members and (not step.recv_in_place or n_rounds > 1):
        found["receive"] = _in_rounds(step.recv_shapes, n_rounds) * item_bytes
    return found


def _in_rounds(tiles: Iterable[Shape], n_rounds: int) -> int:
    """Return the elements of one round: the sum, over tiles, of each tile's largest slab."""
    return sum(_largest_slab(tile, n_rounds) if n_rounds > 1 else math.prod(tile) for tile in tiles)


def _largest_slab(shape: Shape, n_slabs: int) -> int:
    along = len(slab(shape, n_slabs, 0)) - 1
    return math.prod(shape) // max(1, shape[along]) * -(-shape[along] // n_slabs)
