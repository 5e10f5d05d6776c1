"""Single steps: values that must survive, the order of sums, and what scatter and gather refuse."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles.layouts import all_layouts
from oracles.shards import gather, scatter
from oracles.steps import legal_steps, step_between

from tensoropt.reschedule.layout import Layout
from tensoropt.reschedule.mesh import Mesh
from tensoropt.reschedule.path import Path
from tensoropt.reschedule.rank_steps import RankPath, rank_step
from tensoropt.reschedule.simulate import simulate_all_reduce, simulate_step
from tensoropt.reschedule.summing import reduce_in_order
from tensoropt.runtime.collectives.single import SingleCommunicator


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16, np.int32])
@pytest.mark.parametrize("mesh", [Mesh.of(2, 2), Mesh.of(2, 3)], ids=str)
def test_every_step_in_every_dtype(mesh: Mesh, dtype: type) -> None:
    shape = (5, 7)
    array = np.random.default_rng(0).integers(0, 9, shape).astype(dtype)
    for layout in all_layouts(mesh, shape):
        shards = scatter(array, layout)
        for step in legal_steps(layout, shape):
            after = simulate_step(step, shape, shards)
            assert np.array_equal(gather(after, step.target, shape), array), step
            assert all(shard.dtype == dtype and shard.flags.c_contiguous for shard in after)
            assert not any(np.shares_memory(a, b) for a, b in zip(shards, after, strict=True))


@pytest.mark.parametrize("target", ["[-] +a", "[-] +ab"])
def test_infinities_survive_keep_and_pad(target: str) -> None:
    mesh, array = Mesh.of(2, 2), np.array([np.inf, -np.inf, np.nan, 1.0, -2.0])
    for source in {"[-] +a": ["[-]", "[a]"], "[-] +ab": ["[-]", "[ab]", "[ba]"]}[target]:
        step = step_between(mesh, source, target, array.shape)
        shards = simulate_step(step, array.shape, scatter(array, step.source))
        assert sum(shard.size - np.isfinite(shard).sum() for shard in shards) == 3 * (4 // mesh.size_of(step.axes))
        assert np.array_equal(gather(shards, step.target, array.shape), array, equal_nan=True)


def test_sends_are_views_where_they_follow_in_memory() -> None:
    mesh = Mesh.of(2, 2)
    local = np.arange(35.0).reshape(5, 7)
    leading = rank_step(step_between(mesh, "[-, -] +a", "[a, -]", (5, 7)), (5, 7), 0).pack(local)
    assert [shard.shape for shard in leading] == [(2, 7), (3, 7)] and all(np.shares_memory(p, local) for p in leading)
    overlappable = rank_step(step_between(mesh, "[-, -] +a", "[-, a]", (5, 7)), (5, 7), 0).pack(local)
    assert [shard.shape for shard in overlappable] == [(5, 3), (5, 4)] and not np.shares_memory(overlappable[0], local)
    assert overlappable[0].base is overlappable[1].base, "one buffer, so that it is sent without another copy"
    strided = np.asfortranarray(local)
    for given_local in (strided, local[:, ::-1]):
        again = rank_step(step_between(mesh, "[-, -] +a", "[a, -]", (5, 7)), (5, 7), 0).pack(given_local)
        assert all(shard.flags.c_contiguous for shard in again)
        assert np.array_equal(np.concatenate(again), given_local)


@pytest.mark.parametrize("shape", [(8, 8), (1, 8, 16), (8, 8, 8)], ids=str)
def test_copies_are_counted_where_parts_do_not_follow_in_memory(shape: tuple[int, ...]) -> None:
    mesh = Mesh.of(2, 2)
    counted = set()
    for layout in all_layouts(mesh, shape):
        for step in legal_steps(layout, shape):
            splits = (*step.source.splits, *step.target.splits)
            if any(tuple(sorted(axes)) != axes for axes in splits):
                continue  # blocks that aren't in the order of ranks are put in it, uncounted
            ranks = [rank_step(step, shape, rank) for rank in range(mesh.n_devices)]
            sends = any(rank.send_slices and not rank.sends_in_place for rank in ranks)
            receives = any(rank.recv_slices and not rank.receives_in_place for rank in ranks)
            assert step.n_copies(shape) == sends + receives, step
            counted.add((step.kind, step.n_copies(shape)))
    assert counted >= {("all_gather", 1), ("all_gather", 0), ("all_to_all", 2 if len(shape) == 3 and shape[0] > 1 else 1)}


def test_a_shard_of_the_wrong_shape_is_refused() -> None:
    mesh = Mesh.of(2, 2)
    with pytest.raises(ValueError, match=r"all_gather got a shard of shape \(3, 7\), expected \(2, 7\)"):
        rank_step(step_between(mesh, "[a, -]", "[-, -]", (5, 7)), (5, 7), 0).pack(np.zeros((3, 7)))
    with pytest.raises(ValueError, match=r"slice got a shard of shape \(3, 7\), expected \(5, 7\)"):
        rank_step(step_between(mesh, "[-, -]", "[a, -]", (5, 7)), (5, 7), 0).apply_local(np.zeros((3, 7)))


def test_an_empty_path_hands_back_what_it_got() -> None:
    layout, array = Layout.replicated(Mesh.of(1), 1), np.ones(3)
    assert RankPath.of(Path(layout, layout, (), (3,)), 0).run(array, SingleCommunicator()) is array


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=7))
def test_sums_are_taken_in_order(values: list[float]) -> None:
    total = values[0]
    for value in values[1:]:
        total += value
    assert reduce_in_order([np.array([value]) for value in values])[0] == total


def test_low_precision_is_summed_in_float32() -> None:
    of_8_bits = (ml_dtypes.float8_e4m3fn, 16), (ml_dtypes.float8_e5m2, 8)
    for dtype, one_more in [(np.float16, 2048), (ml_dtypes.bfloat16, 256), *of_8_bits]:
        shards = [np.array([one_more], dtype), np.array([1], dtype), np.array([1], dtype)]
        assert shards[0] + shards[1] == shards[0], "one by one the small summands would be lost"
        assert float(reduce_in_order(shards)[0]) == one_more + 2
    assert reduce_in_order([np.full(2, 6e4, np.float16)] * 2).tolist() == [np.inf, np.inf], "without a warning"
    assert reduce_in_order([np.array([True]), np.array([True])]).tolist() == [True]
    with pytest.raises(ValueError, match="unknown reduction 'mean'; expected one of sum, max, min"):
        reduce_in_order([np.ones(1)], "mean")


def test_simulated_all_reduce() -> None:
    mesh = Mesh.of(2, 3)
    shards = [np.array([float(rank), -rank]) for rank in range(6)]
    assert [shard.tolist() for shard in simulate_all_reduce(shards, mesh, (0,))] == [[3, -3], [5, -5], [7, -7]] * 2
    assert simulate_all_reduce(shards, mesh, (1,), "max")[4].tolist() == [5, -3]
    assert simulate_all_reduce(shards, mesh, (1, 0), "min")[2].tolist() == [0, -5]


def test_partial_shards_differ_and_add_up() -> None:
    mesh, shape = Mesh.of(2, 3), (4, 5)
    layout = Layout.parse(mesh, "[a, -] +b")
    array = np.arange(20.0).reshape(shape)
    shards = scatter(array, layout)
    assert np.array_equal(shards[0] + shards[1] + shards[2], array[:2])
    assert not np.array_equal(shards[0], shards[1]) and shards[0].any()
    other = scatter(array, layout, np.random.default_rng(7))
    assert not np.array_equal(shards[0], other[0]) and np.array_equal(gather(other, layout, shape), array)
    assert [shard.tobytes() for shard in scatter(array, layout)] == [shard.tobytes() for shard in shards]


def test_gather_and_scatter_refuse() -> None:
    mesh = Mesh.of(2, 2)
    layout = Layout.parse(mesh, "[a, -]")
    shards = scatter(np.zeros((4, 3)), layout)
    shards[1] = shards[1] + 1
    with pytest.raises(ValueError, match="ranks 0 and 1 are replicas"):
        gather(shards, layout, (4, 3))
    with pytest.raises(ValueError, match=r"rank 0 has a shard of shape \(2, 3\)"):
        gather(shards, layout, (5, 4))
    with pytest.raises(ValueError, match="split less"):
        scatter(np.zeros((1, 3)), layout)
    assert math.prod(shards[0].shape) == 6
