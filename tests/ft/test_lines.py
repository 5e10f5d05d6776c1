"""Bounds by weighted sums of segments, corner by corner: against all strategies, and linear programs that have them all."""

from __future__ import annotations

import math
from functools import partial
from itertools import product

import numpy as np
import pytest
from helpers.large import first
from scipy.optimize import linprog

from tensoropt.ft import INFEASIBLE
from tensoropt.ft.nonadditive.lines import NEAR, Lines, lines_within
from tensoropt.ft.nonadditive.segment_memory import Transient, summed
from tensoropt.ft.problem import Problem
from tensoropt.ft.weighted.lagrangian import Found

from .test_relaxations import costs_of, drawn


def enumerated(seed: int) -> tuple[Problem, Transient, np.ndarray] | None:
    """A random problem and its allowed strategies; None where there are none or very many."""
    problem, transient = drawn(seed)
    strategies = np.array(list(product(*(range(node.n_states) for node in problem.nodes))), np.int32)[:20_000]
    mem, time_ns = costs_of(problem, transient, strategies)
    allowed = strategies[np.maximum(mem, time_ns) < INFEASIBLE]
    return None if len(strategies) == 20_000 or not len(allowed) else (problem, transient, allowed)


def costed(problem: Problem, transient: Transient, strategies: np.ndarray) -> Found:
    return Found.of(*costs_of(problem, transient, strategies), strategies)


def rows_of(problem: Problem, transient: Transient, strategies: np.ndarray) -> np.ndarray:
    return np.concatenate([summed(problem, strategies), transient.by_segment(problem, strategies)])


@pytest.mark.parametrize("seed", first(60, range(2_000)))
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
    assert ((bound.mem_bytes <= mem[:, None]) & (bound.time_ns <= time_ns[:, None])).any(axis=1).all()
    found_mem, found_time = costs_of(problem, transient, found.strategies)
    np.testing.assert_array_equal(found.mem, found_mem)
    np.testing.assert_array_equal(found.time, found_time)


@pytest.mark.parametrize("seed", first(40, range(1_000)))
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
        costs = (of_all * inverse[:, None]).T
        best = linprog(
            np.append(np.zeros(len(inverse)), -1.0),
            A_ub=np.column_stack([-costs, np.ones(len(costs))]), b_ub=np.zeros(len(costs)),
            A_eq=np.append(np.ones(len(inverse)), 0.0)[None], b_eq=[1.0],
            bounds=[(0, None)] * len(inverse) + [(None, None)],
        ).x[-1]  # fmt: skip
        assert reached > 1 or reached >= best - NEAR - 1e-9
