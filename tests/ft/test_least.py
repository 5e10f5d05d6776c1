"""The least weighted cost and min-marginals against enumeration; lower bounds where tables are too small."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable

import numpy as np
import pytest

from tensoropt.ft import INFEASIBLE, InfeasibleError, Problem
from tensoropt.ft.least import TimeIsUpError, WeightedSearch

from .problems import SHAPES, Costs, build, random_problem, resnet_pairs

WEIGHTS = ((1, 0), (0, 1), (1, 1), (3, 7), (1000, 1))


def all_strategies(problem: Problem) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All allowed strategies with their costs."""
    strategies = np.array(list(itertools.product(*(range(node.n_states) for node in problem.nodes))), np.int64)
    costs = np.array([problem.cost(strategy) for strategy in strategies.tolist()], dtype=object)
    allowed = (costs < INFEASIBLE).all(axis=1)
    return strategies[allowed], costs[allowed, 0], costs[allowed, 1]


def small_problem(seed: int) -> Problem:
    """Few strategies, and costs that add up exactly in any of WEIGHTS."""
    problem = random_problem(seed)
    while max(int(np.where(n.mem_bytes < INFEASIBLE, n.mem_bytes, 0).max()) for n in problem.nodes) > 1 << 35 or (
        math.prod(node.n_states for node in problem.nodes) > 1500
    ):
        seed += 10_000
        problem = random_problem(seed)
    return problem


def entangled_problem(seed: int) -> Problem:
    rng = np.random.default_rng(seed)
    n, pairs = SHAPES[("clique", "mask", "attention")[seed % 3]]
    return build(rng, [4] * n if n < 7 else [3, 2, 3, 2, 3, 2, 3], pairs, Costs(10**6, float(rng.choice([0.0, 0.1]))))


def searches(
    seeds: range, max_cells: int, draw: Callable[[int], Problem] = small_problem
) -> list[tuple[Problem, WeightedSearch, tuple[np.ndarray, ...]]]:
    found = []
    for seed in seeds:
        problem = draw(seed)
        strategies, mem, time_ns = all_strategies(problem)
        search = WeightedSearch(problem, max_cells)
        if len(strategies):
            found.append((problem, search, (strategies, mem, time_ns)))
        else:
            with pytest.raises(InfeasibleError, match="no strategy is allowed"):
                search.least((1, 1))
    assert len(found) > len(seeds) / 3
    return found


@pytest.mark.parametrize("batch", range(3))
def test_least_and_marginals_equal_enumeration(batch: int) -> None:
    for problem, search, (strategies, mem, time_ns) in searches(range(batch * 40, batch * 40 + 40), 1 << 20):
        assert search.plan.exact
        for weights in WEIGHTS:
            costs = (weights[0] * mem + weights[1] * time_ns).astype(np.float64)
            got = search.marginals(weights, with_edges=True)
            assert got.least.exact
            assert got.least.bound == costs.min()
            assert got.least.strategy is not None
            assert problem.cost(got.least.strategy) == (got.least.mem_bytes, got.least.time_ns)
            for node, marginal in enumerate(got.nodes):
                expected = [costs[strategies[:, node] == s].min(initial=np.inf) for s in range(len(marginal))]
                assert marginal.tolist() == expected
            for edge, of_pairs in zip(problem.edges, got.edges, strict=True):
                if of_pairs is None:
                    continue
                expected_pairs = np.full(of_pairs.shape, np.inf)
                np.minimum.at(expected_pairs, (strategies[:, edge.source], strategies[:, edge.target]), costs)
                assert (of_pairs <= expected_pairs).all()
                rows, columns = (np.unique(of_pairs, axis=a, return_inverse=True)[1].ravel() for a in (0, 1))
                of_class = np.full((rows.max() + 1, columns.max() + 1), np.inf)
                np.minimum.at(of_class, (rows[:, None], columns), expected_pairs)
                assert of_class[rows[:, None], columns].tolist() == of_pairs.tolist()


@pytest.mark.parametrize("max_cells", [1, 3, 8])
def test_small_tables_give_lower_bounds_and_real_strategies(max_cells: int) -> None:
    n_relaxed = n_below = n_found = 0
    for problem, search, (strategies, mem, time_ns) in [
        *searches(range(40), max_cells),
        *searches(range(40), max_cells, entangled_problem),
    ]:
        for weights in ((1, 0), (3, 7)):
            costs = (weights[0] * mem + weights[1] * time_ns).astype(np.float64)
            got = search.marginals(weights, with_edges=True)
            assert got.least.bound <= costs.min()
            n_relaxed += not search.plan.exact
            n_below += got.least.bound < costs.min()
            if got.least.strategy is not None:
                n_found += 1
                assert problem.cost(got.least.strategy) == (got.least.mem_bytes, got.least.time_ns)
                cost = weights[0] * got.least.mem_bytes + weights[1] * got.least.time_ns
                assert cost >= costs.min()
                assert got.least.exact == (cost == got.least.bound)
            for node, marginal in enumerate(got.nodes):
                true = [costs[strategies[:, node] == s].min(initial=np.inf) for s in range(len(marginal))]
                assert (marginal <= true).all()
            for edge, of_pairs in zip(problem.edges, got.edges, strict=True):
                if of_pairs is not None:
                    assert (of_pairs[strategies[:, edge.source], strategies[:, edge.target]] <= costs).all()
    assert n_relaxed > 20
    assert n_below > 10
    assert n_found > 50


def test_what_is_rounded_is_still_a_bound() -> None:
    """Costs near 2^53 times weights that are no integers."""
    for seed in range(30):
        problem = build(np.random.default_rng(seed), [3] * 5, SHAPES["clique"][1], Costs(1 << 51))
        _, mem, time_ns = all_strategies(problem)
        for weights in ((0.1, 0.7), (1, 1), (math.pi, 1e-3)):
            got = WeightedSearch(problem).least(weights)
            true = float((weights[0] * mem + weights[1] * time_ns).min())
            assert true * (1 - 1e-12) <= got.bound <= true


def test_integer_weights_are_as_exact_as_can_be() -> None:
    problem = build(np.random.default_rng(0), [5] * 9, resnet_pairs(2), Costs(1 << 38))
    search = WeightedSearch(problem)
    for mem, time_ns in ((1.0, 0.0), (0.0, 1.0), (1.0, 0.37), (1e-9, 1.0), (1.0, 1e-30)):
        weights = search.integer_weights(mem, time_ns)
        assert search.least(weights).exact
        assert any(weights)
        if min(mem, time_ns) > 1e-3:
            assert weights[0] / weights[1] == pytest.approx(mem / time_ns, rel=1e-1)


def test_wrong_weights_and_no_time() -> None:
    problem = build(np.random.default_rng(0), [5] * 9, resnet_pairs(2), Costs(100))
    for weights in ((-1, 1), (math.inf, 1), (1, math.nan)):
        with pytest.raises(ValueError, match="weights of memory and time"):
            WeightedSearch(problem).least(weights)
    with pytest.raises(TimeIsUpError):
        WeightedSearch(problem, deadline=time.monotonic() - 1).least((1, 1))
