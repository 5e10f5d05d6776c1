"""Find strategies of equal memory and time that differ in the state of one node.

A search keeps one strategy of each pair of costs, though others may be better in what it doesn't count, such as the peak of
memory.

Complexity: O(points x pairs of states that are next to each other).
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from ..problem import INFEASIBLE, Ints, Problem
from ..tables.table import States
from .segment_memory import Transient


def equal_neighbours(problem: Problem, transient: Transient | None, strategies: States) -> tuple[Ints, States]:
    """Return all strategies that cost what one of some feasible strategies does, and differ from it in one node's state.

    Args:
        transient: the transient memory, of which the largest segment's is a part of a strategy's memory; None if there is
            none.
        strategies: int32[P, nodes].

    Returns:
        For each strategy the number of the one that it differs from, int64[N], and the strategies, int32[N, nodes].
    """
    edges_of = defaultdict(list)
    for number, edge in enumerate(problem.edges):
        edges_of[edge.source].append(number)
        edges_of[edge.target].append(number)
    of_segments = [] if transient is None else list(transient.by_segment(problem, strategies))
    origins, found = [np.empty(0, np.int64)], [np.empty((0, len(problem.nodes)), np.int32)]
    for i, node in enumerate(problem.nodes):
        if node.n_states == 1:
            continue
        edges = {number: problem.edges[number] for number in edges_of[i]}
        of_mem = {number: edge.mem_bytes for number, edge in edges.items()}
        of_time = {number: edge.time_ns for number, edge in edges.items()}
        mem = _of_states(problem, i, node.mem_bytes, of_mem, strategies)
        time_ns = _of_states(problem, i, node.time_ns, of_time, strategies)
        own = np.arange(len(strategies)), strategies[:, i]
        if transient is not None:
            of_states = []
            for segment, now in zip(transient.segments, of_segments, strict=True):
                parts = {number: segment.edges[number] for number in edges if number in segment.edges}
                nothing = np.zeros(node.n_states, np.int64)
                then = _of_states(problem, i, segment.nodes.get(i, nothing), parts, strategies)
                of_states.append(now[:, None] + then - then[own][:, None])
            mem = mem + np.max(of_states, axis=0)
        is_equal = (mem == mem[own][:, None]) & (time_ns == time_ns[own][:, None]) & (np.maximum(mem, time_ns) < INFEASIBLE)
        is_equal[own] = False
        origin, state = np.nonzero(is_equal)
        others = strategies[origin]
        others[:, i] = state
        origins.append(origin)
        found.append(others)
    return np.concatenate(origins), np.concatenate(found)


def _of_states(problem: Problem, node: int, own: Ints, of_edges: dict[int, Ints], strategies: States) -> Ints:
    """Return what each state of a node costs, with its edges, where its neighbours' states are given: int64[P, K]."""
    total = np.repeat(own[None], len(strategies), axis=0)
    for number, costs in of_edges.items():
        edge = problem.edges[number]
        total += costs[:, strategies[:, edge.target]].T if edge.source == node else costs[strategies[:, edge.source]]
    return total
