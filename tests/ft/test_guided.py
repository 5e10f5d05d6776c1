"""Large problems: what lines, restriction and tracking give together, and what may be left out on the way."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np
import pytest
from helpers.large import first
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import ArrayLike

from tensoropt.ft import Budget, Frontier, InfeasibleError, Problem, search
from tensoropt.ft import guided as guided_module
from tensoropt.ft.elimination.table_graph import TooLargeError
from tensoropt.ft.elimination.tracking import Limits, track
from tensoropt.ft.guided import Guide
from tensoropt.ft.pareto import reduce_unsorted
from tensoropt.ft.tables.table import NO_SLACK, Slack, Table
from tensoropt.ft.tables.thinning import Thinning, thinned

from .problems import Costs, build, random_problem, real_points, resnet_pairs
from .test_bounds import assert_within, below


def guide_of(problem: Problem) -> Guide:
    return Guide(problem, True, 10_000, lambda graph: None, 0.0)


def layered(seed: int, blocks: int) -> Problem:
    """Residual blocks of 5 states a node."""
    return build(np.random.default_rng(seed), [5] * (4 * blocks + 1), resnet_pairs(blocks), Costs(10**6, interfaces=0.5))


@pytest.mark.parametrize("seed", first(15, range(40)))
def test_a_guide_finds_real_strategies_above_a_true_bound(seed: int) -> None:
    problem = random_problem(seed)
    try:
        true = search(problem, "exhaustive")
    except InfeasibleError:
        with pytest.raises(InfeasibleError):
            guide_of(problem).round()
        return
    guide = guide_of(problem)
    for _ in range(2):
        guide.round()
        found, bound = guide.found, guide.bound
        assert found is not None and bound is not None
        real_points(problem, found)
        assert below(bound, true.mem_bytes, true.time_ns).all()
        got = Frontier(found.mem, found.time, found.strategies, {}, "ft-ldp", bound)
        assert_within(true, got, (1 + got.worst_gap) * (1 + 1e-9))


def test_more_blocks_leave_a_smaller_gap() -> None:
    """The frontier of a sum of many parts is nearly convex, so that lines are enough."""
    gaps = []
    for blocks in (1, 4, 16):
        guide = guide_of(layered(0, blocks))
        guide.round()
        assert guide.found is not None and guide.bound is not None
        gaps.append(float(guide.bound.gaps(guide.found.mem, guide.found.time).max()))
    assert gaps[0] > 2 * gaps[1] > 4 * gaps[2]


@pytest.mark.parametrize("algorithm", ["ft-ldp", "ft-elimination"])
def test_a_search_that_may_not_be_exact_is_guided(monkeypatch: pytest.MonkeyPatch, algorithm: str) -> None:
    problem = layered(1, 6)
    true = search(problem, algorithm)
    assert true.exact
    monkeypatch.setattr(sys.modules["tensoropt.ft.search"], "MAX_PAIRS", 0)  # the package's name for it is the function
    rounds = []
    monkeypatch.setattr(
        guided_module.Guide, "round", lambda guide, *args, of=Guide.round: (rounds.append(1), of(guide, *args))[1]
    )
    first, again = (search(problem, algorithm, budget=Budget(seconds=0)) for _ in range(2))
    assert len(rounds) == 2
    assert (first.mem_bytes == again.mem_bytes).all() and (first.time_ns == again.time_ns).all()
    assert first.bound is not None
    assert below(first.bound, true.mem_bytes, true.time_ns).all()
    assert_within(true, first, (1 + first.worst_gap) * (1 + 1e-9))
    refined = search(problem, algorithm, budget=Budget(seconds=2))
    assert refined.worst_gap <= first.worst_gap and len(refined) >= len(first)
    assert_within(true, refined, (1 + refined.worst_gap) * (1 + 1e-9))


def test_limits_end_a_solution() -> None:
    problem = layered(0, 4)
    thinning = Thinning(NO_SLACK, len(problem.nodes), 10_000)
    for limits in (Limits(4, is_strict=True), Limits(1 << 20, max_work=100.0)):
        with pytest.raises(TooLargeError):
            track(problem, True, thinning, limits, lambda graph: None)
    assert not track(problem, True, thinning, Limits(1 << 20, 1e9, is_strict=True), lambda graph: None).counts["heuristic"]


points = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), min_size=1, max_size=30)


def table_of(frontiers: Sequence[ArrayLike]) -> Table:
    parts = []
    for each in frontiers:
        mem, time = np.array(each, np.int64).T
        kept = reduce_unsorted(mem, time)
        parts.append((mem[kept], time[kept]))
    offsets = np.cumsum([0, *(len(mem) for mem, _ in parts)])
    states = np.arange(len(parts), dtype=np.int32)[:, None]
    return Table((0,), states, offsets, *(np.concatenate(part) for part in zip(*parts, strict=True)))


def runs(table: Table) -> list[slice]:
    return [slice(*table.offsets[i : i + 2]) for i in range(table.n_cells)]


@given(st.lists(points, min_size=1, max_size=4), st.integers(0, 20), st.integers(0, 20))
def test_thinning_covers_every_point_with_the_fewest_and_both_ends(frontiers: list, tol_mem: int, tol_time: int) -> None:
    table, tolerance = table_of(frontiers), Slack(tol_mem, tol_time)
    thinner = thinned(table, tolerance, longer_than=0)
    assert thinner.slack == tolerance
    for run, left in zip(runs(table), runs(thinner), strict=True):
        mem, time = table.mem[run], table.time[run]
        covers = (mem[:, None] <= mem + tol_mem) & (time[:, None] <= time + tol_time)
        kept = np.isin(mem, thinner.mem[left])
        assert covers[kept].any(axis=0).all()
        assert kept.sum() <= fewest(covers) + 2
        assert (thinner.mem[left][[0, -1]] == mem[[0, -1]]).all()


def fewest(covers: np.ndarray) -> int:
    """The number of points that are needed to cover all, by trying: a point covers an interval."""
    best = [0] + [10**9] * len(covers)
    for end in range(1, len(covers) + 1):
        for point in range(len(covers)):
            if covers[point, end - 1]:
                best[end] = min(best[end], best[int(np.flatnonzero(covers[point])[0])] + 1)
    return best[-1]
