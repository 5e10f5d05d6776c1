"""Numbered layouts: what arrays tell of many layouts is what each layout tells of itself."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from oracles.layouts import all_layouts

from tensoropt.reschedule.cheapest.layout_numbers import LayoutNumbers
from tensoropt.reschedule.layout import Layout, Shape, is_view, needs_communication
from tensoropt.reschedule.mesh import Mesh
from tensoropt.reschedule.orders import axes_of_mask, mask_of_axes

MOST_PAIRS = 4_000
CASES = [
    (Mesh.of(1), (3, 2)), (Mesh.of(2), ()), (Mesh.of(2, 2), (5,)), (Mesh.of(2, 3), (7, 6)), (Mesh.of(2, 4), (8, 9)),
    (Mesh.of(2, 2), (5, 4, 6)), (Mesh.of(2, 8), (16, 17)),
]  # fmt: skip


@pytest.mark.parametrize(("mesh", "shape"), CASES, ids=str)
def test_arrays_tell_what_layouts_do(mesh: Mesh, shape: Shape) -> None:
    numbers, layouts = LayoutNumbers(mesh), list(all_layouts(mesh, shape))
    random.Random(0).shuffle(layouts)
    found = numbers.of(layouts)
    assert found.tolist() == list(range(len(layouts))) and len(numbers) == len(layouts)
    assert [numbers.layout(number) for number in found.tolist()] == layouts
    elements = [math.prod(layout.largest_local_shape(shape)) for layout in layouts]
    assert numbers.largest_elements(found, shape).tolist() == elements
    assert [axes_of_mask(mask) for mask in numbers.used_axes(found).tolist()] == [
        tuple(sorted(layout.used_axes)) for layout in layouts
    ]
    idle = [[axis for axis in mesh.axes if axis not in layout.split_axes] for layout in layouts]
    partial = [tuple(axes[: len(axes) // 2]) for axes in idle]
    summed = numbers.with_partial(found, np.array([mask_of_axes(axes) for axes in partial], np.int64))
    assert [numbers.layout(number) for number in summed.tolist()] == [
        layout.with_partial(axes) for layout, axes in zip(layouts, partial, strict=True)
    ]


@pytest.mark.parametrize(("mesh", "shape"), CASES, ids=str)
def test_pairs_are_local_and_views_as_two_layouts_are(mesh: Mesh, shape: Shape) -> None:
    numbers, layouts = LayoutNumbers(mesh), list(all_layouts(mesh, shape))
    layouts = random.Random(1).sample(layouts, min(len(layouts), math.isqrt(MOST_PAIRS)))
    found = numbers.of(layouts)
    local, views = numbers.are_local(found, found), numbers.are_views(found, found)
    for i, source in enumerate(layouts):
        for j, target in enumerate(layouts):
            assert local[i, j] == (not needs_communication(source, target)), f"{source} to {target}"
            assert views[i, j] == is_view(source, target), f"{source} to {target}"


def test_axes_behind_other_axes_are_elsewhere() -> None:
    """The minor axis of a dimension has its place in both layouts; the major axes differ, and nothing needs to be sent for
    the target's, which the source doesn't use.
    """
    mesh = Mesh.of(2, 2, 2)
    splits_and_partial = [((0, 1), ()), ((2, 1), (0,)), ((0, 1, 2), ()), ((0,), (1,))]
    numbers = LayoutNumbers(mesh)
    found = numbers.of(Layout(mesh, (axes,), partial) for axes, partial in splits_and_partial)
    assert numbers.are_local(found[:1], found).tolist() == [[True, False, True, True]]
    assert numbers.are_views(found[:1], found).tolist() == [[False, False, True, False]]


def test_layouts_of_several_ranks_are_numbered_together() -> None:
    mesh = Mesh.of(2, 2)
    layouts = [Layout(mesh, ((),) * rank) for rank in (1, 0, 3, 2)]
    numbers = LayoutNumbers(mesh)
    assert numbers.of([*layouts, *layouts]).tolist() == [0, 1, 2, 3] * 2
    assert [numbers.layout(number) for number in range(4)] == layouts
