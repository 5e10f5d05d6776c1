"""Strategies of equal costs that differ in one node's state: those that enumeration finds."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.large import first

from tensoropt.ft import INFEASIBLE
from tensoropt.ft.nonadditive.equal_costs import equal_neighbours

from .test_exact_segments import costs_of, drawn


@pytest.mark.parametrize("has_segments", [True, False])
@pytest.mark.parametrize("seed", first(40, range(1_000)))
def test_they_are_those_of_enumeration(seed: int, has_segments: bool) -> None:
    problem, transient = drawn(seed)
    rng = np.random.default_rng(seed)
    drawn_states = [rng.integers(0, node.n_states, 60) for node in problem.nodes]
    strategies = np.stack(drawn_states, axis=1).astype(np.int32)

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
    origin, found = equal_neighbours(problem, transient if has_segments else None, strategies)
    of_origin = [(number, *other) for number, other in zip(origin.tolist(), found.tolist(), strict=True)]
    assert sorted(of_origin) == sorted(expected)


def test_the_drawn_problems_have_such_strategies() -> None:
    def n_found(seed: int) -> int:
        problem, transient = drawn(seed)
        states = [np.arange(200) % node.n_states for node in problem.nodes]
        return len(equal_neighbours(problem, transient, np.stack(states, axis=1).astype(np.int32))[0])

    assert sum(n_found(seed) > 0 for seed in range(40)) >= 10
