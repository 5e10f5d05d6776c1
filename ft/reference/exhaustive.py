"""Search by trying every strategy: the oracle for the other algorithms, and fine for small problems.

Takes O(product of all numbers of states) time, in blocks of strategies, so that memory stays bounded.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ..frontier import Frontier
from ..pareto import reduce_unsorted
from ..problem import INFEASIBLE, InfeasibleError, Ints, Problem
from ..tables.table import States

MAX_STRATEGIES = 1 << 24
_BLOCK = 1 << 16


def exhaustive(problem: Problem, progress: Callable[[int, int], None] | None = None) -> Frontier:
    """Enumerate all strategies and return their frontier; of equal points the first in lexicographic order is kept.

    Raises:
        ValueError: there are more than MAX_STRATEGIES strategies.
        InfeasibleError: no strategy is allowed.
    """
    sizes = [node.n_states for node in problem.nodes]
    total = math.prod(sizes)
    if total > MAX_STRATEGIES:
        raise ValueError(
            f"enumeration takes at most {MAX_STRATEGIES} strategies, this problem has {float(total):.3g}; "
            f"use algorithm='ft-ldp', which gives the same frontier"
        )
    mem = time = np.empty(0, np.int64)
    strategies = np.empty((0, len(sizes)), np.int32)
    for start in range(0, total, _BLOCK):
        block = _decode(np.arange(start, min(start + _BLOCK, total), dtype=np.int64), sizes)
        block_mem, block_time = _costs(problem, block)
        feasible = np.flatnonzero((block_mem < INFEASIBLE) & (block_time < INFEASIBLE))
        mem, time = np.concatenate([mem, block_mem[feasible]]), np.concatenate([time, block_time[feasible]])
        strategies = np.concatenate([strategies, block[feasible]])
        indices = reduce_unsorted(mem, time)
        mem, time, strategies = mem[indices], time[indices], strategies[indices]
        if progress is not None:
            progress(min(start + _BLOCK, total), total)
    if len(mem) == 0:
        names = ", ".join(repr(node.name) for node in problem.nodes)
        raise InfeasibleError(f"no strategy is allowed: every combination of states of {names} is infeasible")
    return Frontier(mem, time, strategies, {}, "exhaustive")


def _decode(index: Ints, sizes: list[int]) -> States:
    """Return the strategies of these numbers, where the last node's state changes fastest: int32[n, n_nodes]."""
    states = np.empty((len(index), len(sizes)), np.int32)
    for node in reversed(range(len(sizes))):
        index, states[:, node] = np.divmod(index, sizes[node])
    return states


def _costs(problem: Problem, strategies: States) -> tuple[Ints, Ints]:
    """Return the costs of many strategies (Equation 3); sums are limited to INFEASIBLE, so that they cannot overflow."""
    mem, time = np.zeros(len(strategies), np.int64), np.zeros(len(strategies), np.int64)
    parts = [(node.mem_bytes, node.time_ns, (strategies[:, index],)) for index, node in enumerate(problem.nodes)]
    for edge in problem.edges:
        pair = strategies[:, edge.source], strategies[:, edge.target]
        parts.append((edge.mem_bytes, edge.time_ns, pair))  # type: ignore[arg-type]
    for part_mem, part_time, states in parts:
        mem = np.minimum(mem + np.minimum(part_mem[states], INFEASIBLE), INFEASIBLE)
        time = np.minimum(time + np.minimum(part_time[states], INFEASIBLE), INFEASIBLE)
    return mem, time
