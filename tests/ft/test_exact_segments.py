"""Problems whose memory includes the largest segment's, exactly: what enumeration finds, to the byte and the nanosecond."""

from __future__ import annotations

import contextlib
import time
from itertools import product

import numpy as np
import pytest
from helpers.large import first

from tensoropt.ft import INFEASIBLE, InfeasibleError, Problem
from tensoropt.ft.nonadditive.exact import bounds, dominance, frontiers, search
from tensoropt.ft.nonadditive.exact.eliminations import FIRST, Eliminations
from tensoropt.ft.nonadditive.exact.frontiers import Effort
from tensoropt.ft.nonadditive.exact.search import LITTLE, Solved, frontier_within
from tensoropt.ft.nonadditive.segment_memory import SegmentMemory, Transient
from tensoropt.ft.pareto import reduce_unsorted
from tensoropt.ft.weighted.lagrangian import Found

from .problems import random_problem


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


def check(seed: int, epsilon: float = 0.0) -> None:
    problem, transient = drawn(seed)
    strategies = np.array(list(product(*(range(node.n_states) for node in problem.nodes))), np.int32)[:20_000]
    if len(strategies) == 20_000:
        return
    mem, time_ns = costs_of(problem, transient, strategies)
    allowed = np.flatnonzero(np.maximum(mem, time_ns) < INFEASIBLE)
    if not len(allowed):
        with contextlib.suppress(InfeasibleError):  # sums that are too large are found to be so by other searches
            assert frontier_within(problem, transient, strategies[:0]) is None
        return
    best = allowed[reduce_unsorted(mem[allowed], time_ns[allowed])]
    rng = np.random.default_rng(seed)
    known = strategies[rng.choice(allowed, min(len(allowed), int(rng.integers(0, 5))), replace=False)]
    exact = frontier_within(problem, transient, known)
    if epsilon and exact is not None:
        check_within(frontier_within(problem, transient, known, LITTLE, epsilon), exact.found, epsilon)
    if exact is None:  # the cheapest by weighted sums aren't allowed, as their sums are too large
        assert not len(known) and mem[allowed].max() > INFEASIBLE / 16
        return
    assert exact.bound is None
    np.testing.assert_array_equal(exact.found.mem, mem[best])
    np.testing.assert_array_equal(exact.found.time, time_ns[best])
    found_mem, found_time = costs_of(problem, transient, exact.found.strategies)
    np.testing.assert_array_equal(exact.found.mem, found_mem)
    np.testing.assert_array_equal(exact.found.time, found_time)


def check_within(near: Solved | None, exact: Found, epsilon: float) -> None:
    """A frontier's bound holds for the exact one, and its points are as near as they are to be."""
    assert near is not None
    factor = 1 + epsilon * (1 + 1e-9)
    as_near = (near.found.mem <= factor * exact.mem[:, None]) & (near.found.time <= factor * exact.time[:, None])
    assert as_near.any(axis=1).all()
    bound = near.bound
    assert bound is not None
    as_low = (bound.mem_bytes <= exact.mem[:, None]) & (bound.time_ns <= exact.time[:, None])
    assert as_low.any(axis=1).all()


@pytest.mark.parametrize("seed", first(120, range(5_000)))
def test_the_frontier_is_that_of_all_strategies(seed: int) -> None:
    check(seed)


