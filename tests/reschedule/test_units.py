"""Layouts of units: which they are, and that paths between them are the cheapest through them, in tables and singly."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.layouts import all_pairs, all_states
from oracles.shards import gather, scatter
from oracles.steps import ScrambledCosts, cheapest_costs

from tensoropt.reschedule.layout import Axes, Layout
from tensoropt.reschedule.mesh import Mesh
from tensoropt.reschedule.path import cheapest_path
from tensoropt.reschedule.simulate import simulate
from tensoropt.reschedule.units import MOST_AXES, UnitMesh, units

MESHES = [Mesh.of(4, 8), Mesh.of(8, 8), Mesh.of(64, 8), Mesh.of(12, 6)]


def shuffled(mesh: Mesh, shards: tuple[Axes, ...], rank: int, rng: np.random.Generator) -> Layout:
    """A layout in which some of the pieces split a dimension each, or are partial, in a random order."""
    parts: list[Axes] = [()] * (rank + 2)
    for number in rng.permutation(len(shards)):
        part = rng.integers(rank + 2)
        parts[part] += shards[number]
    return Layout(mesh, tuple(parts[:rank]), parts[rank])


def test_what_units_are() -> None:
    assert units(Mesh.of(2, 8)) == ((0,), (1,), (2,), (3,))
    assert units(Mesh.of(4, 8)) == ((0,), (1,), (2,), (3, 4))
    assert units(Mesh.of(64, 8)) == ((0,), (1, 2), (3, 4, 5), (6,), (7, 8))
    assert units(Mesh.of(12, 6)) == ((0,), (1,), (2,), (3,), (4,))
    assert units(Mesh.of(1)) == ()
    for counts in product((1, 6, 8, 32, 36), repeat=2):
        mesh = Mesh.of(*counts)
        assert sum(units(mesh), ()) == mesh.axes
        assert len(mesh.sizes) > MOST_AXES or len(units(mesh)) == len(mesh.sizes)
        assert all(len({(mesh.level_of_axis[axis], mesh.sizes[axis]) for axis in unit}) == 1 for unit in units(mesh))


def test_which_layouts_are_of_units() -> None:
    mesh = Mesh.of(64, 8)  # a, bc, def, g, hi
    of_units = UnitMesh.of(mesh)
    for text in ("[-, -]", "[hia, -] +bc", "[defbc, ghi]", "[-, -] +abcdefghi"):
        layout = Layout.parse(mesh, text)
        state = of_units.state(layout)
        assert state is not None
        back = Layout(mesh, tuple(map(of_units.axes, state.splits)), of_units.axes(state.partial))
        assert back == layout
    for text in ("[b, -]", "[cb, -]", "[abd, c]", "[de, f]", "[-, -] +ac", "[hgi, -]", "[ih, -]"):
        assert of_units.state(Layout.parse(mesh, text)) is None


@pytest.mark.parametrize(("seed", "limit"), [(1, 10**6), (2, 4)])
@pytest.mark.parametrize("partial", [False, True])
def test_paths_are_the_cheapest_over_layouts_of_units(seed: int, limit: int, partial: bool) -> None:
    mesh, shape, costs = Mesh.of(4, 8), (16, 9), ScrambledCosts(seed, limit)
    of_units = UnitMesh.of(mesh)
    states = all_states(len(of_units.units), len(shape), partial)
    layouts = [Layout(mesh, tuple(map(of_units.axes, state.splits)), of_units.axes(state.partial)) for state in states]
    layouts = [layout for layout in layouts if layout.fits(shape)]
    source = layouts[-1 if partial else len(layouts) // 2]
    best = cheapest_costs(layouts, shape, 4, costs)
    pairs = all_pairs(mesh, shape, 4, costs, layouts)
    index = {layout: number for number, layout in enumerate(pairs.layouts)}
    row = index[source]
    array = np.arange(float(16 * 9)).reshape(shape)
    shards = scatter(array, source)
    for target in layouts:
        assert pairs.time_ns[row, index[target]] == best[source, target][0]
    for target in layouts[:: len(layouts) // 12]:
        path = cheapest_path(source, target, shape, 4, costs)
        assert path.time_ns(costs, 4) == best[source, target][0]
        assert np.array_equal(gather(simulate(path, shards), target, shape), array)


@given(st.sampled_from(MESHES), st.integers(1, 4), st.integers(0, 99), st.sampled_from([1, 5, 10**6, 10**9]))
@settings(max_examples=settings.default.max_examples // 3)  # an example is a table of some dozen layouts
def test_tables_hold_what_single_paths_cost(mesh: Mesh, rank: int, seed: int, limit: int) -> None:
    """Layouts of units and others in one table; on the largest meshes only few dimensions, for the others' sake."""
    rng, costs = np.random.default_rng(seed), ScrambledCosts(seed, limit)
    with_others = rank <= {5: 4, 6: 2, 9: 1}[len(mesh.sizes)]
    shape = tuple(int(extent) for extent in rng.choice([12, 50, 4096], rank))
    found = [shuffled(mesh, units(mesh), rank, rng) for _ in range(12)]
    if with_others:
        found += [shuffled(mesh, tuple((axis,) for axis in mesh.axes), rank, rng) for _ in range(6)]
    chosen = [Layout.replicated(mesh, rank), *(layout for layout in found if layout.fits(shape))]
    pairs = all_pairs(mesh, shape, 4, costs, chosen)
    for i, j in rng.integers(0, len(pairs.layouts), (8, 2)).tolist():
        path = pairs.path(i, j)
        assert pairs.time_ns[i, j] == path.time_ns(costs, 4)
        if not (path.source.partial or path.target.partial):
            assert not any(step.target.partial for step in path.steps)
        if {UnitMesh.of(mesh).state(pairs.layouts[end]) for end in (i, j)}.isdisjoint({None}):
            assert all(UnitMesh.of(mesh).state(step.target) is not None for step in path.steps)


def test_other_layouts_in_a_table_change_nothing_between_those_of_units() -> None:
    mesh, shape, costs, rng = Mesh.of(8, 8), (64, 64), ScrambledCosts(7, 10**6), np.random.default_rng(0)
    of_units = [shuffled(mesh, units(mesh), 2, rng) for _ in range(20)]
    others = [Layout.parse(mesh, text) for text in ("[c, b]", "[-, fe] +cb", "[acb, d]")]
    alone, mixed = (all_pairs(mesh, shape, 4, costs, each) for each in (of_units, [*others, *of_units]))
    places = [mixed.layouts.index(layout) for layout in alone.layouts]
    assert np.array_equal(mixed.time_ns[np.ix_(places, places)], alone.time_ns)
