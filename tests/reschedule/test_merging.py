"""All-reduces in place of reduce-scatters and all-gathers: the same bits, between two members only."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.layouts import all_layouts
from oracles.shards import scatter
from oracles.steps import legal_steps, step_between

from tensoropt.reschedule.merging import with_all_reduces_of_pairs
from tensoropt.reschedule.mesh import Mesh
from tensoropt.reschedule.path import Path
from tensoropt.reschedule.simulate import simulate
from tensoropt.reschedule.steps import Step


@st.composite
def walks(draw: st.DrawFn) -> Path:
    """Some steps from anywhere to anywhere."""
    mesh = draw(st.sampled_from([Mesh.of(2), Mesh.of(2, 2), Mesh.of(2, 3), Mesh.of(3)]))
    shape = tuple(draw(st.lists(st.integers(2, 9), min_size=1, max_size=2)))
    layouts = [layout for layout in all_layouts(mesh, shape) if layout.partial]
    source = at = draw(st.sampled_from(layouts))
    steps: list[Step] = []
    for kind in draw(st.lists(st.sampled_from(["reduce_scatter", "all_gather", None]), min_size=2, max_size=5)):
        legal = [step for step in legal_steps(at, shape) if kind is None or step.kind == kind]
        if legal:
            steps.append(draw(st.sampled_from(legal)))
            at = steps[-1].target
    return Path(source, at, tuple(steps), shape)


@settings(max_examples=150, deadline=None)
@given(walks(), st.integers(0, 9))
def test_merged_paths_give_the_same_bits(path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    shards = [rng.normal(size=shard.shape).astype(np.float32) for shard in scatter(np.zeros(path.shape), path.source)]
    whole = with_all_reduces_of_pairs(path)
    assert whole.n_collectives <= path.n_collectives
    for one, other in zip(simulate(path, shards), simulate(whole, shards), strict=True):
        assert one.tobytes() == other.tobytes()


def path_of(mesh: Mesh, *layouts: str) -> Path:
    """The path of a matrix through these layouts."""
    steps = tuple(step_between(mesh, *each, (4, 6)) for each in pairwise(layouts))
    return Path(steps[0].source, steps[-1].target, steps, (4, 6))


@pytest.mark.parametrize(
    "mesh, layouts, kinds",
    [(Mesh.of(2), ["[-,-] +a", "[a,-]", "[-,-]"], ["all_reduce"]),
     (Mesh.of(2, 2), ["[-,b] +a", "[-,ba]", "[-,b]"], ["all_reduce"]),
     (Mesh.of(2, 2), ["[-,-] +ab", "[a,-] +b", "[-,-] +b", "[-,-]"], ["all_reduce", "all_reduce"]),
     (Mesh.of(2, 2), ["[-,-] +ab", "[ab,-]", "[-,-]"], ["reduce_scatter", "all_gather"]),
     (Mesh.of(3), ["[-,-] +a", "[a,-]", "[-,-]"], ["reduce_scatter", "all_gather"]),
     (Mesh.of(2), ["[-,-] +a", "[a,-]", "[-,a]"], ["reduce_scatter", "all_to_all"]),
     (Mesh.of(2, 2), ["[a,-] +b", "[ab,-]", "[-,-]"], ["reduce_scatter", "all_gather"])],
    ids=lambda value: str(value),
)  # fmt: skip
def test_which_pairs_are_merged(mesh: Mesh, layouts: list[str], kinds: list[str]) -> None:
    merged = with_all_reduces_of_pairs(path_of(mesh, *layouts))
    assert [step.kind for step in merged.steps] == kinds
