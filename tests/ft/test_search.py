"""Every search against enumeration, to the byte and the nanosecond."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.large import first

from tensoropt.ft import INFEASIBLE, Budget, Edge, InfeasibleError, Node, Problem, search
from tensoropt.ft.tables import contract as combine

from .problems import SHAPES, Costs, build, chain_pairs, identity_edge, random_problem, real_points, resnet_pairs

N_PROBLEMS = 10_800  # of which about 6,600 have a strategy
BATCHES = 72
FAST = ("ft-ldp", "ft-elimination")


def assert_equals_enumeration(problem: Problem, algorithm: str, what: object) -> bool:
    """Whether anything is allowed."""
    try:
        expected = search(problem, "exhaustive")
    except InfeasibleError:
        with pytest.raises(InfeasibleError, match="no strategy is allowed"):
            search(problem, algorithm)
        return False
    got = search(problem, algorithm)
    assert real_points(problem, got) == real_points(problem, expected), what
    assert got.exact
    assert got.eliminations["heuristic"] == 0
    assert got.algorithm == algorithm
    return True


@pytest.mark.parametrize("batch", first(2, range(BATCHES)))
@pytest.mark.parametrize("algorithm", FAST)
def test_frontier_equals_enumeration(algorithm: str, batch: int) -> None:
    size = N_PROBLEMS // BATCHES
    seeds = range(batch * size, (batch + 1) * size)
    feasible = sum(assert_equals_enumeration(random_problem(seed), algorithm, seed) for seed in seeds)
    assert feasible > size / 3


@pytest.mark.parametrize("name", SHAPES)
def test_small_blocks_change_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    n, pairs = SHAPES[name]
    problem = build(np.random.default_rng(5), [4] * n, pairs, Costs(50, 0.05, 0.5))
    whole = {algorithm: search(problem, algorithm) for algorithm in FAST}
    monkeypatch.setattr(combine, "PAIRS", 7)
    for algorithm in FAST:
        assert_equals_enumeration(problem, algorithm, name)
        assert search(problem, algorithm).strategies.tolist() == whole[algorithm].strategies.tolist()


def test_larger_problems_agree_and_are_deterministic() -> None:
    rng = np.random.default_rng(3)
    for pairs, n in ((resnet_pairs(5), 21), (chain_pairs(20), 20)):
        for costs in (Costs(40), Costs(10**9, 0.02, 1.0)):
            problem = build(rng, [6] * n, pairs, costs)
            first, second = (search(problem, algorithm) for algorithm in FAST)
            assert real_points(problem, first) == real_points(problem, second)
            for frontier in (first, second):
                again = search(problem, frontier.algorithm)
                assert np.array_equal(again.strategies, frontier.strategies)


def test_layouts_that_must_agree_cost_what_they_allow() -> None:
    """A tensor with many consumers and 200 states: joining five of them would be 200^5 states, but 200 are allowed."""
    rng = np.random.default_rng(0)
    n_states = 200
    nodes = tuple(Node(f"n{i}", *Costs(1000).draw(rng, (n_states,))) for i in range(7))
    edges = [identity_edge(0, i, n_states) for i in range(1, 6)] + [identity_edge(i, 6, n_states) for i in range(1, 6)]
    frontier = search(Problem(nodes, tuple(edges)))
    assert frontier.exact
    assert (frontier.strategies == frontier.strategies[:, :1]).all()
    total = sum(node.mem_bytes for node in nodes)
    assert frontier.mem_bytes[0] == total.min()


def test_a_mask_with_one_state_is_given_it_exactly() -> None:
    rng = np.random.default_rng(0)
    n, pairs = SHAPES["mask"]
    frontier = search(build(rng, [30] * (n - 1) + [1], pairs, Costs(20)), budget=Budget(max_table_cells=30, seconds=0))
    assert frontier.exact
    assert frontier.eliminations["heuristic"] == 0


def test_eliminations_are_counted() -> None:
    rng = np.random.default_rng(0)

    def counts(name: str, algorithm: str) -> dict[str, int]:
        n, pairs = SHAPES[name]
        return dict(search(build(rng, [4] * n, pairs, Costs(10**6)), algorithm).eliminations)

    assert counts("chain", "ft-ldp") == {"node": 0, "edge": 0, "branch": 0, "heuristic": 0}
    assert counts("chain", "ft-elimination") == {"node": 6, "edge": 0, "branch": 0, "heuristic": 0}
    assert counts("diamond", "ft-ldp") == {"node": 2, "edge": 1, "branch": 0, "heuristic": 0}
    assert counts("clique", "ft-elimination")["branch"] == 2


def test_progress_ends_at_the_total() -> None:
    problem = build(np.random.default_rng(0), [3] * 7, SHAPES["residual blocks"][1], Costs(100))
    for algorithm in (*FAST, "exhaustive"):
        calls: list[tuple[int, int]] = []
        search(problem, algorithm, progress=lambda done, total, calls=calls: calls.append((done, total)))
        assert calls == sorted(calls)
        assert calls[-1][0] == calls[-1][1]


def test_states_above_infeasible_never_add_up() -> None:
    huge = np.array([1 << 62, 5])
    nodes = tuple(Node(f"n{i}", huge, np.array([0, 1])) for i in range(50))
    free = np.zeros((2, 2), np.int64)
    problem = Problem(nodes, tuple(Edge(i, j, free, free) for i, j in chain_pairs(50)))
    for algorithm in FAST:
        frontier = search(problem, algorithm)
        assert (frontier.mem_bytes.tolist(), frontier.time_ns.tolist()) == ([250], [50])


def test_a_sum_that_reaches_infeasible_is_not_allowed() -> None:
    half = np.array([INFEASIBLE // 2])
    zero = np.array([0])
    below = Problem((Node("a", half, zero), Node("b", half - 1, zero)))
    above = Problem((Node("a", half, zero), Node("b", half, zero)))
    for algorithm in (*FAST, "exhaustive"):
        assert search(below, algorithm).mem_bytes.tolist() == [INFEASIBLE - 1]
        with pytest.raises(InfeasibleError):
            search(above, algorithm)


def two_nodes(mem: np.ndarray) -> Problem:
    zero = np.zeros(2, np.int64)
    return Problem((Node("matmul", zero, zero), Node("relu", zero, zero)), (Edge(0, 1, mem, np.zeros_like(mem)),))


@pytest.mark.parametrize("algorithm", FAST)
def test_infeasible_problems_name_where(algorithm: str) -> None:
    no_state = np.full(3, INFEASIBLE)
    with pytest.raises(InfeasibleError, match="every state of node 'conv'"):
        search(Problem((Node("conv", no_state, no_state),)), algorithm)
    with pytest.raises(InfeasibleError, match="'matmul' -> 'relu'"):
        search(two_nodes(np.full((2, 2), INFEASIBLE)), algorithm)
    # Each edge allows something for every state, but no triangle closes: equal, equal, different.
    zero = np.zeros(2, np.int64)
    different = np.array([[INFEASIBLE, 0], [0, INFEASIBLE]])
    edges = (identity_edge(0, 1, 2), identity_edge(1, 2, 2), Edge(0, 2, different, different))
    with pytest.raises(InfeasibleError, match=r"'[abc]'.*'[abc]'"):
        search(Problem(tuple(Node(name, zero, zero) for name in "abc"), edges), algorithm)


def test_wrong_use_is_refused() -> None:
    problem = build(np.random.default_rng(0), [2] * 30, chain_pairs(30), Costs(10))
    with pytest.raises(ValueError, match=r"enumeration takes at most .*ft-ldp"):
        search(problem, "exhaustive")
    with pytest.raises(ValueError, match=r"unknown algorithm 'mcmc'; choose one of ft-ldp"):
        search(problem, "mcmc")
    for wrong in ({"max_table_cells": 0}, {"max_points": 1}, {"seconds": -1.0}, {"gap": -0.1}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Budget(**wrong)


@pytest.mark.parametrize("followed", [0, 3])
@pytest.mark.parametrize("algorithm", FAST)
def test_equal_costs_by_different_inner_states_are_kept_apart(algorithm: str, followed: int) -> None:
    """Two inner nodes follow one end of a diamond at complementary costs: the ends' states then all cost the same."""
    free, costs = np.zeros(2, np.int64), np.array([[0, 1], [1, 0]])
    ends = [Node("first", np.array([3, 0]), np.array([0, 2])), Node("last", np.array([0, 5]), np.array([7, 0]))]
    other = 3 - followed
    edges = []
    for inner, cost in ((1, costs), (2, 1 - costs)):
        edges += [identity_edge(followed, inner, 2), Edge(inner, other, cost, cost)]
    problem = Problem((ends[0], Node("left", free, free), Node("right", free, free), ends[1]), tuple(edges))
    assert assert_equals_enumeration(problem, algorithm, followed)
