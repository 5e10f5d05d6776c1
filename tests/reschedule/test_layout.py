"""Meshes, blocks, layouts and gradient layouts."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles.layouts import all_layouts

from tensoropt.reschedule.layout import Layout, block_bounds
from tensoropt.reschedule.mesh import Mesh, prime_factors

MESHES = [Mesh.of(1), Mesh.of(2), Mesh.of(3), Mesh.of(4), Mesh.of(2, 3), Mesh.of(2, 4), Mesh.of(12)]


@given(st.integers(1, 10**6))
def test_prime_factors_multiply_back(count: int) -> None:
    factors = prime_factors(count)
    assert math.prod(factors) == count and list(factors) == sorted(factors)
    assert all(len(prime_factors(factor)) == 1 for factor in set(factors) if factor < 10**4)


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_ranks_and_coordinates(mesh: Mesh) -> None:
    assert mesh.n_devices == math.prod(level.count for level in mesh.levels)
    assert [mesh.rank(mesh.coordinates(rank)) for rank in range(mesh.n_devices)] == list(range(mesh.n_devices))
    for axis in mesh.axes:
        for rank in range(mesh.n_devices):
            group = mesh.group((axis,), rank)
            assert [mesh.coordinates(member)[axis] for member in group] == list(range(mesh.sizes[axis]))
            assert rank in group


def test_a_mesh_says_its_levels() -> None:
    mesh = Mesh.of(2, 12)
    assert str(mesh) == "(2 | 2, 2, 3)" and mesh.sizes == (2, 2, 2, 3) and mesh.level_of_axis == (0, 1, 1, 1)
    assert mesh.group((1, 0), 0) == (0, 12, 6, 18)


@given(st.integers(1, 500), st.integers(1, 40), st.integers(1, 12))
def test_block_laws(extent: int, n_blocks: int, finer: int) -> None:
    blocks = [block_bounds(extent, n_blocks, index) for index in range(n_blocks)]
    assert blocks[0][0] == 0 and blocks[-1][1] == extent
    assert all(before[1] == after[0] for before, after in pairwise(blocks))
    sizes = [end - start for start, end in blocks]
    assert max(sizes) - min(sizes) <= 1 and max(sizes) == -(-extent // n_blocks)
    assert min(sizes) > 0 or extent < n_blocks
    for index, (start, end) in enumerate(blocks):
        parts = [block_bounds(extent, n_blocks * finer, index * finer + part) for part in range(finer)]
        assert (parts[0][0], parts[-1][1]) == (start, end)


@pytest.mark.parametrize("mesh", MESHES[:-1], ids=str)
def test_text_is_read_back(mesh: Mesh) -> None:
    for shape in [(), (64,), (64, 64), (64, 64, 64)]:
        layouts = all_layouts(mesh, shape)
        assert len({str(layout) for layout in layouts}) == len(layouts)
        assert [Layout.parse(mesh, str(layout)) for layout in layouts] == list(layouts)


def test_layouts_that_are_not_any() -> None:
    mesh = Mesh.of(2, 2)
    with pytest.raises(ValueError, match="occurs twice"):
        Layout.parse(mesh, "[a, a]")
    with pytest.raises(ValueError, match=r"mesh \(2 \| 2\) does not have"):
        Layout.parse(mesh, "[c, -]")
    for text in ("a, b", "[A]", "[a,]", "[a-]", "[a b]"):
        with pytest.raises(ValueError, match="expected something like"):
            Layout.parse(mesh, text)
    assert Layout(mesh, ((),), (1, 0)) == Layout(mesh, ((),), (0, 1))


def test_shards_tile_the_tensor() -> None:
    mesh, shape = Mesh.of(2, 3), (5, 7)
    for layout in all_layouts(mesh, shape, partial=False):
        elements = sum(math.prod(layout.local_shape(shape, rank)) for rank in range(mesh.n_devices))
        n_replicas = mesh.n_devices // mesh.size_of(layout.split_axes)
        assert elements == math.prod(shape) * n_replicas
        largest = layout.largest_local_shape(shape)
        assert largest == tuple(map(max, *(layout.local_shape(shape, rank) for rank in range(mesh.n_devices))))
        assert layout.is_even(shape) == (len({layout.local_shape(shape, rank) for rank in range(6)}) == 1)
