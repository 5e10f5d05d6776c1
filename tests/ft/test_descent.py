"""Changing strategies one node at a time: what they take is what they are said to take, and nothing gets worse."""

from __future__ import annotations

import math

import numpy as np
import pytest
from helpers.large import first

from tensoropt.ft import INFEASIBLE, Edge, Node, Problem, search
from tensoropt.ft.nonadditive.local_search import Descent
from tensoropt.ft.nonadditive.segment_memory import SegmentMemory, Transient
from tensoropt.ft.pareto import reduce_unsorted

from .problems import all_strategies

N_CONFIGS = 2


def drawn(seed: int) -> tuple[Problem, Transient]:
    """A chain of operators, each of which may be computed again in some configs, with a node for a copy behind each.

    Operators have the configs 0 and 1, and 2: 0 computed again, or 2 and 3: both. Two operators share a block.
    """
    rng = np.random.default_rng(seed)
    n_ops = int(rng.integers(2, 5))
    n_states = [N_CONFIGS + int(rng.integers(1, N_CONFIGS + 1)) for _ in range(n_ops)]
    n_copies = [int(rng.integers(1, 4)) for _ in range(n_ops - 1)]

    def costs(*shape: int, is_forbidding: bool = False) -> tuple[np.ndarray, np.ndarray]:
        mem, time_ns = rng.integers(0, 20, (2, *shape))
        if is_forbidding:
            time_ns = np.where(rng.random(shape) < 0.2, INFEASIBLE, time_ns)
        return mem, time_ns

    nodes = [Node(f"op{i}", *costs(k)) for i, k in enumerate(n_states)]
    nodes += [Node(f"copy{i}", *costs(k)) for i, k in enumerate(n_copies)]
    edges = []
    for i, k in enumerate(n_copies):
        edges.append(Edge(i, n_ops + i, *costs(n_states[i], k, is_forbidding=True)))
        edges.append(Edge(n_ops + i, i + 1, *costs(k, n_states[i + 1], is_forbidding=True)))
    edges += [Edge(i, i + 1, *costs(n_states[i], n_states[i + 1])) for i in range(n_ops - 1) if rng.random() < 0.5]
    n_blocks = -(-n_ops // 2)
    again = [np.arange(k) >= N_CONFIGS for k in n_states]
    of_nodes: list[dict[int, np.ndarray]] = [{} for _ in range(n_blocks)]
    of_edges: list[dict[int, np.ndarray]] = [{} for _ in range(n_blocks)]
    for i, k in enumerate(n_states):
        of_nodes[i // 2][i] = rng.integers(0, 30, k) * again[i]
    for number, edge in enumerate(edges):
        if edge.source < n_ops and rng.random() < 0.5:
            shape = edge.mem_bytes.shape
            of_edges[edge.source // 2][number] = rng.integers(0, 10, shape) * again[edge.source][:, None]
    others = {i: np.array([N_CONFIGS, N_CONFIGS + 1, 0, 1][:k]) for i, k in enumerate(n_states)}
    for i, k in enumerate(n_states):
        others[i][others[i] >= k] = -1
    plain = {i: np.arange(N_CONFIGS) for i in range(n_ops)}
    segments = tuple(map(SegmentMemory, of_nodes, of_edges))
    return Problem(tuple(nodes), tuple(edges)), Transient(segments, plain, others, frozenset(range(n_blocks)))


def costs_of(problem: Problem, transient: Transient, strategy: np.ndarray) -> tuple[int, int]:
    """The costs of the states, computed from scratch."""
    mem, time_ns = problem.cost(strategy.tolist())
    return mem + int(transient.most_bytes(problem, strategy[None])[0]), time_ns


@pytest.mark.parametrize("seed", first(20, range(60)))
def test_strategies_are_what_they_are_said_to_be_and_none_gets_worse(seed: int) -> None:
    problem, transient = drawn(seed)
    allowed, *_ = all_strategies(problem)
    assert len(allowed)
    given = allowed[np.random.default_rng(seed).integers(0, len(allowed), 3)]
    mem, time_ns, strategies = Descent(problem, transient, math.inf).improved(given)
    found = [costs_of(problem, transient, strategy) for strategy in strategies]
    assert found == list(zip(mem.tolist(), time_ns.tolist(), strict=True))
    assert (np.diff(mem) > 0).all() and (np.diff(time_ns) < 0).all()

    def is_beaten(strategy: np.ndarray) -> bool:
        its_mem, its_time = costs_of(problem, transient, strategy)
        return bool(((mem <= its_mem) & (time_ns <= its_time)).any())

    assert all(map(is_beaten, given))
    # Nothing that changes a copy alone is left to do.
    n_ops = len(transient.plain)
    for strategy in strategies:
        for node in range(n_ops, len(problem.nodes)):
            for state in range(problem.nodes[node].n_states):
                changed = strategy.copy()
                changed[node] = state
                if max(problem.cost(changed.tolist())) < INFEASIBLE:
                    assert is_beaten(changed)


def test_local_search_finds_free_memory_in_segments_that_are_not_the_largest() -> None:
    """Six operators in three blocks: a search charges a third of what each block has, and finds 7 of 10 points."""
    sizes, times_ns = (30, 20, 60, 40, 50, 60), (7, 8, 10, 11, 6, 7)
    costs = zip(sizes, times_ns, strict=True)
    problem = Problem(tuple(Node("op", np.array([size, 0]), np.array([0, ns])) for size, ns in costs))
    segments = tuple(SegmentMemory({i: np.array([0, sizes[i]]) for i in pair}, {}) for pair in ((0, 1), (2, 3), (4, 5)))
    each = {i: np.array([1, 0]) for i in range(6)}
    transient = Transient(segments, {i: np.array([0]) for i in range(6)}, each, frozenset({0, 1, 2}))
    found = search(transient.charged(problem))
    charged = transient.at_true_memory(problem, found, found.lower_bound())
    mem, time_ns, _ = Descent(problem, transient, math.inf).improved(charged.strategies)
    every = [costs_of(problem, transient, strategy) for strategy in all_strategies(problem)[0]]
    all_mem, all_time = np.array(every, np.int64).T
    exact = reduce_unsorted(all_mem, all_time)
    assert (mem.tolist(), time_ns.tolist()) == (all_mem[exact].tolist(), all_time[exact].tolist())
    assert (len(charged), len(mem)) == (7, 10)
