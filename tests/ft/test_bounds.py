"""Lower bounds, gaps and proven points of searches that aren't exact hold."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensoropt.ft import Budget, Frontier, InfeasibleError, LowerBound, Problem, search
from tensoropt.ft.tables.table import NO_SLACK

from .problems import SHAPES, Costs, build, chain_pairs, random_problem, resnet_pairs

ROUGH = Budget(max_table_cells=2, seconds=0)


def below(bound: LowerBound, mem: np.ndarray, time: np.ndarray) -> np.ndarray:
    """Return for each point whether the bound has a point that is at least as good in both costs, by definition."""
    return ((bound.mem_bytes <= mem[:, None]) & (bound.time_ns <= time[:, None])).any(axis=1)


def gap_by_definition(mem: int, time: int, frontier: Frontier) -> float:
    """The smallest e with a point of the frontier within (1 + e) of a point in both costs."""
    best = np.inf
    for m, t in zip(frontier.mem_bytes.tolist(), frontier.time_ns.tolist(), strict=True):
        factors = [1.0 if cost <= of else cost / of if of else np.inf for cost, of in ((m, mem), (t, time))]
        best = min(best, max(factors) - 1)
    return best


def entangled_problem(seed: int) -> Problem:
    """One that small tables do not solve, one time in two."""
    if seed % 2:
        return random_problem(seed // 2)
    rng = np.random.default_rng(seed)
    n, pairs = SHAPES[("clique", "mask", "attention")[seed // 2 % 3]]
    return build(rng, [4] * n, pairs, Costs(int(rng.choice([30, 10**6])), float(rng.choice([0.0, 0.1]))))


def true_and_rough(seeds: range, budget: Budget) -> Iterator[tuple[Frontier, Frontier]]:
    for seed in seeds:
        problem = entangled_problem(seed)
        try:
            yield search(problem, "exhaustive"), search(problem, budget=budget)
        except InfeasibleError:
            continue


def test_the_bound_is_below_every_strategy(everything: bool) -> None:
    n_bounds = n_proven = 0
    for true, rough in true_and_rough(range(300 if everything else 50), ROUGH):
        n_proven += int(rough.exact_points.sum())
        true_points = set(zip(true.mem_bytes.tolist(), true.time_ns.tolist(), strict=True))
        points = list(zip(rough.mem_bytes.tolist(), rough.time_ns.tolist(), strict=True))
        assert all(point in true_points for point, proven in zip(points, rough.exact_points, strict=True) if proven)
        if rough.bound is None:
            assert len(points) == len(true)
            continue
        n_bounds += 1
        assert below(rough.bound, true.mem_bytes, true.time_ns).all()
        pairs = zip(rough.bound.mem_bytes.tolist(), rough.bound.time_ns.tolist(), strict=True)
        expected = [gap_by_definition(mem, time, rough) for mem, time in pairs]
        assert rough.gaps == pytest.approx(expected, rel=1e-9, abs=1e-12)
        reached = max(gap_by_definition(mem, time, rough) for mem, time in sorted(true_points))
        assert reached <= rough.worst_gap * (1 + 1e-9) + 1e-12
    assert n_bounds > 12
    assert n_proven > 25


def varied_problem(seed: int) -> Problem:
    """Long frontiers from few nodes: costs that all differ."""
    rng = np.random.default_rng(seed)
    n, pairs = (17, resnet_pairs(4)) if seed % 2 else (24, chain_pairs(24))
    return build(rng, [5] * n, pairs, Costs(10**6, interfaces=0.5))


def assert_within(true: Frontier, got: Frontier, factor: float) -> None:
    for mem, time in zip(true.mem_bytes, true.time_ns, strict=True):
        assert ((got.mem_bytes <= mem * factor) & (got.time_ns <= time * factor)).any()


@pytest.mark.parametrize("max_points", [2, 10, 40])
def test_a_cap_is_certified(max_points: int) -> None:
    for seed in range(4):
        true = search(varied_problem(seed))
        got = search(varied_problem(seed), budget=Budget(max_points=max_points, seconds=0))
        assert len(got) <= max_points
        assert not got.exact
        assert got.bound is not None
        assert below(got.bound, true.mem_bytes, true.time_ns).all()
        assert_within(true, got, (1 + got.worst_gap) * (1 + 1e-9))


costs = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), min_size=1, max_size=8)


def bound_of(points: list[tuple[int, int]]) -> LowerBound:
    mem, time = np.array(points, np.int64).T
    return LowerBound.within(mem, time, NO_SLACK, "test")


@given(costs, costs)
def test_two_bounds_together_allow_what_both_allow(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> None:
    together = bound_of(one).tightened(bound_of(other))
    grid = np.array([(m, t) for m in range(14) for t in range(14)], np.int64).T
    allowed = below(bound_of(one), *grid) & below(bound_of(other), *grid)
    assert (below(together, *grid) == allowed).all()


@given(costs, costs)
def test_bounds_prove_gaps(of_bound: list[tuple[int, int]], of_points: list[tuple[int, int]]) -> None:
    bound, points = bound_of(of_bound), bound_of(of_points)
    proven = bound.proves(points.mem_bytes, points.time_ns)
    steps = set(zip(bound.mem_bytes.tolist(), bound.time_ns.tolist(), strict=True))
    for point, is_proven in zip(zip(points.mem_bytes.tolist(), points.time_ns.tolist(), strict=True), proven, strict=True):
        assert is_proven == (not any(s[0] <= point[0] and s[1] <= point[1] and s != point for s in steps))
