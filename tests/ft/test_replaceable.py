"""Forbidding what something else replaces at no cost changes no frontier."""

from __future__ import annotations

from importlib import import_module

import numpy as np
import pytest

from tensoropt.ft import INFEASIBLE, Edge, InfeasibleError, Problem, search
from tensoropt.ft.presolve import dead_end_elimination as replaceable
from tensoropt.ft.presolve.dead_end_elimination import reduce_node, without_replaceable

from .problems import Costs, build, chain_pairs, random_problem, resnet_pairs


def n_allowed(problem: Problem) -> int:
    costs = [*problem.nodes, *problem.edges]
    return sum(int(((c.mem_bytes < INFEASIBLE) & (c.time_ns < INFEASIBLE)).sum()) for c in costs)


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
        assert got.mem_bytes.tolist() == true.mem_bytes.tolist()
        assert got.time_ns.tolist() == true.time_ns.tolist()
        for strategy, mem, time in zip(got.strategies, got.mem_bytes, got.time_ns, strict=True):
            assert problem.cost(strategy) == (mem, time)
        before, after = before + n_allowed(problem), after + n_allowed(reduced)
    assert after < 0.75 * before


@pytest.mark.parametrize("pairs", [chain_pairs(9), resnet_pairs(2)])
def test_larger_problems_keep_their_frontier(pairs: list, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = build(np.random.default_rng(1), [12] * 9, pairs, Costs(1000, infeasible=0.1, interfaces=0.5))
    monkeypatch.setattr(import_module("tensoropt.ft.search"), "without_replaceable", lambda given: given)
    expected = search(problem)
    got = search(without_replaceable(problem))
    assert got.mem_bytes.tolist() == expected.mem_bytes.tolist()
    assert got.time_ns.tolist() == expected.time_ns.tolist()


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
