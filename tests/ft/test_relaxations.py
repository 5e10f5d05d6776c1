"""Searches of relaxations, chosen corner by corner: what they prove holds for all strategies, found by enumeration."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from helpers.large import first

from tensoropt.ft import INFEASIBLE, Frontier, InfeasibleError, LowerBound, Node, Problem, search
from tensoropt.ft.frontier import settled
from tensoropt.ft.nonadditive.relaxations import Cap, Relaxations
from tensoropt.ft.nonadditive.segment_memory import SegmentMemory, Transient
from tensoropt.ft.pareto import reduce_unsorted

from .problems import random_problem
from .test_bounds import below


def drawn(seed: int) -> tuple[Problem, Transient]:
    """A random problem, some of whose nodes and edges take memory in one of one to four segments, or in two."""
    problem, rng = random_problem(seed), np.random.default_rng(seed + 10**6)
    n_segments = int(rng.integers(1, 5))
    limit = int(rng.choice([3, 40, 10**6]))
    nodes: list[dict[int, np.ndarray]] = [{} for _ in range(n_segments)]
    edges: list[dict[int, np.ndarray]] = [{} for _ in range(n_segments)]
    for i, node in enumerate(problem.nodes):
        for segment in rng.choice(n_segments, int(rng.integers(0, 2)) + (rng.random() < 0.2)):
            nodes[segment][i] = rng.integers(0, limit, node.n_states) * (rng.random(node.n_states) < 0.7)
    for i, edge in enumerate(problem.edges):
        if rng.random() < 0.4:
            shape = edge.mem_bytes.shape
            edges[int(rng.integers(n_segments))][i] = rng.integers(0, limit, shape) * (rng.random(shape) < 0.5)
    large = frozenset(rng.choice(n_segments, int(rng.integers(1, n_segments + 1)), replace=False).tolist())
    return problem, Transient(tuple(map(SegmentMemory, nodes, edges)), {}, {}, large)


def costs_of(problem: Problem, transient: Transient, strategies: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The costs of strategies, computed one by one; INFEASIBLE where one isn't allowed."""
    costs = np.array([problem.cost(strategy.tolist()) for strategy in strategies], object).reshape(-1, 2)
    mem, time_ns = np.minimum(costs, INFEASIBLE).astype(np.int64).T
    return mem + transient.most_bytes(problem, strategies), time_ns


def enumerated(seed: int) -> tuple[Problem, Transient, np.ndarray] | None:
    """A random problem and its allowed strategies; None where there are none or very many."""
    problem, transient = drawn(seed)
    strategies = np.array(list(product(*(range(node.n_states) for node in problem.nodes))), np.int32)[:20_000]
    mem, time_ns = costs_of(problem, transient, strategies)
    allowed = strategies[np.maximum(mem, time_ns) < INFEASIBLE]
    return None if len(strategies) == 20_000 or not len(allowed) else (problem, transient, allowed)


def nearest(problem: Problem, transient: Transient, gap: float, check) -> Frontier:
    """The frontier that all relaxations find; ``check`` is called with each bound, and the relaxation that raised it."""

    def know(found: Frontier) -> Frontier:
        relaxations.know(found.time_ns, found.strategies)
        return transient.at_true_memory(problem, found, relaxations.bound)

    found = search(transient.charged(problem))
    relaxations = Relaxations(problem, transient, found.lower_bound())
    best = know(found)
    check(relaxations.bound, None)
    for _ in range(200):
        relaxation = relaxations.next(best, gap)
        if relaxation is None:
            return best
        try:
            found = search(relaxations.relaxed(relaxation))
        except InfeasibleError:
            assert isinstance(relaxation, Cap)
            relaxations.prove(relaxation, None)
            best = settled(replace(best, bound=relaxations.bound))
        else:
            relaxations.prove(relaxation, found.lower_bound())
            there = know(found)
            best = replace(best, bound=there.lower_bound()).with_points(there.mem_bytes, there.time_ns, there.strategies)
        check(relaxations.bound, relaxation)
    raise AssertionError("there is no end")


@pytest.mark.parametrize("seed", first(50, range(5_000)))
def test_each_bound_holds_for_all_strategies(seed: int) -> None:
    drawn_case = enumerated(seed)
    if drawn_case is None:
        return
    problem, transient, strategies = drawn_case
    mem, time_ns = costs_of(problem, transient, strategies)
    best = reduce_unsorted(mem, time_ns)

    def check(bound: LowerBound, relaxation) -> None:
        assert below(bound, mem[best], time_ns[best]).all(), relaxation

    gap = float(np.random.default_rng(seed).choice([0.0, 0.01, 0.1]))
    found = nearest(problem, transient, gap, check)
    found_mem, found_time = costs_of(problem, transient, found.strategies)
    np.testing.assert_array_equal(found.mem_bytes, found_mem)
    np.testing.assert_array_equal(found.time_ns, found_time)
    if found.exact:
        np.testing.assert_array_equal(found.mem_bytes, mem[best])
        np.testing.assert_array_equal(found.time_ns, time_ns[best])


@pytest.mark.parametrize("seed", range(20))
def test_levels_are_exact_where_each_segment_is_one_tensor(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0, 100, (4, 3))
    nodes = tuple(Node("op", rng.integers(0, 100, 3), rng.integers(0, 100, 3)) for _ in range(4))
    segments = tuple(SegmentMemory({i: sizes[i]}, {}) for i in range(4))
    problem, transient = Problem(nodes), Transient(segments, {}, {}, frozenset({0, 1}))
    found = nearest(problem, transient, 0.0, lambda bound, relaxation: None)
    every = np.array(list(product(range(3), repeat=4)), np.int32)
    mem, time_ns = costs_of(problem, transient, every)
    kept = reduce_unsorted(mem, time_ns)
    assert found.exact
    np.testing.assert_array_equal(found.mem_bytes, mem[kept])
    np.testing.assert_array_equal(found.time_ns, time_ns[kept])
