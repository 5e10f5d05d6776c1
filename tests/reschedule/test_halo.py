"""Halo exchange against NumPy's padding and slicing, for any windows, extents, blocks and axes."""

from __future__ import annotations

from collections import Counter

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.shards import scatter

from tensoropt.reschedule.halo import HALO, LOWEST, ZERO, HaloStep, Window, Windows, rank_halo
from tensoropt.reschedule.layout import Layout, block_bounds
from tensoropt.reschedule.mesh import Mesh
from tensoropt.reschedule.path import Path
from tensoropt.reschedule.simulate import simulate, simulate_step

MESHES = (Mesh.of(2), Mesh.of(3), Mesh.of(2, 2), Mesh.of(2, 3))


@st.composite
def windows(draw: st.DrawFn, extent: int) -> Window:
    """Windows along a dimension, from ones that leave elements out to ones that lie wholly in the padding."""
    size, stride, dilation = draw(st.integers(1, 5)), draw(st.integers(1, 4)), draw(st.integers(1, 3))
    before = draw(st.integers(0, 2 * size))
    return Window(size, stride, dilation, before, extent, draw(st.integers(1, 12)))


@st.composite
def exchanges(draw: st.DrawFn) -> tuple[HaloStep, tuple[int, ...]]:
    """A step whose axes split the last two dimensions, or none, or the first as well, and its tensor's shape."""
    mesh = draw(st.sampled_from(MESHES))
    shape = (draw(st.integers(1, 3)), draw(st.integers(1, 12)), draw(st.integers(1, 9)))
    slid: Windows = (None, draw(windows(shape[1])), draw(st.one_of(st.none(), windows(shape[2]))))
    splits: list[tuple[int, ...]] = [(), (), ()]
    for axis in draw(st.permutations(mesh.axes)):
        dim = draw(st.sampled_from([0, 1, 1, 2, None]))
        if dim is None:
            continue
        longer = (*splits[dim], axis)
        window = slid[dim]
        if mesh.size_of(longer) <= (shape[dim] if window is None else window.most_blocks):
            splits[dim] = longer
    fill = draw(st.sampled_from([ZERO, LOWEST]))
    return HaloStep(HALO, Layout(mesh, tuple(splits)), slid, fill), shape


def framed(array: np.ndarray, step: HaloStep, rank: int) -> np.ndarray:
    """The elements that the rank's windows cover, cut by NumPy out of the padded tensor."""
    mesh, value = step.layout.mesh, 0 if step.fill == ZERO else -np.inf
    for dim, (window, axes) in enumerate(zip(step.windows, step.layout.splits, strict=True)):
        block = mesh.size_of(axes), mesh.index_along(axes, rank)
        if window is None:
            array = np.take(array, range(*block_bounds(array.shape[dim], *block)), dim)
            continue
        far = window.count * window.stride + window.span + window.extent
        padding = [(0, 0)] * array.ndim
        padding[dim] = (window.before, far)
        start, end = block_bounds(window.count, *block)
        rows = range(start * window.stride, (end - 1) * window.stride + window.span)
        array = np.take(np.pad(array, padding, constant_values=value), rows, dim)
    return array


@given(exchanges())
def test_the_frame_is_what_padding_and_slicing_give(drawn: tuple[HaloStep, tuple[int, ...]]) -> None:
    step, shape = drawn
    array = np.random.default_rng(0).normal(size=shape)
    after = simulate_step(step, shape, scatter(array, step.layout))
    assert all(np.array_equal(got, framed(array, step, rank)) for rank, got in enumerate(after))
    sizes = [shard.shape for shard in after]
    assert step.largest_local_shape(shape) == tuple(map(max, zip(*sizes, strict=True)))
    for dim, extent in enumerate(step.uniform_shape(shape)):
        assert extent is None or {size[dim] for size in sizes} == {extent}


@given(exchanges())
def test_the_way_back_is_the_transpose(drawn: tuple[HaloStep, tuple[int, ...]]) -> None:
    """<exchange(x), g> = <x, exchange_back(g)> over whole numbers, exactly."""
    step, shape = drawn
    step = HaloStep(HALO, step.layout, step.windows)
    rng = np.random.default_rng(1)
    shards = scatter(rng.integers(-9, 9, shape).astype(float), step.layout)
    after = simulate_step(step, shape, shards)
    gradients = [rng.integers(-9, 9, shard.shape).astype(float) for shard in after]
    back = simulate_step(step.backward(), shape, gradients)
    assert [shard.shape for shard in back] == [shard.shape for shard in shards]
    assert sum((a * b).sum() for a, b in zip(after, gradients, strict=True)) == sum(
        (a * b).sum() for a, b in zip(shards, back, strict=True)
    )


