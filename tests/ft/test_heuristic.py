"""Heuristic elimination: real strategies, never below the true frontier, counted, and said."""

from __future__ import annotations

import numpy as np
import pytest

from tensoropt.ft import INFEASIBLE, Budget, Edge, InfeasibleError, Node, Problem, search

from .problems import SHAPES, Costs, build, random_problem


@pytest.mark.parametrize("algorithm", ["ft-ldp", "ft-elimination"])
@pytest.mark.parametrize("max_table_cells", [1, 3, 5])
def test_heuristic_results_are_never_below_the_true_frontier(algorithm: str, max_table_cells: int) -> None:
    n_inexact = n_worse = 0
    for seed in range(0, 400, 2):
        problem = random_problem(seed)
        try:
            true = search(problem, "exhaustive")
        except InfeasibleError:
            with pytest.raises(InfeasibleError):
                search(problem, algorithm, budget=Budget(max_table_cells=max_table_cells, seconds=0, weighted=False))
            continue
        got = search(problem, algorithm, budget=Budget(max_table_cells=max_table_cells, seconds=0, weighted=False))
        for mem, time, strategy in zip(got.mem_bytes, got.time_ns, got.strategies, strict=True):
            assert problem.cost(strategy) == (mem, time)
            within = true.at(int(mem))
            assert within is not None
            assert true.time_ns[within] <= time
        assert got.exact or got.eliminations["heuristic"] > 0
        same = got.mem_bytes.tolist() == true.mem_bytes.tolist() and got.time_ns.tolist() == true.time_ns.tolist()
        assert same or not got.exact
        n_inexact += not got.exact
        n_worse += not same
    assert n_inexact > 0
    assert n_worse > 0  # otherwise this would not test anything


def test_states_are_given_up_only_where_tables_grow_too_large() -> None:
    """A table of 64 cells holds a mask and its neighbours, six operators of 8 states."""
    n, pairs = SHAPES["mask"]
    problem = build(np.random.default_rng(0), [8] * n, pairs, Costs(100))
    true = search(problem)
    assert true.exact
    assert search(problem, budget=Budget(max_table_cells=64, seconds=0, weighted=False)).exact
    rough = search(problem, budget=Budget(max_table_cells=8, seconds=0, weighted=False))
    assert not rough.exact
    assert rough.eliminations["heuristic"] > 0


def _tied(n_blocks: int) -> tuple[int, list[tuple[int, int]]]:
    """Attention blocks with parameters, and a table that the first operator and the last take."""
    lookup, table, n_nodes = 0, 1, 2
    pairs, last = [(table, lookup)], lookup
    for _ in range(n_blocks):
        q, k, v, of_q, of_k, of_v, out, of_out, end = range(n_nodes, n_nodes + 9)
        pairs += [(last, q), (last, k), (last, v), (of_q, q), (of_k, k), (of_v, v), (q, out), (k, out), (v, out)]
        pairs += [(of_out, out), (out, end), (last, end)]
        n_nodes, last = n_nodes + 9, end
    return n_nodes, [*pairs, (table, last)]


def test_nodes_held_back_by_parameters_are_eliminated_before_tables_grow() -> None:
    """Operators with parameters are cut vertices at first, and none any more once the parameters are summed into them."""
    n, pairs = _tied(3)
    problem = build(np.random.default_rng(0), [4] * n, pairs, Costs(100))
    budget = Budget(max_table_cells=64, seconds=0, weighted=False)
    by_ldp, by_elimination = (search(problem, algorithm, budget=budget) for algorithm in ("ft-ldp", "ft-elimination"))
    assert by_ldp.exact and by_elimination.exact
    assert by_ldp.mem_bytes.tolist() == by_elimination.mem_bytes.tolist()
    assert by_ldp.time_ns.tolist() == by_elimination.time_ns.tolist()


def test_a_search_that_is_not_exact_goes_on_while_there_is_time() -> None:
    n, pairs = SHAPES["mask"]
    problem = build(np.random.default_rng(0), [8] * n, pairs, Costs(100))
    assert search(problem, budget=Budget(max_table_cells=1, seconds=60, weighted=False)).exact
    enough = search(problem, budget=Budget(max_table_cells=1, seconds=60, gap=100.0, weighted=False))
    assert not enough.exact
    assert enough.worst_gap <= 100.0


def test_another_state_is_tried_where_the_first_leaves_nothing() -> None:
    """State 0 of the hub is the cheapest by far, but the three nodes around it then contradict each other."""
    zero = np.zeros(2, np.int64)
    hub = Node("hub", np.array([0, 1000]), np.array([0, 1000]))
    ring = tuple(Node(name, zero, zero) for name in "abc")
    # "a" and "b" must differ, and "b" and "c", and "c" and "a", unless the hub's state 1 lets "c" take its third state.
    ring = (*ring[:2], Node("c", np.zeros(3, np.int64), np.zeros(3, np.int64)))
    differ = np.array([[INFEASIBLE, 0], [0, INFEASIBLE]])
    differ_or_third = np.array([[INFEASIBLE, 0, 0], [0, INFEASIBLE, 0]])
    third_needs_one = np.array([[0, 0, INFEASIBLE], [0, 0, 0]])
    slight = np.array([[0, 1], [1, 0]])
    edges = (
        Edge(1, 2, differ, differ),
        Edge(2, 3, differ_or_third, differ_or_third),
        Edge(1, 3, differ_or_third, differ_or_third),
        Edge(0, 3, third_needs_one, third_needs_one),
        Edge(0, 1, slight, slight),
        Edge(0, 2, slight, slight),
    )
    problem = Problem((hub, *ring), edges)
    true = search(problem, "exhaustive")
    assert set(true.strategies[:, 0].tolist()) == {1}
    for algorithm in ("ft-ldp", "ft-elimination"):
        frontier = search(problem, algorithm, budget=Budget(max_table_cells=1, seconds=0, weighted=False))
        assert frontier.eliminations["heuristic"] > 0
        assert frontier.mem_bytes[0] >= true.mem_bytes[0]