@pytest.mark.parametrize("seed", first(60, range(2_000)))
def test_it_is_so_whatever_is_dropped_by_bounds_and_block_by_block(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(seed)
    monkeypatch.setattr(search, "ROUNDS", int(rng.integers(0, 3)))
    monkeypatch.setattr(search, "DIRECTIONS", int(rng.integers(0, 4)))
    monkeypatch.setattr(bounds, "MAX_CORNERS", int(rng.choice([1, 2, 256])))
    monkeypatch.setattr(frontiers, "BLOCK", int(rng.choice([1, 10, 100])))
    monkeypatch.setattr(frontiers, "FEW", int(rng.choice([1, 4])))
    monkeypatch.setattr(frontiers, "SAMPLED", 2)
    monkeypatch.setattr(dominance, "AT_ONCE", int(rng.choice([0, 10, 1 << 17])))
    monkeypatch.setattr(frontiers, "LONG", int(rng.choice([1, 2])))
    check(seed + 10**5, float(rng.choice([0.01, 0.05, 0.25])))


@pytest.mark.parametrize("seed", first(20, range(500)))
def test_bounds_are_what_the_cheapest_strategies_cost(seed: int) -> None:
    """Each cell's least cost, with the least of all beyond it, is that of the best strategy through it."""
    problem, transient = drawn(seed)
    try:
        eliminations = Eliminations.of(problem, transient, 1 << 20)
    except InfeasibleError:
        return
    assert eliminations is not None
    strategies = np.array(list(product(*(range(node.n_states) for node in problem.nodes))), np.int32)
    weights = np.random.default_rng(seed).integers(0, 5, (3, FIRST + len(transient.segments))).astype(float)
    total = weights[:, FIRST:] @ transient.by_segment(problem, strategies)
    parts = [(node, (strategies[:, i],)) for i, node in enumerate(problem.nodes)]
    for part, at in [*parts, *((edge, (strategies[:, edge.source], strategies[:, edge.target])) for edge in problem.edges)]:
        costs = np.stack([part.mem_bytes[at], part.time_ns[at]])
        total += np.where((costs < INFEASIBLE).all(axis=0), weights[:, :FIRST] @ costs, np.inf)
    least = bounds.forward(eliminations, weights)
    beyond = bounds.backward(eliminations, least)
    tables = zip(eliminations.scopes, eliminations.states, least, beyond, strict=True)
    for scope, states, of_cell, of_rest in tables:
        if max(scope, default=0) >= len(problem.nodes):
            continue  # a class of states is a variable, too
        for i, cell in enumerate(states):
            through = (strategies[:, list(scope)] == cell).all(axis=1)
            np.testing.assert_allclose(of_cell[:, i] + of_rest[:, i], total[:, through].min(axis=1), rtol=1e-12)
    best = bounds.best_strategies(eliminations, least)[:, : len(problem.nodes)]
    index = np.array([np.flatnonzero((strategies == row).all(axis=1))[0] for row in best])
    np.testing.assert_allclose(total[np.arange(3), index], total.min(axis=1), rtol=1e-12)


@pytest.mark.parametrize("seed", range(30))
def test_compiled_code_keeps_the_points_that_numpy_keeps(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n_costs, n_points = int(rng.integers(1, 6)), int(rng.integers(1, 400))
    in_set, costs = rng.integers(0, 5, n_points), rng.integers(0, int(rng.choice([3, 20, 1000])), (n_costs, n_points))
    order = np.lexsort((*costs[::-1], in_set))
    in_set, costs = in_set[order], np.ascontiguousarray(costs[:, order])
    as_good = (costs[:, :, None] <= costs[:, None, :]).all(axis=0) & (in_set[:, None] == in_set)
    expected = ~np.triu(as_good, 1).any(axis=0)
    np.testing.assert_array_equal(dominance.undominated_in_numpy(in_set, costs), expected)
    compiled = pytest.importorskip("tensoropt.ft.nonadditive.exact.numba_dominance")
    kept = np.zeros(n_points, np.bool_)
    compiled.mark_undominated(in_set, costs, kept)
    np.testing.assert_array_equal(kept, expected)


def test_what_would_take_too_much_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, transient = drawn(5)
    known = frontier_within(problem, transient, np.zeros((1, len(problem.nodes)), np.int32))
    assert known is not None
    one = known.found.strategies[:1]
    for limit in ("PAIRS_OF_ARC", "MAX_SEGMENTS"):
        with monkeypatch.context() as patched:
            patched.setattr(search, limit, 0)
            assert frontier_within(problem, transient, one) is None, limit
    for effort in (Effort(3, 1e9), Effort(1 << 20, 3), Effort(1 << 20, 1e9, time.monotonic() - 1)):
        assert frontier_within(problem, transient, one, effort) is None, effort
    assert frontier_within(problem, transient, one, Effort(1 << 20, 1e9)) is not None
