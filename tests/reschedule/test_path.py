"""Paths: cheapest by an independent search, the same from both searches, and with the right pieces at the end."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles.layouts import all_layouts, all_pairs, all_states
from oracles.shards import gather, scatter
from oracles.steps import Cost, ScrambledCosts, cheapest_costs, legal_steps

from tensoropt.reschedule.cheapest.dijkstra import enumeration_order
from tensoropt.reschedule.layout import Axes, Layout
from tensoropt.reschedule.mesh import Mesh
from tensoropt.reschedule.path import Path, ReschedulingError, StepCosts, cheapest_path
from tensoropt.reschedule.simulate import simulate
from tensoropt.reschedule.steps import Step


@dataclass(frozen=True)
class LinkCosts:
    """Latency and bandwidth, with slower links along axis 0."""

    latency_ns: int = 5000
    slowness: int = 8
    bytes_per_us: int = 1000

    def time_ns(self, kind: str, mesh: Mesh, axes: Axes, n_bytes: int) -> int:
        if kind == "local":
            return n_bytes // 20
        size, slowness = mesh.size_of(axes), self.slowness if 0 in axes else 1
        passes = 2 if kind == "all_reduce" else 1
        share = size if kind == "all_to_all" else 1
        return slowness * (self.latency_ns + passes * n_bytes * (size - 1) * 1000 // (size * share * self.bytes_per_us))


CASES = [(Mesh.of(*counts), shape) for counts in [(2, 2), (2, 3)] for shape in [(5, 7), (3, 4, 6)]]
COSTS = [LinkCosts(), ScrambledCosts(1, 1000), ScrambledCosts(2, 3), ScrambledCosts(3, 1)]


def cost_of(path: Path, itemsize: int, costs: StepCosts) -> Cost:
    return path.time_ns(costs, itemsize), path.n_collectives, len(path.steps)


@pytest.mark.parametrize("costs", COSTS, ids=str)
@pytest.mark.parametrize(("mesh", "shape"), CASES, ids=str)
def test_every_pair(mesh: Mesh, shape: tuple[int, ...], costs: StepCosts) -> None:
    """Cheapest, equal from both searches, and each rank ends with its piece of the tensor."""
    everything = all_layouts(mesh, shape)
    best = cheapest_costs(everything, shape, 4, costs)
    best |= cheapest_costs(all_layouts(mesh, shape, partial=False), shape, 4, costs)
    pairs = all_pairs(mesh, shape, 4, costs)
    assert pairs.layouts == everything
    array = np.arange(1.0, 1 + math.prod(shape)).reshape(shape)
    for i, source in enumerate(everything):
        shards = scatter(array, source)
        for j, target in enumerate(everything):
            path = pairs.path(i, j)
            assert cost_of(path, 4, costs) == best[source, target]
            assert pairs.time_ns[i, j] == best[source, target][0]
            assert cheapest_path(source, target, shape, 4, costs) == path
            assert np.array_equal(gather(simulate(path, shards), target, shape), array), path


@st.composite
def rescheduling(draw: st.DrawFn) -> tuple[Layout, Layout, tuple[int, ...]]:
    """Two layouts of a random mesh and a random shape that both fit."""
    mesh = draw(st.sampled_from([Mesh.of(2, 4), Mesh.of(12), Mesh.of(3, 4), Mesh.of(8), Mesh.of(1), Mesh.of(7)]))
    shape = tuple(draw(st.lists(st.integers(1, 13), max_size=3)))
    layouts = all_layouts(mesh, shape)
    return draw(st.sampled_from(layouts)), draw(st.sampled_from(layouts)), shape


@given(rescheduling(), st.integers(0, 9), st.sampled_from([1, 5, 10**6]))
def test_larger_meshes(case: tuple[Layout, Layout, tuple[int, ...]], seed: int, limit: int) -> None:
    source, target, shape = case
    mesh, costs = source.mesh, ScrambledCosts(seed, limit)
    path = cheapest_path(source, target, shape, 4, costs)
    array = np.random.default_rng(seed).integers(-50, 50, shape)
    assert np.array_equal(gather(simulate(path, scatter(array, source)), target, shape), array)
    pairs = all_pairs(mesh, shape, 4, costs, [source, target])
    assert pairs.path(0, len(pairs.layouts) - 1) == path
    assert pairs.time_ns[0, -1] == path.time_ns(costs, 4)
    if not (source.partial or target.partial):
        assert not any(step.target.partial for step in path.steps)


def test_paths_of_a_larger_mesh_are_the_cheapest() -> None:
    mesh, shape, costs = Mesh.of(2, 4), (9, 5), ScrambledCosts(4, 100)
    layouts = all_layouts(mesh, shape)
    best = cheapest_costs(layouts, shape, 4, costs)
    for source in layouts[:: len(layouts) // 4]:
        for target in layouts if source.partial else ():
            assert cost_of(cheapest_path(source, target, shape, 4, costs), 4, costs) == best[source, target]


def test_the_search_order_is_the_enumeration_order() -> None:
    for n_axes, rank in [(3, 3), (4, 2), (2, 0)]:
        states = list(all_states(n_axes, rank, True))
        assert sorted(states, key=enumeration_order) == states


def test_a_path_says_itself() -> None:
    mesh = Mesh.of(4)
    source, target = Layout.parse(mesh, "[-, -] +a"), Layout.parse(mesh, "[b, a]")
    path = cheapest_path(source, target, (8, 8), 4, LinkCosts())
    assert str(path) == "[-, -] +a -slice(b 0)-> [b, -] +a -reduce_scatter(a 1)-> [b, a]"
    assert path.communicates and path.n_collectives == 1
    assert not cheapest_path(source, source, (8, 8), 4, LinkCosts()).communicates


def test_each_cost_is_asked_once() -> None:
    asked: list[tuple[object, ...]] = []

    class Asking(LinkCosts):
        def time_ns(self, *query):  # type: ignore[no-untyped-def, override]
            asked.append(query)
            return super().time_ns(*query)

    mesh, shape = Mesh.of(2, 4), (16, 16)
    layouts = all_layouts(mesh, shape, partial=False)
    all_pairs(mesh, shape, 4, Asking(), layouts)
    assert len(asked) == len(set(asked)) > 0
    assert {kind for kind, *_ in asked} == {"all_gather", "all_to_all", "local"}


def test_bad_input() -> None:
    mesh, other, costs = Mesh.of(4), Mesh.of(2, 2), LinkCosts()
    whole, split = Layout.replicated(mesh, 2), Layout.parse(mesh, "[ab, -]")
    with pytest.raises(ReschedulingError, match="give both one mesh"):
        cheapest_path(whole, Layout.replicated(other, 2), (4, 4), 4, costs)
    with pytest.raises(ReschedulingError, match=r"is of rank 2, shape \(4,\) of rank 1"):
        cheapest_path(whole, split, (4,), 4, costs)
    with pytest.raises(ReschedulingError, match=r"leaves blocks of \(3, 4\) empty"):
        cheapest_path(whole, split, (3, 4), 4, costs)
    with pytest.raises(ReschedulingError, match=r"leaves blocks of \(3, 4\) empty"):
        all_pairs(mesh, (3, 4), 4, costs, [split])
    with pytest.raises(ReschedulingError, match="over an hour"):
        all_pairs(mesh, (4, 4), 4, LinkCosts(latency_ns=10**15))
    step: Step = legal_steps(whole, (4, 4))[0]
    with pytest.raises(ReschedulingError, match="but the path has come to"):
        Path(split, step.target, (step,), (4, 4))
    with pytest.raises(ReschedulingError, match="the steps end at"):
        Path(whole, whole, (step,), (4, 4))
