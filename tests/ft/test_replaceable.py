"""Forbidding what something else replaces at no cost changes no frontier."""

from __future__ import annotations

from importlib import import_module
from itertools import permutations

import numpy as np
import pytest

from tensoropt.ft import INFEASIBLE, Edge, InfeasibleError, Problem, search
from tensoropt.ft.presolve import dead_end_elimination as replaceable
from tensoropt.ft.presolve.dead_end_elimination import reduce_node, without_replaceable

from .problems import Costs, build, chain_pairs, random_problem, real_points, resnet_pairs


def n_allowed(problem: Problem) -> int:
    costs = [*problem.nodes, *problem.edges]
    return sum(int(((c.mem_bytes < INFEASIBLE) & (c.time_ns < INFEASIBLE)).sum()) for c in costs)


def forbid_by_definition(own: np.ndarray, ends: list[np.ndarray]) -> None:
    """Forbid what ``reduce_node`` does, in place, by looking at all columns for each pair of states."""
    for state, other in permutations(range(own.shape[1]), 2):
        if own[0, [state, other]].max() >= INFEASIBLE:
            continue
        more, allowed = [end[:, other] - end[:, state] for end in ends], [end[0] < INFEASIBLE for end in ends]
        both = [each[state] & each[other] for each in allowed]
        lost = [number for number, each in enumerate(allowed) if (each[state] & ~each[other]).any()]
        if len(lost) > 1 or not all(both[number].any() for number in lost):
            continue
        worst = [each[:, meets].max(axis=1, initial=-INFEASIBLE) for each, meets in zip(more, both, strict=True)]
        total = own[:, other] - own[:, state] + sum(worst)
        if not lost and (total <= 0).all():
            for costs in (own, *ends):
                costs[:, state] = INFEASIBLE
        for number in [] if own[0, state] >= INFEASIBLE else lost or range(len(ends)):
            is_gone = both[number] & ((total - worst[number])[:, None] + more[number] <= 0).all(axis=0)
            ends[number][:, state, is_gone] = INFEASIBLE


def test_all_is_forbidden_that_the_definition_forbids() -> None:
    n_gone = 0
    for seed in range(300):
        random = np.random.default_rng(seed)
        shapes = [(2, 7), *((2, 7, int(random.integers(1, 9))) for _ in range(random.integers(1, 5)))]
        costs = [random.integers(0, 2 + seed % 40, shape) for shape in shapes]
        for each in costs:
            each[:, random.random(each.shape[1:]) < 0.1 * (seed % 4)] = INFEASIBLE
        expected = [each.copy() for each in costs]
        forbid_by_definition(expected[0], expected[1:])
        n_before = sum(int((each >= INFEASIBLE).sum()) for each in costs)
        reduce_node(costs[0], costs[1:])
        assert all((got == wanted).all() for got, wanted in zip(costs, expected, strict=True)), seed
        n_gone += sum(int((each >= INFEASIBLE).sum()) for each in costs) - n_before
    assert n_gone > 1000


def test_the_frontier_stays() -> None:
    before = after = 0
    for seed in range(300):
        problem = random_problem(seed)
        try:
            true = search(problem, "exhaustive")
        except InfeasibleError:
            continue
        reduced = without_replaceable(problem)
        got = search(reduced, "exhaustive")
        assert real_points(problem, got) == real_points(problem, true)
        before, after = before + n_allowed(problem), after + n_allowed(reduced)
    assert after < 0.75 * before


@pytest.mark.parametrize("pairs", [chain_pairs(9), resnet_pairs(2)])
def test_larger_problems_keep_their_frontier(pairs: list, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = build(np.random.default_rng(1), [12] * 9, pairs, Costs(1000, infeasible=0.1, interfaces=0.5))
    monkeypatch.setattr(import_module("tensoropt.ft.search"), "without_replaceable", lambda given: given)
    expected = search(problem)
    assert real_points(problem, search(without_replaceable(problem))) == real_points(problem, expected)


def test_equal_nodes_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty equal operators in a chain are looked at twice (an end has one neighbour), with the same result."""
    one = build(np.random.default_rng(5), [6, 6], [(0, 1)], Costs(9, infeasible=0.2))
    nodes, (edge,) = (one.nodes[0],) * 20, one.edges
    layers = Problem(nodes, tuple(Edge(i, i + 1, edge.mem_bytes, edge.time_ns) for i in range(19)))
    looked_at: list[int] = []

    def counting(own: np.ndarray, ends: list[np.ndarray]) -> bool:
        looked_at.append(len(ends))
        return reduce_node(own, ends)

    monkeypatch.setattr(replaceable, "reduce_node", counting)
    once = without_replaceable(layers)
    n_once = len(looked_at)
    once_each = replaceable._Once
    monkeypatch.setattr(replaceable, "_Once", lambda: lambda own, ends: once_each()(own, ends))
    each = without_replaceable(layers)
    assert n_once < (len(looked_at) - n_once) / 2
    assert n_allowed(once) < n_allowed(layers)
    for got, expected in zip((*once.nodes, *once.edges), (*each.nodes, *each.edges), strict=True):
        assert got.mem_bytes.tolist() == expected.mem_bytes.tolist() and got.time_ns.tolist() == expected.time_ns.tolist()