@given(exchanges())
def test_moved_is_what_the_busiest_rank_sends_or_receives(drawn: tuple[HaloStep, tuple[int, ...]]) -> None:
    step, shape = drawn
    sent: Counter[int] = Counter()
    received: Counter[int] = Counter()
    for rank, shard in enumerate(scatter(np.zeros(shape), step.layout)):
        group = step.layout.mesh.group(step.group_axes, rank) if step.communicates else ()
        for member, part in zip(group, rank_halo(step, shape, rank).pack(shard), strict=True):
            sent[rank] += part.size
            received[member] += part.size
    assert step.moved(shape) == max([0, *sent.values(), *received.values()])
    assert step.communicates == bool(+sent)


def test_only_the_dimension_that_needs_it_is_exchanged() -> None:
    tiles = Window(size=2, stride=2, dilation=1, before=0, extent=8, count=4)
    overlaps = Window(size=3, stride=1, dilation=1, before=1, extent=8, count=8)
    layout = Layout.parse(Mesh.of(2, 2), "[a, b]")
    assert str(HaloStep(HALO, layout, (tiles, overlaps))) == "halo(b)"
    step = HaloStep(HALO, layout, (tiles, tiles))
    assert not step.communicates and step.moved((8, 8)) == 0
    assert tiles.tiles(2) and not tiles.tiles(3) and not overlaps.tiles(2)


class Priced:
    """A cost model that writes down what it is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, tuple[int, ...], int]] = []

    def time_ns(self, kind: str, mesh: Mesh, axes: tuple[int, ...], n_bytes: int) -> int:
        self.asked.append((kind, axes, n_bytes))
        return n_bytes


def test_the_cost_is_that_of_the_halo_and_of_the_copy() -> None:
    """The inner ones of 4 devices with 16 rows of 5 elements send two rows and write six."""
    window = Window(size=3, stride=1, dilation=1, before=1, extent=16, count=16)
    step = HaloStep(HALO, Layout.parse(Mesh.of(2, 2), "[ba, -]"), (window, None))
    costs = Priced()
    assert Path(step.layout, step.layout, (step,), (16, 5)).time_ns(costs, 4) == 6 * 5 * 4 + -(-2 * 5 * 4 * 4 // 3)
    assert [asked[0] for asked in costs.asked] == ["all_to_all", "local"] and costs.asked[0][1] == (0, 1)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.int32, np.uint8])
def test_every_dtype_has_a_lowest_number(dtype: type) -> None:
    window = Window(size=3, stride=1, dilation=1, before=1, extent=4, count=4)
    step = HaloStep(HALO, Layout.parse(Mesh.of(2), "[a]"), (window,), LOWEST)
    array = np.arange(4).astype(dtype)
    for shard in simulate_step(step, (4,), scatter(array, step.layout)):
        assert shard.dtype == dtype and shard.max() <= 3 and shard.min() == shard[[0, -1]].min()


def test_a_shard_of_another_shape_is_refused() -> None:
    window = Window(size=3, stride=1, dilation=1, before=1, extent=4, count=4)
    step = HaloStep(HALO, Layout.parse(Mesh.of(2), "[a]"), (window,))
    with pytest.raises(ValueError, match=r"halo got a shard of shape \(3,\), expected \(2,\)"):
        simulate_step(step, (4,), [np.zeros(3), np.zeros(2)])


@settings(max_examples=20)
@given(exchanges())
def test_replicas_get_equal_bits(drawn: tuple[HaloStep, tuple[int, ...]]) -> None:
    step, shape = drawn
    mesh = step.layout.mesh
    path = Path(step.layout, step.layout, (step,), shape)
    shards = simulate(path, scatter(np.random.default_rng(3).normal(size=shape), step.layout))
    gradients = [np.arctan(shard * 7) for shard in shards]
    back = simulate_step(step.backward(), shape, gradients)
    first: dict[int, bytes] = {}
    for rank, shard in enumerate(back):
        assert first.setdefault(mesh.index_along(step.layout.split_axes, rank), shard.tobytes()) == shard.tobytes()
