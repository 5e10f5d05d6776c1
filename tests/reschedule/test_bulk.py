"""Tables of times: symmetry, compiled code, 32 bits and paths over few layouts, each held against what is slower."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest
from helpers.large import first
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.layouts import all_layouts, all_pairs
from oracles.steps import cheapest_costs

from tensoropt.reschedule import path
from tensoropt.reschedule.cheapest import bulk
from tensoropt.reschedule.cheapest.bounded_cache import BoundedCache
from tensoropt.reschedule.cheapest.bulk import Weighted
from tensoropt.reschedule.cheapest.dijkstra import StepTimes, cheapest_moves, dijkstra_moves
from tensoropt.reschedule.cheapest.layout_graph import layout_graph
from tensoropt.reschedule.cheapest.quick import quick_moves
from tensoropt.reschedule.layout import Axes, Layout
from tensoropt.reschedule.mesh import Mesh
from tensoropt.reschedule.orders import MOST_LAYOUTS, n_layouts, orders, runs_on_paths
from tensoropt.reschedule.path import StepCosts, cheapest_path, size_class
from tensoropt.reschedule.steps import Move, State, move_between


@dataclass(frozen=True)
class LevelCosts:
    """Scrambled numbers that tell axes apart by their level and size, and by nothing else if ``odd`` is -1."""

    seed: int
    limit: int
    odd: int = -1

    def time_ns(self, kind: str, mesh: Mesh, axes: Axes, n_bytes: int) -> int:
        levels = sorted((mesh.level_of_axis[axis], mesh.sizes[axis], axis == self.odd) for axis in axes)
        return zlib.crc32(f"{self.seed} {kind} {levels} {n_bytes}".encode()) % self.limit


@pytest.mark.parametrize(
    ("mesh", "shape"), [(Mesh.of(2, 4), (9, 3)), (Mesh.of(4), (3, 1, 4)), (Mesh.of(2, 3), (7,))], ids=str
)
@pytest.mark.parametrize("runs", [None, 1])
def test_each_edge_weighs_what_its_step_takes(mesh: Mesh, shape: tuple[int, ...], runs: int | None) -> None:
    """Edges of one class are weighed together."""
    steps, graph = step_times(mesh, shape, LevelCosts(1, 10**6, 0)), layout_graph(len(mesh.sizes), len(shape), True, runs)
    weight, never = Weighted.of(graph, steps).weight.tolist(), bulk.NEVER[np.dtype(np.int64)]
    ends = [(graph.state(source), graph.state(target)) for source, target in zip(graph.source, graph.target, strict=True)]
    assert len(set(ends)) == len(ends)
    for (source, target), found in zip(ends, weight, strict=True):
        move = move_between(source, target)
        fits = steps.elements(source) is not None and steps.elements(target) is not None
        assert move is not None and found == (steps.time_ns(source, move) if fits else never), f"{source} to {target}"


def step_times(mesh: Mesh, shape: tuple[int, ...], costs: StepCosts) -> StepTimes:
    return StepTimes(mesh.sizes, shape, lambda kind, axes, elements: costs.time_ns(kind, mesh, axes, elements))


@given(st.integers(0, 99), st.sampled_from([1, 2, 50, 10**9]), st.sampled_from([None, 1, 2]), st.data())
@settings(max_examples=20, deadline=None)
def test_quick_moves_are_the_same(seed: int, limit: int, runs: int | None, data: st.DataObject) -> None:
    mesh, shape, costs = Mesh.of(2, 4), (9, 4), LevelCosts(seed, limit, seed % 3)
    ends = st.sampled_from([State.of(layout) for layout in all_layouts(mesh, shape)])
    steps = step_times(mesh, shape, costs)
    # An end that is asked for again and again has its distances kept: paths are read off in three ways.
    sources, targets = (data.draw(st.lists(ends, min_size=1, max_size=3)) for _ in range(2))
    for source, target in [*product(sources, targets), *product(targets, sources)] * 4:
        partial = bool(source.partial or target.partial)
        expected = cheapest_moves(steps, source, target, partial, runs)
        assert cheapest_moves(steps, source, target, partial, runs, quick_or_not) == expected


def quick_or_not(steps: StepTimes, source: State, target: State, partial: bool, runs: int | None) -> list[Move]:
    is_inside = orders(len(steps.axis_sizes), runs).has
    search = quick_moves if is_inside(*source) or is_inside(*target) else dijkstra_moves
    return search(steps, source, target, partial, runs)


@pytest.mark.parametrize("runs", [1, 2])
def test_quick_moves_from_and_to_layouts_of_many_runs(runs: int) -> None:
    mesh, shape = Mesh.of(2, 8), (16, 5)
    known, rng = orders(4, runs), np.random.default_rng(runs)
    states = [State.of(layout) for layout in all_layouts(mesh, shape)]
    strange, inside = ([state for state in states if known.has(*state) == is_in] for is_in in (False, True))
    for seed, limit in [(1, 3), (2, 50), (3, 10**9)]:
        steps = step_times(mesh, shape, LevelCosts(seed, limit, 3))
        for _ in range(8):
            one, other = (each[rng.integers(len(each))] for each in (strange, inside))
            partial = bool(one.partial or other.partial)
            for ends in ((one, other), (other, one)):
                expected = cheapest_moves(steps, *ends, partial, runs)
                assert cheapest_moves(steps, *ends, partial, runs, quick_or_not) == expected


def test_what_was_used_last_is_kept() -> None:
    kept: BoundedCache[str, int] = BoundedCache(10)
    for key, n_bytes in (("a", 4), ("b", 4), ("a", 5), ("c", 2)):
        kept.put(key, n_bytes, n_bytes)
    assert (kept.get("b"), kept.get("a"), kept.get("c")) == (None, 5, 2)
    kept.put("large", 1, 100)
    assert kept.get("large") == 1 and kept.get("a") is None


def test_times_beyond_32_bits_and_many_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    mesh, shape = Mesh.of(2, 4), (12, 8)
    small = all_pairs(mesh, shape, 4, LevelCosts(3, 1000))

    class Slow(LevelCosts):
        def time_ns(self, *query):  # type: ignore[no-untyped-def, override]
            return super().time_ns(*query) * 10**7

    assert 2**31 < small.time_ns.max() * 10**7 < 3600 * 10**9
    assert np.array_equal(all_pairs(mesh, shape, 4, Slow(3, 1000)).time_ns, small.time_ns * 10**7)
    monkeypatch.setattr(bulk, "_MOST_TIMES", 1000)
    assert np.array_equal(all_pairs(mesh, shape, 4, LevelCosts(3, 1000)).time_ns, small.time_ns)
    assert np.array_equal(all_pairs(mesh, shape, 4, Slow(3, 1000)).time_ns, small.time_ns * 10**7)


@pytest.mark.parametrize(
    ("first", "second", "is_one"),
    [(((16, 24), 4), ((24, 16), 4), True), (((16, 24), 4), ((8, 24), 8), True),
     (((5, 16, 8), 8), ((5, 8, 64), 2), True), (((16, 12), 4), ((12, 16), 4), False),
     (((16, 4), 4), ((8, 8), 4), False), (((0, 8), 4), ((8, 0), 4), False), (((8,), 4), ((8, 1), 4), False)],
)  # fmt: skip
def test_tensors_of_a_size_class_have_the_same_table(
    first: tuple[tuple[int, ...], int], second: tuple[tuple[int, ...], int], is_one: bool
) -> None:
    mesh, costs = Mesh.of(2, 4), LevelCosts(9, 10**6)
    assert (size_class(mesh, *first) == size_class(mesh, *second)) == is_one
    tables = [all_pairs(mesh, *each, costs) for each in (first, second)]
    same = tables[0].layouts == tables[1].layouts and np.array_equal(tables[0].time_ns, tables[1].time_ns)
    assert same == is_one


def needs_unwinding(layout: Layout, runs: int) -> bool:
    known = orders(len(layout.mesh.sizes), runs)
    strange = sum(not known.has((axes,), ()) for axes in layout.splits) + (not known.has((), layout.partial))
    return strange > 1


@pytest.mark.parametrize(("runs", "limit"), first(2, [(1, 3), (2, 1000), (1, 1000), (2, 3)]))
def test_paths_over_layouts_of_few_runs(monkeypatch: pytest.MonkeyPatch, runs: int, limit: int, everything: bool) -> None:
    """Table, single path and an independent search agree where only the ends may be of many runs."""
    mesh, shape, costs = Mesh.of(2, 8), (16, 5), LevelCosts(5, limit, 3)
    monkeypatch.setattr(path, "runs_on_paths", lambda n_axes, rank: runs)
    everything = all_layouts(mesh, shape)
    between = [layout for layout in everything if orders(4, runs).has(layout.splits, layout.partial)]
    strange = [layout for layout in everything if layout not in between]
    assert between and strange
    rng = np.random.default_rng(runs)
    chosen = [each[i] for each in (between, strange) for i in rng.permutation(len(each))[:40]]
    chosen += [Layout.parse(mesh, text) for text in ("[dcba, -]", "[-, c]", "[cba, -]", "[-, -] +abd")]
    pairs = all_pairs(mesh, shape, 4, costs, chosen)
    drawn = rng.integers(0, len(pairs.layouts), (6 if everything else 2, 2)).tolist()
    for i, j in drawn + [[i, i - 1] for i in range(-4, 0)]:
        source, target = pairs.layouts[i], pairs.layouts[j]
        found = cheapest_path(source, target, shape, 4, costs)
        assert pairs.time_ns[i, j] == found.time_ns(costs, 4)
        if not needs_unwinding(source, runs) and not needs_unwinding(target, runs):
            assert all(step.target in between for step in found.steps[:-1])
            allowed = {*between, source, target}
            if not (source.partial or target.partial):
                allowed = {layout for layout in allowed if not layout.partial}
            assert pairs.time_ns[i, j] == cheapest_costs([*allowed], shape, 4, costs)[source, target][0]


def test_64_and_512_devices() -> None:
    """Sixty-four devices and more: a table over few layouts is there at once, and is what single paths cost."""
    for mesh, shape in [(Mesh.of(8, 8), (64, 512)), (Mesh.of(8, 8), (8, 64, 64)), (Mesh.of(64, 8), (4096, 1024))]:
        everything = [
            Layout(mesh, (tuple(range(a)), tuple(range(a, b)), ())[: len(shape)], tuple(range(b, c)))
            for a in range(0, 4)
            for b in range(a, 6)
            for c in range(b, len(mesh.sizes), 2)
        ]
        costs = LevelCosts(1, 10**6)
        pairs = all_pairs(mesh, shape, 4, costs, everything)
        for i, j in [(0, len(everything) - 1), (len(everything) // 2, 3)]:
            assert pairs.time_ns[i, j] == pairs.path(i, j).time_ns(costs, 4)


def test_which_layouts_are_on_paths() -> None:
    assert [runs_on_paths(4, rank) for rank in range(7)] == [None] * 7
    assert [runs_on_paths(5, rank) for rank in range(5)] == [None, None, None, None, 2]
    assert [runs_on_paths(6, rank) for rank in range(1, 5)] == [None, 2, 1, 1]
    assert [runs_on_paths(9, rank) for rank in range(4)] == [None, 2, 1, 1]
    assert n_layouts(5, 3) <= MOST_LAYOUTS < n_layouts(5, 4)
