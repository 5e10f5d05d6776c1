"""Simulate all ranks of a mesh in NumPy: the oracle for real communicators, by the same code for packing and unpacking."""

from __future__ import annotations

from collections.abc import Sequence

from .halo import HaloStep
from .layout import Axes, Shape
from .mesh import Mesh
from .path import Path
from .rank_steps import as_rank
from .steps import Step
from .summing import Array, reduce_in_order


def simulate(path: Path, shards: Sequence[Array]) -> list[Array]:
    """Return the shards of all ranks at the end of the path, from those at its start."""
    current = list(shards)
    for step in path.steps:
        current = simulate_step(step, path.shape, current)
    return current


def simulate_step(step: Step | HaloStep, shape: Shape, shards: Sequence[Array]) -> list[Array]:
    mesh = step.source.mesh
    ranks = [as_rank(step, shape, rank) for rank in range(mesh.n_devices)]
    if not step.communicates:
        return [of_rank.apply_local(shard) for of_rank, shard in zip(ranks, shards, strict=True)]
    sent = [of_rank.pack(shard) for of_rank, shard in zip(ranks, shards, strict=True)]
    results = []
    for rank, (of_rank, shard) in enumerate(zip(ranks, shards, strict=True)):
        group = mesh.group(step.group_axes, rank)
        results.append(of_rank.unpack(shard, [sent[member][group.index(rank)] for member in group]))
    return results


def simulate_all_reduce(shards: Sequence[Array], mesh: Mesh, axes: Axes, op: str = "sum") -> list[Array]:
    """Return each rank's result of an elementwise reduction over its group, as :meth:`Communicator.all_reduce` does it."""
    groups = (mesh.group(tuple(sorted(axes)), rank) for rank in range(mesh.n_devices))
    return [reduce_in_order([shards[member] for member in group], op) for group in groups]
