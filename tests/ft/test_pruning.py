"""Pruning takes nothing from the frontier: the rest and what is known together have all of it."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensoropt.ft import Budget, Frontier, InfeasibleError, Problem, search
from tensoropt.ft.pareto import reduce_unsorted
from tensoropt.ft.weighted import reduced_cost_pruning as pruning
from tensoropt.ft.weighted.lagrangian import Found
from tensoropt.ft.weighted.reduced_cost_pruning import Pruned, pruned
from tensoropt.ft.weighted.weighted_search import TimeIsUpError

from .problems import SHAPES, Costs, build, chain_pairs, random_problem, resnet_pairs


def known_of(true: Frontier, seed: int) -> Found | None:
    """None, or some of the true frontier's points."""
    if seed % 2:
        return None
    some = np.flatnonzero(np.random.default_rng(seed).random(len(true)) < 0.5)
    return Found(true.mem_bytes[some], true.time_ns[some], true.strategies[some])


def together(problem: Problem, left: Pruned) -> tuple[np.ndarray, np.ndarray]:
    """The frontier of what is left and of what is known; all strategies are costed in the whole problem."""
    found = left.found
    mem, time_ns = found.mem, found.time
    for strategy, cost in zip(found.strategies.tolist(), zip(mem.tolist(), time_ns.tolist(), strict=True), strict=True):
        assert problem.cost(strategy) == cost
    if left.problem is not None:
        try:
            rest = search(left.problem, "exhaustive")
        except InfeasibleError:
            rest = None
        if rest is not None:
            for point, strategy in enumerate(rest.strategies.tolist()):
                real = [int(kept[state]) for kept, state in zip(left.kept, strategy, strict=True)]
                assert problem.cost(real) == (rest.mem_bytes[point], rest.time_ns[point])
            mem, time_ns = np.concatenate([mem, rest.mem_bytes]), np.concatenate([time_ns, rest.time_ns])
    kept = reduce_unsorted(mem, time_ns)
    return mem[kept], time_ns[kept]


def assert_within(true: Frontier, mem: np.ndarray, time_ns: np.ndarray, epsilon: float) -> None:
    factor = (1 + epsilon) * (1 + 1e-9)
    near = (mem <= true.mem_bytes[:, None] * factor) & (time_ns <= true.time_ns[:, None] * factor)
    assert near.any(axis=1).all()


def assert_keeps_the_frontier(problem: Problem, seed: int, epsilon: float, max_cells: int) -> tuple[int, int] | None:
    """The numbers of states before and after; None if nothing is allowed."""
    try:
        true = search(problem, "exhaustive")
    except InfeasibleError:
        return None
    left = pruned(problem, epsilon, known=known_of(true, seed), max_cells=max_cells)
    mem, time_ns = together(problem, left)
    if epsilon:
        assert_within(true, mem, time_ns, epsilon)
    else:
        assert mem.tolist() == true.mem_bytes.tolist(), seed
        assert time_ns.tolist() == true.time_ns.tolist(), seed
    bound = left.bound.loosened(left.of_dropped)
    assert ((bound.mem_bytes <= true.mem_bytes[:, None]) & (bound.time_ns <= true.time_ns[:, None])).any(axis=1).all()
    return sum(node.n_states for node in problem.nodes), sum(map(len, left.kept))


@pytest.mark.parametrize(("epsilon", "max_cells"), [(0.0, 1 << 20), (0.0, 3), (0.05, 1 << 20), (0.3, 4)])
def test_random_problems_keep_their_frontier(epsilon: float, max_cells: int, everything: bool) -> None:
    seeds = range(240 if everything else 80)
    sizes = [assert_keeps_the_frontier(random_problem(seed), seed, epsilon, max_cells) for seed in seeds]
    before, after = np.array([size for size in sizes if size is not None]).T
    assert len(before) > 0.4 * len(seeds)
    assert after.sum() < 0.8 * before.sum()


