"""Strategies of equal costs in which two nodes differ: those that enumeration finds."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from helpers.large import first

from tensoropt.ft import INFEASIBLE, Node, Problem
from tensoropt.ft.nonadditive.equal_costs import exchanged

from .test_relaxations import costs_of, drawn


@pytest.mark.parametrize("has_segments", [True, False])
@pytest.mark.parametrize("seed", first(10, range(1_000)))
def test_they_are_those_of_enumeration(seed: int, has_segments: bool) -> None:
    """Where no edge is between the two nodes; where one is, or transient memory counts, those found are among them."""
    problem, transient = drawn(seed)
    rng = np.random.default_rng(seed)
    strategies = np.stack([rng.integers(0, node.n_states, 40) for node in problem.nodes], axis=1).astype(np.int32)

    def costs(of: np.ndarray) -> np.ndarray:
        mem, time_ns = costs_of(problem, transient, of)
        return np.stack([mem if has_segments else mem - transient.most_bytes(problem, of), time_ns], axis=1)

    strategies = strategies[(costs(strategies) < INFEASIBLE).all(axis=1)]
    expected, beside = set(), {frozenset((edge.source, edge.target)) for edge in problem.edges}
    of_neighbours = set()
    for number, strategy in enumerate(strategies):
        own = costs(strategy[None])[0]
        for i, j in combinations(range(len(problem.nodes)), 2):
            for state in range(problem.nodes[i].n_states):
                one = strategy.copy()
                one[i] = state
                both = np.repeat(one[None], problem.nodes[j].n_states, axis=0)
                both[:, j] = np.arange(len(both))
                apart = costs(np.stack([one, strategy]))
                if (apart[0] == own).all() or (apart[0] >= INFEASIBLE).any():
                    continue
                for other in both[(costs(both) == own).all(axis=1) & (both[:, j] != strategy[j])].tolist():
                    (of_neighbours if frozenset((i, j)) in beside else expected).add((number, *other))
    origin, found = exchanged(problem, transient if has_segments else None, strategies, most_alike=1_000)
    of_origin = {(number, *other) for number, other in zip(origin.tolist(), found.tolist(), strict=True)}
    assert len(of_origin) == len(found) and of_origin <= expected | of_neighbours
    if not has_segments:
        assert of_origin >= expected


def test_another_of_alike_nodes_saves() -> None:
    """Of three alike nodes one saves memory: it may be any of them, and with a limit of alike ones some are found."""
    node = Node("copy", np.array([5, 1]), np.array([1, 3]))
    problem = Problem((node, node, node), ())
    origin, found = exchanged(problem, None, np.array([[1, 0, 0]], np.int32))
    assert origin.tolist() == [0, 0] and sorted(found.tolist()) == [[0, 0, 1], [0, 1, 0]]
    assert len(exchanged(problem, None, np.array([[1, 0, 0]], np.int32), most_alike=1)[1]) == 1
