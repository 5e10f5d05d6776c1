"""OptCNN's least time against enumeration, variable elimination alone, and the frontier's fastest point."""

from __future__ import annotations

import numpy as np
import pytest

from tensoropt.ft import InfeasibleError, Problem, search
from tensoropt.ft.reference.optcnn import _product, least_time
from tensoropt.ft.weighted.weighted_search import WeightedSearch

from .problems import Costs, build, chain_pairs, resnet_pairs
from .test_least import all_strategies, entangled_problem, small_problem

SERIAL = Costs(10**6, interfaces=0.8)


@pytest.mark.parametrize("draw", [small_problem, entangled_problem])
def test_least_time_is_that_of_enumeration(draw):
    n_allowed = 0
    for seed in range(300 if draw is small_problem else 20):
        problem = draw(seed)
        strategies, _, times = all_strategies(problem)
        if not len(strategies):
            with pytest.raises(InfeasibleError, match="no strategy is allowed"):
                least_time(problem)
            continue
        n_allowed += 1
        found = least_time(problem)
        assert found.exact and len(found) == 1
        assert found.time_ns[0] == times.min()
        assert problem.cost(found.strategies[0].tolist()) == (found.mem_bytes[0], found.time_ns[0])
    assert n_allowed > 10


@pytest.mark.parametrize("seed", range(10))
def test_least_time_is_that_of_the_frontier_and_of_variable_elimination_alone(seed):
    rng = np.random.default_rng(seed)
    pairs = resnet_pairs(5)
    problem = build(rng, rng.integers(2, 12, 21).tolist(), pairs, Costs(10**9, interfaces=0.8))
    found = least_time(problem)
    assert found.time_ns[0] == search(problem).time_ns[-1]
    least = WeightedSearch(problem).least((0, 1))
    assert least.exact and least.time_ns == found.time_ns[0]


def test_eliminations_are_counted_and_leave_nothing_of_a_series_parallel_graph():
    rng = np.random.default_rng(0)
    chain = build(rng, [3] * 6, chain_pairs(6), SERIAL)
    # The last node has no neighbours left.
    assert dict(least_time(chain).eliminations) == {"node": 5, "edge": 0, "branch": 0, "heuristic": 0}
    residual = build(rng, [3] * 21, resnet_pairs(5), SERIAL)
    assert dict(least_time(residual).eliminations) == {"node": 20, "edge": 5, "branch": 0, "heuristic": 0}


def test_tables_that_are_too_large_leave_a_strategy_and_a_bound():
    below = 0
    for seed in range(30):
        problem: Problem = entangled_problem(3 * seed)
        strategies, _, times = all_strategies(problem)
        if not len(strategies):
            continue
        found = least_time(problem, max_cells=4)
        assert found.time_ns[0] >= times.min()
        if found.exact:
            assert found.time_ns[0] == times.min()
        else:
            below += 1
            assert found.bound is not None and found.bound.time_ns[0] <= times.min()
            assert found.worst_gap == pytest.approx(found.time_ns[0] / found.bound.time_ns[0] - 1)
    assert below


def test_progress_counts_nodes():
    told: list[tuple[int, int]] = []
    problem = build(np.random.default_rng(0), [2] * 6, chain_pairs(6), SERIAL)
    least_time(problem, lambda done, total: told.append((done, total)))
    assert told == [(done, 6) for done in range(1, 6)]


def test_products_of_tables_with_equal_rows_are_those_of_all_rows():
    rng = np.random.default_rng(1)
    for _ in range(20):
        left, right = rng.integers(0, 9, (5, 4))[rng.integers(0, 5, 7)], rng.integers(0, 9, (4, 3))[:, rng.integers(0, 3, 6)]
        assert np.array_equal(_product(left, right), (left[:, :, None] + right[None]).min(axis=1))


def test_dropping_what_is_not_faster_proves_more_than_tables_alone():
    proven = {"alone": 0, "dropping": 0}
    for seed in range(60):
        problem = entangled_problem(3 * seed)
        strategies, _, times = all_strategies(problem)
        if len(strategies):
            found = least_time(problem, max_cells=16)
            proven["dropping"] += found.exact
            proven["alone"] += WeightedSearch(problem, 16).least((0, 1)).exact
            assert not found.exact or found.time_ns[0] == times.min()
    assert proven["dropping"] > proven["alone"]