@pytest.mark.parametrize("epsilon", [0.0, 0.02])
def test_many_corners_are_joined(epsilon: float, monkeypatch: pytest.MonkeyPatch, everything: bool) -> None:
    monkeypatch.setattr(pruning, "MAX_CORNERS", 5)
    for seed in range(0, 60, 2 if everything else 4):
        assert_keeps_the_frontier(random_problem(seed), seed, epsilon, 1 << 20)


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from([name for name, (n, _) in SHAPES.items() if n <= 6]),
    st.integers(0, 1 << 30),
    st.sampled_from([2, 3, 10, 1000]),
    st.sampled_from([0.0, 0.2]),
    st.sampled_from([0.0, 0.01, 0.1]),
)
def test_ties_and_what_is_not_allowed(name: str, seed: int, limit: int, infeasible: float, epsilon: float) -> None:
    n, pairs = SHAPES[name]
    problem = build(np.random.default_rng(seed), [3] * n, pairs, Costs(limit, infeasible, 0.5))
    assert_keeps_the_frontier(problem, seed, epsilon, 1 << 20)


def test_more_than_64_corners() -> None:
    """A chain with a frontier of hundreds of points, all known but every third."""
    problem = build(np.random.default_rng(1), [8] * 30, chain_pairs(30), Costs(10**6))
    true = search(problem)
    some = np.arange(len(true)) % 3 > 0
    known = Found(true.mem_bytes[some], true.time_ns[some], true.strategies[some])
    assert len(known) > 64
    left = pruned(problem, known=known)
    assert left.problem is not None
    rest = search(left.problem)
    mem, time_ns = np.concatenate([left.found.mem, rest.mem_bytes]), np.concatenate([left.found.time, rest.time_ns])
    kept = reduce_unsorted(mem, time_ns)
    assert mem[kept].tolist() == true.mem_bytes.tolist()
    assert time_ns[kept].tolist() == true.time_ns.tolist()
    assert left.n_pairs[1] < left.n_pairs[0] / 2


def test_a_threshold_off_by_one_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Corners one lower in both costs would drop what is not dominated."""
    right = pruning._live_corners

    def wrong(*given: object) -> tuple[np.ndarray, np.ndarray]:
        mem, time_ns = right(*given)  # type: ignore[arg-type]
        return mem - 1, time_ns - 1

    monkeypatch.setattr(pruning, "_live_corners", wrong)
    caught = 0
    for seed in range(60):
        try:
            assert_keeps_the_frontier(random_problem(seed), seed, 0.0, 1 << 20)
        except AssertionError:
            caught += 1
    assert caught > 2


@pytest.mark.parametrize("algorithm", ["ft-ldp", "ft-elimination"])
def test_what_pruning_leaves_is_solved_exactly(algorithm: str, everything: bool) -> None:
    """Small tables do not solve these in one round; what pruning leaves they do."""
    for seed in range(12 if everything else 6):
        rng = np.random.default_rng(seed)
        n, pairs = SHAPES[("clique", "mask", "attention")[seed % 3]]
        problem = build(rng, [4] * n, pairs, Costs(10**6, float(rng.choice([0.0, 0.1]))))
        true = search(problem, "exhaustive")
        got = search(problem, algorithm, budget=Budget(max_table_cells=6, seconds=60))
        assert got.exact
        assert got.mem_bytes.tolist() == true.mem_bytes.tolist()
        assert got.time_ns.tolist() == true.time_ns.tolist()
        for mem, time_ns, strategy in zip(got.mem_bytes, got.time_ns, got.strategies, strict=True):
            assert problem.cost(strategy) == (mem, time_ns)


def test_the_gap_is_kept_with_pruning(everything: bool) -> None:
    n_used = 0
    for seed in range(6 if everything else 2):
        problem = build(np.random.default_rng(seed), [5] * 13, [*resnet_pairs(3), (1, 7), (3, 11), (2, 9)], Costs(10**6))
        true = search(problem, budget=Budget(max_table_cells=1 << 22))
        assert true.exact
        got = search(problem, budget=Budget(max_table_cells=30, gap=0.02, seconds=60))
        assert_within(true, got.mem_bytes, got.time_ns, 0.02)
        assert got.worst_gap <= 0.02 * (1 + 1e-6)
        n_used += got.bound is not None and "pruning" in got.bound.source
    assert n_used > 0


def test_pruning_without_time_says_so_and_less_time_drops_less() -> None:
    problem = build(np.random.default_rng(0), [6] * 21, resnet_pairs(5), Costs(10**6))
    with pytest.raises(TimeIsUpError):
        pruned(problem, deadline=time.monotonic() - 1)
    sizes = [sum(map(len, pruned(problem, n_weights=n).kept)) for n in (0, 2, 24)]
    assert sizes[0] == 6 * 21 >= sizes[1] > sizes[2]
