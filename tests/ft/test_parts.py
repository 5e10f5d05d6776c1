"""The parts of the search: problems, frontiers, states that matter, classes of states, the linear graph."""

from __future__ import annotations

import networkx as nx  # type: ignore[import-untyped,unused-ignore]
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensoropt.ft import INFEASIBLE, Edge, Frontier, Node, Problem
from tensoropt.ft.elimination.ldp import held_variables, linear_graphs
from tensoropt.ft.elimination.table_graph import TableGraph
from tensoropt.ft.presolve.supported_states import supported_states
from tensoropt.ft.tables.contract import combine
from tensoropt.ft.tables.state_classes import state_classes, sum_out
from tensoropt.ft.tables.table import NO_SLACK, Table, codes, dense_table
from tensoropt.ft.tables.thinning import Thinning

from .problems import SHAPES, Costs, resnet_pairs


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def frontier_of(*points: tuple[int, int]) -> Frontier:
    mem, time = np.array(points, np.int64).T
    return Frontier(mem, time, np.zeros((len(points), 1), np.int32), {}, "test")


def test_cost_of_a_strategy_is_equation_3() -> None:
    edge = Edge(1, 0, np.array([[100, 200]]), np.array([[1000, 2000]]))
    problem = Problem((Node("a", ints(1, 2), ints(10, 20)), Node("b", ints(5), ints(50))), (edge, edge))
    assert problem.cost([1, 0]) == (2 + 5 + 2 * 200, 20 + 50 + 2 * 2000)
    with pytest.raises(ValueError, match="one state for each of 2 nodes, got 1"):
        problem.cost([0])
    with pytest.raises(ValueError, match="node 'b' has states 0 to 0, got 1"):
        problem.cost([0, 1])


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [(lambda: Node("a", np.array([1.5]), ints(1)), TypeError, "mem_bytes of node 'a' must be integers"),
     (lambda: Node("a", ints(), ints()), ValueError, r"shape \[K\] with K >= 1, got \(0,\)"),
     (lambda: Node("a", ints(1), ints(-1)), ValueError, r"time_ns of node 'a' must lie in \[0, 2\^63\), got -1"),
     (lambda: Node("a", np.array([1 << 63], np.uint64), ints(1)), ValueError, "got 9223372036854775808"),
     (lambda: Node("a", ints(1, 2), ints(1)), ValueError, "one shape"),
     (lambda: Edge(0, 0, np.eye(2, dtype=int), np.eye(2, dtype=int)), ValueError, "joins two nodes, got 0 twice"),
     (lambda: Edge(0, 1, ints(1), ints(1)), ValueError, r"K target\] with both K >= 1, got \(1,\)"),
     (lambda: Problem(()), ValueError, "at least one node"),
     (lambda: Problem((Node("a", ints(1), ints(1)),), (Edge(0, 1, ints(1)[None], ints(1)[None]),)), ValueError,
      "edge 0 names node 1, but there are 1 nodes"),
     (lambda: Problem((Node("a", ints(1), ints(1)), Node("b", ints(1, 2), ints(1, 2))),
                      (Edge(0, 1, np.eye(2, dtype=int), np.eye(2, dtype=int)),)), ValueError,
      r"edge 'a' -> 'b' must be \(1, 2\), got \(2, 2\)")],
)  # fmt: skip
def test_bad_problems_are_refused(make, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


def test_costs_cannot_be_changed_afterwards() -> None:
    node = Node("a", ints(1, 2), ints(3, 4))
    with pytest.raises(ValueError, match="read-only"):
        node.mem_bytes[0] = 7


def test_costs_of_other_nodes_are_not_checked_again_and_others_are() -> None:
    given = ints(1, 2)
    node = Node("a", given, ints(3, 4))
    again = Node("b", node.mem_bytes, node.time_ns)
    assert again.mem_bytes is node.mem_bytes and again.time_ns is node.time_ns
    given[0] = -1
    with pytest.raises(ValueError, match="got -1"):
        Node("c", given, ints(3, 4))
    with pytest.raises(ValueError, match=r"K target\] with both K >= 1, got \(2,\)"):
        Edge(0, 1, node.mem_bytes, node.time_ns)


def test_choosing_from_a_frontier() -> None:
    frontier = frontier_of((10, 100), (20, 30), (60, 20), (110, 0))
    assert (frontier.smallest(), frontier.fastest(), frontier.turning_point(), len(frontier)) == (0, 3, 1, 4)
    assert [frontier.at(mem) for mem in (9, 10, 19, 20, 10**9)] == [None, 0, 0, 1, 3]
    assert frontier_of((5, 5)).turning_point() == 0
    assert frontier_of((5, 5), (6, 0)).turning_point() == 0
    assert frontier_of((0, 10), (9, 9), (10, 0)).turning_point() == 0  # bulges outwards: no bend


@pytest.mark.parametrize("points", [[(1, 1), (1, 0)], [(1, 1), (2, 1)], [(2, 0), (1, 1)]])
def test_what_is_no_frontier_is_refused(points: list[tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match="strictly"):
        frontier_of(*points)


def test_unsupported_states_are_dropped() -> None:
    # a: state 2 has no partner; b: state 1 isn't allowed.
    a = Node("a", ints(5, 4, 0), ints(5, 5, 0))
    b = Node("b", ints(0, 0), ints(0, INFEASIBLE))
    rows = np.array([[1, 2], [1, 2], [INFEASIBLE, 0]])
    kept = supported_states(Problem((a, b), (Edge(0, 1, rows, np.zeros_like(rows)),)))
    assert [states.tolist() for states in kept] == [[0, 1], [0]]


def dense(table: Table) -> dict[tuple[int, ...], list[tuple[int, int]]]:
    cells = zip(table.states.tolist(), table.offsets[:-1], table.offsets[1:], strict=True)
    points = list(zip(table.mem.tolist(), table.time.tolist(), strict=True))
    return {tuple(states): points[i:j] for states, i, j in cells}


@given(st.integers(0, 10_000))
def test_crossing_by_classes_is_crossing_by_states(seed: int) -> None:
    rng = np.random.default_rng(seed)
    costs = Costs(4, 0.2, 1.0)
    a = dense_table((0, 1), *costs.draw(rng, (4, 5)))
    b = dense_table((1, 2), *costs.draw(rng, (5, 6)))
    assert dense(sum_out(a, b, 1)) == dense(combine(a, b, 1))


def test_classes_of_states() -> None:
    mem = np.array([[1, 2], [1, 2], [INFEASIBLE, 2], [1, 3], [INFEASIBLE, INFEASIBLE], [INFEASIBLE, 2]])
    table = dense_table((3, 7), mem, np.zeros_like(mem))
    assert state_classes(table, 3).tolist() == [0, 0, 2, 3, -1, 2]


def test_codes_are_as_different_as_rows_however_many_columns() -> None:
    rows = np.random.default_rng(0).integers(0, 1000, (500, 12))
    rows[250:] = rows[:250]
    code = codes(list(rows.T), len(rows))
    assert (code[:250] == code[250:]).all()
    assert len(np.unique(code)) == 250


def graph_of(n: int, pairs: list[tuple[int, int]]) -> TableGraph:
    graph = TableGraph(tuple(f"n{i}" for i in range(n)), (2,) * n, Thinning(NO_SLACK, n, 100))
    for scope in [(i,) for i in range(n)] + [(min(pair), max(pair)) for pair in pairs]:
        shape = (2,) * len(scope)
        graph.add(dense_table(scope, np.ones(shape, np.int64), np.ones(shape, np.int64)))
    return graph


def test_the_linear_graph_is_where_every_path_passes() -> None:
    assert linear_graphs(graph_of(13, resnet_pairs(3))) == [(0, 4, 8, 12)]
    assert linear_graphs(graph_of(*SHAPES["chain"])) == [tuple(range(6))]
    assert linear_graphs(graph_of(*SHAPES["diamond"])) == [(0, 3)]
    assert linear_graphs(graph_of(*SHAPES["parameters first"])) == [(0, 4, 5, 6)]


@given(st.integers(0, 10_000))
def test_held_are_the_ends_of_parts_and_the_cut_vertices(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 12))
    pairs = [(i, j) for i in range(n) for j in range(i + 1, n) if rng.random() < 0.25]
    graph, known = graph_of(n, pairs), nx.Graph(pairs)
    known.add_nodes_from(range(n))
    ends = {end for part in nx.connected_components(known) for end in (min(part), max(part))}
    assert held_variables(graph) == ends | set(nx.articulation_points(known))
    for line in linear_graphs(graph):
        paths = list(nx.all_simple_paths(known, line[0], line[-1])) or [line]
        assert all([variable for variable in path if variable in line] == list(line) for path in paths)
        assert set(line) == set.intersection(*map(set, paths))
