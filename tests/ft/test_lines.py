"""Bounds by weighted sums of segments, corner by corner: against all strategies, and linear programs that have them all."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from helpers.large import first
from scipy.optimize import linprog

from tensoropt.ft import INFEASIBLE
from tensoropt.ft.nonadditive.exact import below_corners
from tensoropt.ft.nonadditive.exact.frontiers import Effort
from tensoropt.ft.nonadditive.exact.lines import NEAR, Lines
from tensoropt.ft.nonadditive.exact.search import (
    LITTLE,
    Solved,
    _costed,
    _rows,
    corners_within,
    frontier_within,
    lines_within,
)
from tensoropt.ft.nonadditive.segment_memory import Transient
from tensoropt.ft.problem import Problem
from tensoropt.ft.weighted.lagrangian import Found

from .test_exact_segments import costs_of, drawn


def enumerated(seed: int) -> tuple[Problem, Transient, np.ndarray] | None:
    """A random problem and its allowed strategies; None where there are none or very many."""
    problem, transient = drawn(seed)
    strategies = np.array(list(product(*(range(node.n_states) for node in problem.nodes))), np.int32)[:20_000]
    mem, time_ns = costs_of(problem, transient, strategies)
    allowed = strategies[np.maximum(mem, time_ns) < INFEASIBLE]
    return None if len(strategies) == 20_000 or not len(allowed) else (problem, transient, allowed)


def check_bound(problem: Problem, transient: Transient, strategies: np.ndarray, solved: Solved) -> None:
    """No strategy is below the bound, and what was found are strategies."""
    bound, found = solved.bound, solved.found
    assert bound is not None
    mem, time_ns = costs_of(problem, transient, strategies)
    assert ((bound.mem_bytes <= mem[:, None]) & (bound.time_ns <= time_ns[:, None])).any(axis=1).all()
    found_mem, found_time = costs_of(problem, transient, found.strategies)
    np.testing.assert_array_equal(found.mem, found_mem)
    np.testing.assert_array_equal(found.time, found_time)


@pytest.mark.parametrize("seed", first(60, range(2_000)))
def test_no_strategy_is_below_the_bound(seed: int) -> None:
    drawn_case = enumerated(seed)
    if drawn_case is None:
        return
    problem, transient, strategies = drawn_case
    rng = np.random.default_rng(seed)
    known = strategies[rng.choice(len(strategies), min(len(strategies), 3), replace=False)]
    lined = lines_within(problem, transient, known, LITTLE, float(rng.choice([0.0, 0.01, 0.1])))
    assert lined is not None
    check_bound(problem, transient, strategies, lined.solved())
    by_passes = lines_within(problem, transient, known, Effort(0, 0.0), 0.01)
    assert by_passes is not None and by_passes.eliminations is None
    check_bound(problem, transient, strategies, by_passes.solved())
    # The weights drop nothing that a search by segment needs.
    exact, of_lined = frontier_within(problem, transient, known), frontier_within(problem, transient, known, lined=lined)
    assert exact is not None and of_lined is not None and of_lined.bound is None
    np.testing.assert_array_equal(exact.found.mem, of_lined.found.mem)
    np.testing.assert_array_equal(exact.found.time, of_lined.found.time)


@pytest.mark.parametrize("seed", first(60, range(2_000)))
def test_what_is_below_corners_is_found_and_the_rest_excluded(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn_case = enumerated(seed + 10**4)
    if drawn_case is None:
        return
    problem, transient, strategies = drawn_case
    rng = np.random.default_rng(seed)
    monkeypatch.setattr(below_corners, "ROUNDS", int(rng.integers(1, 3)))
    known = strategies[rng.choice(len(strategies), min(len(strategies), 3), replace=False)]
    lined = lines_within(problem, transient, known, LITTLE, 0.2)
    assert lined is not None
    gap = float(rng.choice([0.0, 0.01, 0.1]))
    solved, is_near = corners_within(lined, problem, gap, math.inf)
    check_bound(problem, transient, strategies, solved)
    assert is_near and solved.bound is not None
    exact = frontier_within(problem, transient, known)
    assert exact is not None
    factor = (1 + gap) * (1 + 1e-9)
    found = solved.found
    as_near = (found.mem <= factor * exact.found.mem[:, None]) & (found.time <= factor * exact.found.time[:, None])
    assert as_near.any(axis=1).all()
    if not gap:
        np.testing.assert_array_equal(found.mem, exact.found.mem)
        np.testing.assert_array_equal(found.time, exact.found.time)


@pytest.mark.parametrize("seed", range(20))
def test_what_takes_too_much_leaves_a_bound(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(below_corners, "MOST_CANDIDATES", 0)
    drawn_case = enumerated(seed)
    if drawn_case is None:
        return
    problem, transient, strategies = drawn_case
    lined = lines_within(problem, transient, strategies[:1], LITTLE, 0.0)
    assert lined is not None
    solved, _ = corners_within(lined, problem, 0.0, math.inf)
    check_bound(problem, transient, strategies, solved)


@pytest.mark.parametrize("seed", first(40, range(1_000)))
def test_a_corner_is_excluded_where_any_weights_exclude_it(seed: int) -> None:
    drawn_case = enumerated(seed)
    if drawn_case is None:
        return
    problem, transient, strategies = drawn_case
    rows = _rows(problem, transient, strategies).astype(float)
    of_all = np.concatenate([rows[:1], rows[0] + rows[2:], rows[1:2]])
    known = strategies[np.random.default_rng(seed).choice(len(strategies), min(len(strategies), 3), replace=False)]

    def weighted(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        costs = weights @ rows
        return costs.min(axis=1), strategies[costs.argmin(axis=1)]

    def rows_of(states: np.ndarray) -> np.ndarray:
        return _rows(problem, transient, states)

    lines = Lines(weighted, rows_of, _costed(problem, transient, known), 0.0)
    lines.search(math.inf)
    tried = [(mem, time_ns) for mem, time_ns in lines._tried if mem > 1 and time_ns > 1]
    for mem, time_ns in tried:
        reached = float(lines.reached(np.array([mem]), np.array([time_ns]))[0])
        inverse = np.append(np.full(len(of_all) - 1, 1 / mem), 1 / time_ns)
        costs = (of_all * inverse[:, None]).T
        best = linprog(
            np.append(np.zeros(len(inverse)), -1.0),
            A_ub=np.column_stack([-costs, np.ones(len(costs))]), b_ub=np.zeros(len(costs)),
            A_eq=np.append(np.ones(len(inverse)), 0.0)[None], b_eq=[1.0],
            bounds=[(0, None)] * len(inverse) + [(None, None)],
        ).x[-1]  # fmt: skip
        assert reached > 1 or reached >= best - NEAR - 1e-9


def test_more_strategies_are_found_than_were_known() -> None:
    n_more = 0
    for seed in range(40):
        drawn_case = enumerated(seed)
        if drawn_case is not None:
            problem, transient, strategies = drawn_case
            lined = lines_within(problem, transient, strategies[:1], LITTLE, 0.0)
            assert lined is not None
            n_more += len(lined.lines.found) > len(Found.of(*costs_of(problem, transient, strategies[:1]), strategies[:1]))
    assert n_more > 5
