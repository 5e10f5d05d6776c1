"""Tensors that go from some devices to others: each element once, from a device that has it, and OneFlow's bytes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest
from oracles.layouts import all_layouts
from oracles.shards import gather, scatter

from tensoropt.reschedule.between_machines import bytes_between
from tensoropt.reschedule.cross_mesh import CrossMesh
from tensoropt.reschedule.layout import Layout
from tensoropt.reschedule.mesh import Mesh
from tensoropt.reschedule.path import ReschedulingError

MESHES = (
    (Mesh.of(2), Mesh.of(2)), (Mesh.of(2, 2), Mesh.of(2, 2)), (Mesh.of(2, 2), Mesh.of(3)),
    (Mesh.of(4), Mesh.of(1)), (Mesh.of(1), Mesh.of(4)),
)  # fmt: skip
SHAPES = ((5, 7), (4, 8, 3))
DEVICES = range(16)  # each a machine of its own


def ways(source: Mesh, target: Mesh, shape: tuple[int, ...], devices: tuple[tuple[int, ...], tuple[int, ...]]):
    pairs = product(all_layouts(source, shape, partial=False), all_layouts(target, shape, partial=False))
    return [CrossMesh(*pair, shape, *devices) for pair in pairs]


def lacking(way: CrossMesh, machine_of: Sequence[int]) -> int:
    """Return how many elements the machines want that none of their own devices has: no way sends fewer between machines."""
    total = 0
    for machine in sorted({machine_of[device] for device in way.target_devices}):
        missing = np.zeros(way.shape, bool)
        for layout, devices, value in (
            (way.target, way.target_devices, True), (way.source, way.source_devices, False),
        ):  # fmt: skip
            for rank, device in enumerate(devices):
                if machine_of[device] == machine:
                    missing[tuple(slice(*each) for each in layout.bounds(way.shape, rank))] = value
        total += int(missing.sum())
    return total


def disjoint(source: Mesh, target: Mesh) -> tuple[tuple[int, ...], tuple[int, ...]]:
    n = source.n_devices
    return tuple(range(n)), tuple(range(n, n + target.n_devices))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("meshes", MESHES, ids=str)
def test_every_pair_of_layouts_brings_the_tensor_over(meshes: tuple[Mesh, Mesh], shape: tuple[int, ...]) -> None:
    tensor = np.random.default_rng(0).integers(0, 1000, shape)
    for way in ways(*meshes, shape, disjoint(*meshes)):
        shards = way.simulate(scatter(tensor, way.source))
        assert np.array_equal(gather(shards, way.target, shape), tensor)
        needed = sum(np.prod(way.target.local_shape(shape, rank)) for rank in range(meshes[1].n_devices))
        assert bytes_between(way, DEVICES) == needed, "each device gets just what it needs"


@pytest.mark.parametrize(("p1", "p2"), [(2, 2), (4, 2), (2, 4), (4, 1), (3, 3)])
def test_bytes_between_disjoint_devices_are_those_of_oneflow(p1: int, p2: int) -> None:
    """Table 2, over one dimension: |T| to a split layout, p2 |T| to a replicated one."""
    source, target, shape = Mesh.of(p1), Mesh.of(p2), (12, 12)
    for way in ways(source, target, shape, disjoint(source, target)):
        copies = p2 // way.target.mesh.size_of(way.target.split_axes)
        assert bytes_between(way, DEVICES) == 12 * 12 * copies


@pytest.mark.parametrize("p", [2, 3, 4])
def test_bytes_on_the_same_devices_are_those_of_oneflow(p: int) -> None:
    """Table 2: nothing where the layouts are equal or the source is replicated, (p - 1) / p |T| from one split to another,
    (p - 1) |T| from split to replicated."""
    mesh, shape = Mesh.of(p), (12, 12)
    devices = tuple(range(p))
    size = 12 * 12
    for way in ways(mesh, mesh, shape, (devices, devices)):
        if len(mesh.sizes) > 1 and not {len(way.source.split_axes), len(way.target.split_axes)} <= {0, len(mesh.sizes)}:
            continue  # the table has whole meshes only
        split, wanted = ([bool(axes) for axes in layout.splits] for layout in (way.source, way.target))
        if sum(split) > 1 or sum(wanted) > 1 or (split == wanted and way.source != way.target):
            continue
        expected = 0 if not any(split) or split == wanted else (p - 1) * size if not any(wanted) else (p - 1) * size // p
        assert bytes_between(way, DEVICES) == expected, way


def test_nested_devices_keep_what_they_have() -> None:
    mesh, part, shape = Mesh.of(2, 2), Mesh.of(2), (8, 4)
    tensor = np.arange(32).reshape(shape)
    for way in ways(mesh, part, shape, ((0, 1, 2, 3), (2, 3))):
        assert np.array_equal(gather(way.simulate(scatter(tensor, way.source)), way.target, shape), tensor)
        assert bytes_between(way, DEVICES) == lacking(way, DEVICES)


def test_replicas_share_what_is_to_be_sent() -> None:
    replicated, split = Layout.replicated(Mesh.of(2), 1), Layout(Mesh.of(2), ((0,),))
    way = CrossMesh(replicated, split, (8,), (0, 1), (2, 3))
    assert [len(way.sent_by(rank)) for rank in (0, 1)] == [1, 1]


def test_what_cannot_be_sent_is_refused() -> None:
    mesh = Mesh.of(2)
    whole, partial = Layout.replicated(mesh, 1), Layout(mesh, ((),), (0,))
    with pytest.raises(ReschedulingError, match="complete the sums"):
        CrossMesh(partial, whole, (4,), (0, 1), (2, 3))
    with pytest.raises(ReschedulingError, match="2 devices"):
        CrossMesh(whole, whole, (4,), (0, 0), (2, 3))
    with pytest.raises(ReschedulingError, match="doesn't fit"):
        CrossMesh(Layout(mesh, ((0,),)), whole, (1,), (0, 1), (2, 3))
