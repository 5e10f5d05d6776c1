"""Lines and staircases from weighted searches hold for every strategy, and find all corners of the hull."""

from __future__ import annotations

import contextlib
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensoropt.ft import Budget, InfeasibleError, search
from tensoropt.ft.weighted.lagrangian import Found, Line, lagrangian, staircase
from tensoropt.ft.weighted.weighted_search import TimeIsUpError, WeightedSearch

from .problems import SHAPES, Costs, build, chain_pairs, random_problem, real_points, resnet_pairs
from .test_bounds import below


def corners_of_hull(mem: list[int], time_ns: list[int]) -> set[tuple[int, int]]:
    """The corners of the lower convex hull, by definition: below every line between two other points."""
    points = list(zip(mem, time_ns, strict=True))
    corners = set()
    for p in points:
        around = [
            (a, b)
            for a in points
            for b in points
            if a[0] < p[0] < b[0] and (b[0] - a[0]) * (p[1] - a[1]) >= (b[1] - a[1]) * (p[0] - a[0])
        ]
        if not around:
            corners.add(p)
    return corners


@pytest.mark.parametrize("max_cells", [2, 1 << 20])
def test_every_strategy_is_above_the_staircase(max_cells: int, everything: bool) -> None:
    n_exact = n_corners = 0
    for seed in range(200 if everything else 70):
        problem = random_problem(seed)
        try:
            true = search(problem, "exhaustive")
        except InfeasibleError:
            with contextlib.suppress(InfeasibleError):  # a relaxation may allow what is not, and so may sums
                assert len(lagrangian(WeightedSearch(problem, max_cells)).found) == 0
            continue
        hull = lagrangian(WeightedSearch(problem, max_cells))
        assert below(hull.bound, true.mem_bytes, true.time_ns).all()
        real_points(problem, hull.found)
        if hull.search.plan.is_exact and max(true.mem_bytes.max(), true.time_ns.max()) < 1 << 12:
            n_exact += 1
            corners = corners_of_hull(true.mem_bytes.tolist(), true.time_ns.tolist())
            n_corners += len(corners)
            for mem, time_ns in corners:
                assert hull.bound.least_time(np.array([mem])) == time_ns
    if max_cells > 2:
        assert n_exact > 20
        assert n_corners > 50


lines = st.builds(Line, st.integers(0, 9), st.integers(0, 9), st.integers(0, 90)).filter(
    lambda line: line.mem_weight + line.time_weight > 0
)


@given(st.lists(lines, min_size=1, max_size=5))
def test_a_staircase_allows_what_its_lines_allow(several: list[Line]) -> None:
    several = [*several, Line(0, 1, 2), Line(1, 0, 3)]
    bound = staircase(several)
    grid = np.array([(m, t) for m in range(95) for t in range(95)], np.int64).T
    allowed = np.ones(grid.shape[1], np.bool_)
    for line in several:
        allowed &= line.mem_weight * grid[0] + line.time_weight * grid[1] >= line.least
    assert (below(bound, *grid) == allowed).all()


@given(st.lists(st.tuples(st.integers(0, 1 << 44), st.integers(0, 1 << 44)), min_size=1, max_size=20))
def test_a_coarse_staircase_is_below_and_near(points: list[tuple[int, int]]) -> None:
    """Lines that touch points from below; at the lines' corners the staircase is within twice its step."""
    weights = ((0, 1), (1, 0), (1, 1), (3, 1), (1, 5), (40, 1))
    several = [Line(a, b, min(a * m + b * t for m, t in points)) for a, b in weights]
    bound = staircase(several)
    mem, time_ns = np.array(points, np.int64).T
    assert below(bound, mem, time_ns).all()
    assert len(bound.mem_bytes) < 70_000
    for m, t in zip(bound.mem_bytes.tolist()[:-1], bound.time_ns.tolist()[:-1], strict=True):
        above = m * (1 + 2**-9) + 2, t * (1 + 2**-9) + 2
        assert all(line.mem_weight * above[0] + line.time_weight * above[1] >= line.least * (1 - 1e-12) for line in several)


def test_a_search_that_is_thinned_is_bounded_by_lines_too() -> None:
    rng = np.random.default_rng(0)
    problem = build(rng, [8] * 25, resnet_pairs(6), Costs(10**6))
    alone = search(problem, budget=Budget(max_points=6, seconds=0))
    both = search(problem, budget=Budget(max_points=6, seconds=4))
    true = search(problem)
    assert true.exact
    assert both.bound is not None
    assert alone.bound is not None
    assert "Lagrangian" in both.bound.source
    assert "Lagrangian" not in alone.bound.source
    assert both.worst_gap < alone.worst_gap / 2
    assert below(both.bound, true.mem_bytes, true.time_ns).all()
    real_points(problem, both)


def test_lines_stop_at_the_deadline() -> None:
    problem = build(np.random.default_rng(0), [6] * 20, chain_pairs(20), Costs(10**6))
    with pytest.raises(TimeIsUpError):
        lagrangian(WeightedSearch(problem, deadline=time.monotonic() - 1))
    assert len(lagrangian(WeightedSearch(problem), n_lines=7).lines) == 7


def test_nothing_is_looked_for_near_what_is_known() -> None:
    n, pairs = SHAPES["attention"]
    problem = build(np.random.default_rng(2), [4] * n, pairs, Costs(10**4))
    true = search(problem)
    known = Found(true.mem_bytes, true.time_ns, true.strategies)
    several = [lagrangian(WeightedSearch(problem), points=found, gap=0.05) for found in (None, known)]
    assert len(several[1].lines) < len(several[0].lines) < len(lagrangian(WeightedSearch(problem)).lines)
