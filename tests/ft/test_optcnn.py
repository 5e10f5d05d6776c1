"""OptCNN's least time against enumeration and the frontier's fastest point."""

from __future__ import annotations

import numpy as np
import pytest

from tensoropt.ft import InfeasibleError, Problem, search
from tensoropt.ft.reference.optcnn import least_time
from tensoropt.ft.weighted.weighted_search import WeightedSearch

from .problems import Costs, all_strategies, build, chain_pairs, resnet_pairs
from .test_least import entangled_problem, small_problem

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
def test_least_time_is_that_of_the_frontier(seed):
    rng = np.random.default_rng(seed)
    pairs = resnet_pairs(5)
    problem = build(rng, rng.integers(2, 12, 21).tolist(), pairs, Costs(10**9, interfaces=0.8))
    found = least_time(problem)
    assert found.time_ns[0] == search(problem).time_ns[-1]


def test_eliminations_are_counted():
    rng = np.random.default_rng(0)
    for n, pairs in ((6, chain_pairs(6)), (21, resnet_pairs(5))):
        problem = build(rng, [3] * n, pairs, SERIAL)
        assert dict(least_time(problem).eliminations) == {"node": n, "edge": 0, "branch": 0, "heuristic": 0}


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


def test_dropping_what_is_not_faster_proves_more_than_tables_alone():
    proven = {"alone": 0, "dropping": 0}
    for seed in range(60):
        problem = entangled_problem(3 * seed)
        strategies, _, times = all_strategies(problem)
        if len(strategies):
            found = least_time(problem, max_cells=16)
            proven["dropping"] += found.exact
            proven["alone"] += WeightedSearch(problem, 16).least((0, 1)).is_exact
            assert not found.exact or found.time_ns[0] == times.min()
    assert proven["dropping"] > proven["alone"]
