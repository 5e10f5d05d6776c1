"""Cut a tensor into the shards of all ranks, and put it together again, in NumPy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tensoropt.reschedule.layout import Layout, Shape
from tensoropt.reschedule.summing import Array, reduce_in_order


def scatter(array: Array, layout: Layout, rng: np.random.Generator | None = None) -> list[Array]:
    """Return the shard of each rank, in C-contiguous copies.

    Where the layout is partial the shards are summands of the array: integers drawn from ``rng`` (a fixed seed if None)
    on all coordinates but the last, which has the rest. They add up exactly where the array holds integers.
    """
    if not layout.fits(array.shape):
        raise ValueError(f"layout {layout} on mesh {layout.mesh} leaves blocks of {array.shape} empty; split less")
    mesh, partial = layout.mesh, layout.partial
    n_summands = mesh.size_of(partial)
    rng = np.random.default_rng(0) if rng is None else rng
    summands = [rng.integers(1, 8, array.shape).astype(array.dtype) for _ in range(n_summands - 1)]
    rest = array.copy()
    for summand in summands:
        rest = (rest - summand).astype(array.dtype)
    summands.append(rest)
    return [
        np.array(summands[mesh.index_along(partial, rank)][_slices(layout, array.shape, rank)], order="C")
        for rank in range(mesh.n_devices)
    ]


def gather(shards: Sequence[Array], layout: Layout, shape: Shape) -> Array:
    """Return the tensor of ``shape`` from the shards of all ranks."""
    mesh, partial = layout.mesh, layout.partial
    summands = [np.zeros(shape, shards[0].dtype) for _ in range(mesh.size_of(partial))]
    first_holder: dict[tuple[int, int], int] = {}
    for rank, shard in enumerate(shards):
        if shard.shape != layout.local_shape(shape, rank):
            expected = layout.local_shape(shape, rank)
            raise ValueError(f"rank {rank} has a shard of shape {shard.shape} in layout {layout}, expected {expected}")
        place = (mesh.index_along(partial, rank), mesh.index_along(layout.split_axes, rank))
        replica = first_holder.setdefault(place, rank)
        if shards[replica].tobytes() != shard.tobytes():
            raise ValueError(f"ranks {replica} and {rank} are replicas in layout {layout}, but their shards differ")
        summands[place[0]][_slices(layout, shape, rank)] = shard
    return reduce_in_order(summands)


def _slices(layout: Layout, shape: Shape, rank: int) -> tuple[slice, ...]:
    return tuple(slice(start, end) for start, end in layout.bounds(shape, rank))
