"""Strategies of equal costs beside given ones: those that enumeration finds."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.large import first

from tensoropt.ft import INFEASIBLE, Edge, Node, Problem
from tensoropt.ft.nonadditive.equal_costs import equal_beside

from .test_relaxations import costs_of, drawn


@pytest.mark.parametrize("has_segments", [True, False])
@pytest.mark.parametrize("seed", first(30, range(1_000)))
def test_they_are_those_of_enumeration(seed: int, has_segments: bool) -> None:
    """Where all nodes are operators, all that differ in one state; where some are copies, of these too."""
    problem, transient = drawn(seed)
    rng = np.random.default_rng(seed)
    drawn_states = [rng.integers(0, node.n_states, 60) for node in problem.nodes]
    strategies = np.stack(drawn_states, axis=1).astype(np.int32)
    n_nodes = len(problem.nodes)

    def costs(of: np.ndarray) -> np.ndarray:
        mem, time_ns = costs_of(problem, transient, of)
        return np.stack([mem if has_segments else mem - transient.most_bytes(problem, of), time_ns], axis=1)

    strategies = strategies[(costs(strategies) < INFEASIBLE).all(axis=1)]
    expected = []
    for number, strategy in enumerate(strategies):
        own = costs(strategy[None])[0]
        for i, node in enumerate(problem.nodes):
            others = np.repeat(strategy[None], node.n_states, axis=0)
            others[:, i] = np.arange(node.n_states)
            is_equal = (costs(others) == own).all(axis=1) & (others[:, i] != strategy[i])
            expected += [(number, *other) for other in others[is_equal].tolist()]
    of_segments = transient if has_segments else None
    origin, found = equal_beside(problem, of_segments, n_nodes, strategies)
    of_origin = [(number, *other) for number, other in zip(origin.tolist(), found.tolist(), strict=True)]
    assert sorted(of_origin) == sorted(expected)
    n_operators = int(rng.integers(1, n_nodes + 1))
    origin, found = equal_beside(problem, of_segments, n_operators, strategies)
    assert np.array_equal(costs(found), costs(strategies)[origin])
    is_other = found != strategies[origin]
    assert (is_other[:, :n_operators].sum(axis=1) == 1).all()
    beside = {(edge.source, edge.target) for edge in problem.edges} | {(e.target, e.source) for e in problem.edges}
    for row in is_other:
        operator = int(np.flatnonzero(row)[0])
        assert all((operator, copy) in beside for copy in np.flatnonzero(row)[1:].tolist())


def test_a_copy_follows() -> None:
    """Of a chain of an operator, a copy and an operator: both have to change for the costs to stay."""
    nodes = (Node("a", np.array([5, 5]), np.array([1, 1])), Node("b", np.array([2]), np.array([2])),
             Node("copy", np.array([0, 0, 0]), np.array([3, 3, 9])))  # fmt: skip
    same = np.array([[0, INFEASIBLE, 0], [INFEASIBLE, 0, 0]])
    free = np.zeros((3, 1), np.int64)
    problem = Problem(nodes, (Edge(0, 2, same, same), Edge(2, 1, free, free)))
    origin, found = equal_beside(problem, None, 2, np.array([[0, 0, 0]], np.int32))
    assert origin.tolist() == [0] and found.tolist() == [[1, 0, 1]]
