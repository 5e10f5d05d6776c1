"""Bounds by weighted sums of segments, corner by corner: against all strategies, and linear programs that have them all."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
from helpers.large import first

from tensoropt.ft.nonadditive.lines import NEAR, Lines, lines_within
from tensoropt.ft.nonadditive.segment_memory import Transient, summed
from tensoropt.ft.problem import Problem
from tensoropt.ft.weighted.lagrangian import Found

from .test_bounds import below
from .test_matrix_game import value
from .test_relaxations import costs_of, enumerated


def costed(problem: Problem, transient: Transient, strategies: np.ndarray) -> Found:
    return Found.of(*costs_of(problem, transient, strategies), strategies)


def rows_of(problem: Problem, transient: Transient, strategies: np.ndarray) -> np.ndarray:
    return np.concatenate([summed(problem, strategies), transient.by_segment(problem, strategies)])


@pytest.mark.parametrize("seed", first(30, range(2_000)))
def test_no_strategy_is_below_the_bound(seed: int) -> None:
    drawn_case = enumerated(seed)
    if drawn_case is None:
        return
    problem, transient, strategies = drawn_case
    rng = np.random.default_rng(seed)
    known = strategies[rng.choice(len(strategies), min(len(strategies), 3), replace=False)]
    lines = lines_within(
        problem, transient, costed(problem, transient, known), float(rng.choice([0.0, 0.01, 0.1])), math.inf
    )
    bound, found = lines.bound, lines.found
    mem, time_ns = costs_of(problem, transient, strategies)
    assert below(bound, mem, time_ns).all()
    found_mem, found_time = costs_of(problem, transient, found.strategies)
    np.testing.assert_array_equal(found.mem, found_mem)
    np.testing.assert_array_equal(found.time, found_time)


@pytest.mark.parametrize("seed", first(20, range(1_000)))
def test_a_corner_is_excluded_where_any_weights_exclude_it(seed: int) -> None:
    drawn_case = enumerated(seed)
    if drawn_case is None:
        return
    problem, transient, strategies = drawn_case
    rows = rows_of(problem, transient, strategies).astype(float)
    of_all = np.concatenate([rows[:1], rows[0] + rows[2:], rows[1:2]])
    known = strategies[np.random.default_rng(seed).choice(len(strategies), min(len(strategies), 3), replace=False)]

    def weighted(weights: np.ndarray) -> tuple[float, np.ndarray]:
        costs = weights @ rows
        return costs.min(), strategies[[costs.argmin()]]

    lines = Lines(weighted, partial(rows_of, problem, transient), costed(problem, transient, known), 0.0)
    lines.search(math.inf)
    tried = [(mem, time_ns) for mem, time_ns in lines._tried if mem > 1 and time_ns > 1]
    for mem, time_ns in tried:
        reached = float(lines.reached(np.array([mem]), np.array([time_ns]))[0])
        inverse = np.append(np.full(len(of_all) - 1, 1 / mem), 1 / time_ns)
        best = value(of_all * inverse[:, None])
        assert reached > 1 or reached >= best - NEAR - 1e-9
