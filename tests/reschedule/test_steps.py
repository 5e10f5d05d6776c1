"""Steps: which are legal, how they print, and what a cost model is asked for them."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from oracles.layouts import all_layouts, all_states
from oracles.steps import legal_steps, step_between

from tensoropt.reschedule.cheapest.layout_graph import layout_graph
from tensoropt.reschedule.layout import Layout
from tensoropt.reschedule.mesh import Mesh
from tensoropt.reschedule.orders import axes_of_mask, n_layouts
from tensoropt.reschedule.steps import KINDS, State, leading_dim, move_between, moves

ROOT = Path(__file__).parents[2]


def starts_with(longer: tuple[int, ...], shorter: tuple[int, ...]) -> bool:
    return longer[: len(shorter)] == shorter and longer != shorter


def one_step(source: Layout, target: Layout) -> str | None:
    """The kind of the single step between two layouts, told from what differs: the definition, read backwards."""
    before, after = set(source.partial), set(target.partial)
    changed = [(old, new) for old, new in zip(source.splits, target.splits, strict=True) if old != new]
    if not changed:
        return "all_reduce" if after < before else "keep" if before < after else None
    if len(changed) == 1:
        [(old, new)] = changed
        if starts_with(old, new):
            removed = set(old) - set(new)
            return "all_gather" if before == after else "pad" if after == before | removed else None
        if starts_with(new, old):
            added = set(new) - set(old)
            return "slice" if before == after else "reduce_scatter" if before == after | added else None
        return "all_to_all" if set(old) == set(new) and before == after else None
    if len(changed) == 2 and before == after:
        for (old, new), (to_old, to_new) in (changed, changed[::-1]):
            if starts_with(old, new) and starts_with(to_new, to_old) and set(old) - set(new) == set(to_new) - set(to_old):
                return "all_to_all"
    return None


@pytest.mark.parametrize(
    ("mesh", "shape"),
    [(Mesh.of(2, 2), (5, 7)), (Mesh.of(2, 3), (5, 7)), (Mesh.of(2, 2), (3, 4, 6)), (Mesh.of(2, 4), (8, 8)),
     (Mesh.of(2, 4), (2, 5)), (Mesh.of(8), ()), (Mesh.of(1), (3,))],
    ids=str,
)  # fmt: skip
def test_legal_steps_are_all_single_steps(mesh: Mesh, shape: tuple[int, ...]) -> None:
    layouts = all_layouts(mesh, shape)
    for source in layouts:
        found = {step.target: step.kind for step in legal_steps(source, shape)}
        expected = {target: kind for target in layouts if (kind := one_step(source, target))}
        assert found == expected
        assert len(found) == len(legal_steps(source, shape)), "no layout is reached twice"


def test_steps_say_what_they_do() -> None:
    mesh = Mesh.of(2, 2)
    steps = {str(step) for step in legal_steps(Layout.parse(mesh, "[ab, -]"), (8, 8))}
    assert steps == {
        "all_gather(b 0)", "all_gather(ab 0)", "all_to_all(b 0>1)", "all_to_all(ab 0>0)", "all_to_all(ab 0>1)", "pad(b 0)",
        "pad(ab 0)",
    }  # fmt: skip
    steps = {str(step) for step in legal_steps(Layout.parse(mesh, "[-] +a"), (8,))}
    assert steps == {"reduce_scatter(a 0)", "all_reduce(a)", "slice(b 0)", "keep(b)"}


@pytest.mark.parametrize(
    ("source", "target", "n_elements"),
    [
        ("[ab, -]", "[a, -]", 3 * 7),  # all-gather: the largest result
        ("[ab, -]", "[-, -]", 5 * 7),
        ("[-, b] +a", "[a, b]", 5 * 4),  # reduce-scatter: the largest input
        ("[-, b] +a", "[-, b]", 5 * 4),  # all-reduce: the tensor
        ("[ab, -]", "[a, b]", 2 * 7),  # all-to-all: the largest input
        ("[a, -]", "[a, b]", 3 * 4),  # local steps: the largest result
        ("[a, -]", "[a, -] +b", 3 * 7),
        ("[a, -]", "[-, -] +a", 5 * 7),
    ],
)
def test_bytes_of_the_largest_rank(source: str, target: str, n_elements: int) -> None:
    mesh, shape = Mesh.of(2, 2), (5, 7)
    assert step_between(mesh, source, target, shape).n_bytes(shape, 8) == n_elements * 8


@pytest.mark.parametrize("runs", [None, 1, 2])
@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.parametrize(
    ("mesh", "shape"),
    [(Mesh.of(2, 3), (5, 2, 4)), (Mesh.of(2, 6), (12, 7)), (Mesh.of(2, 2), (1, 8, 4)), (Mesh.of(4), ()), (Mesh.of(1), (3,))],
    ids=str,
)
def test_the_graph_has_the_same_edges_and_bytes_as_the_steps(
    mesh: Mesh, shape: tuple[int, ...], partial: bool, runs: int | None
) -> None:
    graph = layout_graph(len(mesh.sizes), len(shape), partial, runs)
    fits, elements = graph.sizes(mesh.sizes, shape)
    layouts = [Layout(mesh, *graph.state(number)) for number in range(len(fits))]
    allowed = {Layout(mesh, *state) for state in all_states(len(mesh.sizes), len(shape), partial)}
    assert set(layouts) == {layout for layout in allowed if runs is None or has_runs(layout, runs)}
    assert len(layouts) == n_layouts(len(mesh.sizes), len(shape), runs) or not partial
    assert fits.tolist() == [layout.fits(shape) for layout in layouts]
    assert graph.number_of([State.of(layout) for layout in layouts]).tolist() == list(range(len(layouts)))
    targets = np.repeat(np.arange(len(layouts)), np.diff(graph.start))
    copied = (graph.copied[:, None] >> np.arange(leading_dim(shape) + 1, len(shape) + 1) & 1).sum(axis=1)
    edges = zip(graph.source, targets, graph.kind, graph.mask, elements[graph.sized_by], copied, strict=True)
    in_graph = [
        (layouts[i], layouts[j], KINDS[kind], axes_of_mask(int(mask)), size * 4, n_copies)
        for i, j, kind, mask, size, n_copies in edges
        if fits[i] and fits[j]
    ]
    assert len(in_graph) == len(set(in_graph))
    assert set(in_graph) == {
        (step.source, step.target, step.kind, step.group_axes, step.n_bytes(shape, 4), step.n_copies(shape))
        for layout in layouts
        if layout.fits(shape)
        for step in legal_steps(layout, shape)
        if step.target in set(layouts)
    }


def has_runs(layout: Layout, most: int) -> bool:
    """Whether each dimension, and the partial axes, are at most so many runs of axes that follow each other."""
    return all(sum(b != a + 1 for a, b in pairwise((-2, *axes))) <= most for axes in (*layout.splits, layout.partial))


@pytest.mark.parametrize(("n_axes", "rank"), [(3, 2), (2, 3), (4, 1), (2, 0)])
def test_moves_of_few_runs_and_between_two_states(n_axes: int, rank: int) -> None:
    mesh = Mesh.of(2**n_axes)
    states = list(all_states(n_axes, rank, True))
    for state in states:
        found = {move.target: move for move in moves(n_axes, state)}
        assert len(found) == len(moves(n_axes, state))
        for target in states:
            assert move_between(state, target) == found.get(target)
        for runs in (1, 2):
            few = [move for move in found.values() if has_runs(Layout(mesh, *move.target), runs)]
            assert sorted(moves(n_axes, state, runs)) == sorted(few)


def test_order_does_not_depend_on_the_process() -> None:
    program = (
        "from tensoropt.reschedule.path import *; from oracles.layouts import *; from oracles.steps import legal_steps\n"
        "mesh = Mesh.of(2, 4)\n"
        "print([str(step) for layout in all_layouts(mesh, (8, 8)) for step in legal_steps(layout, (8, 8))])\n"
        "import sys; assert not {'tensorflow', 'mpi4py'} & set(sys.modules)\n"
    )
    outputs = [
        subprocess.run(
            [sys.executable, "-c", program],
            env=dict(os.environ, PYTHONPATH=f"{ROOT}:{ROOT / 'tests'}", PYTHONHASHSEED=seed),
            capture_output=True,
            check=True,
            timeout=60,
        ).stdout
        for seed in ("1", "2")
    ]
    assert outputs[0] == outputs[1] and len(outputs[0]) > 10000
