"""Simulate all ranks of a mesh in NumPy: the oracle for real communicators, by the same code for packing and unpacking."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .halo import HaloStep, RankHalo
from .layout import Axes, Layout, Shape
from .mesh import Mesh
from .path import Path
from .rank_steps import rank_step
from .steps import Step
from .summing import Array, reduce_in_order


def scatter(array: Array, layout: Layout, rng: np.random.Generator | None = None) -> list[Array]:
    """Return the shard of each rank, in C-contiguous copies.

    Where the layout is partial the shards are summands of the array: integers drawn from ``rng`` (a fixed seed if None)
    on all coordinates but the last, which has the rest. They add up exactly where the array holds integers.

    Raises:
        ValueError: the layout does not fit the array.
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
    """Return the tensor of ``shape`` from the shards of all ranks.

    Raises:
        ValueError: a shard has the wrong shape, or replicas differ.
    """
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


def simulate(path: Path, shards: Sequence[Array]) -> list[Array]:
    """Return the shards of all ranks at the end of the path, from those at its start."""
    current = list(shards)
    for step in path.steps:
        current = simulate_step(step, path.shape, current)
    return current


def simulate_step(step: Step | HaloStep, shape: Shape, shards: Sequence[Array]) -> list[Array]:
    """Return the shards of all ranks after one step."""
    if isinstance(step, HaloStep):
        return _simulate_halo(step, shape, shards)
    mesh = step.source.mesh
    ranks = [rank_step(step, shape, rank) for rank in range(mesh.n_devices)]
    if not step.communicates:
        return [of_rank.apply_local(shard) for of_rank, shard in zip(ranks, shards, strict=True)]
    sent = [of_rank.pack(shard) for of_rank, shard in zip(ranks, shards, strict=True)]
    results = []
    for rank, of_rank in enumerate(ranks):
        group = mesh.group(step.group_axes, rank)
        results.append(of_rank.unpack([sent[member][group.index(rank)] for member in group]))
    return results


def _simulate_halo(step: HaloStep, shape: Shape, shards: Sequence[Array]) -> list[Array]:
    mesh = step.layout.mesh
    ranks = [RankHalo.of(step, shape, rank) for rank in range(mesh.n_devices)]
    sent = [of_rank.pack(shard) for of_rank, shard in zip(ranks, shards, strict=True)]
    results = []
    for rank, (of_rank, shard) in enumerate(zip(ranks, shards, strict=True)):
        group = mesh.group(step.group_axes, rank) if step.communicates else ()
        results.append(of_rank.unpack(shard, [sent[member][group.index(rank)] for member in group]))
    return results


def simulate_all_reduce(shards: Sequence[Array], mesh: Mesh, axes: Axes, op: str = "sum") -> list[Array]:
    """Return each rank's result of an elementwise reduction over its group, as :meth:`Communicator.all_reduce` does it."""
    groups = (mesh.group(tuple(sorted(axes)), rank) for rank in range(mesh.n_devices))
    return [reduce_in_order([shards[member] for member in group], op) for group in groups]
