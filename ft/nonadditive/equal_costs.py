"""Find strategies of equal memory and time beside given ones.

A search keeps one strategy of each pair of costs, though others may be better in what it doesn't count, such as the peak of
memory. Looked at are those in which one operator's state differs, and the nodes of copies beside it follow: each takes the
state that is fastest, or the one of least memory, with the operator's new state and all others as they are. So are those in
which two nodes differ, of which one costs as much more as the other one costs less: of alike copies others are made again.

Complexity: O(points x pairs of states along the edges between operators and copies), and O(points x states) for two nodes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np

from ..problem import INFEASIBLE, Ints, Problem, identity
from ..tables.table import States
from .segment_memory import Transient, summed

MOST_PAIRS = 1 << 23
"""The most pairs of states, over all points, that are looked at."""

MOST_CELLS = 1 << 25
"""The number of nodes of the strategies that were found, all together, from which no further operators are looked at."""

MOST_STATES, MOST_EXCHANGES, MOST_ALIKE = 1 << 20, 1 << 15, 8
"""The most states of nodes, over all points, of which two are looked for; the most such pairs; and the most of either kind
for each difference in cost: alike layers have many.
"""

_FACTORS = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9], np.uint64)  # odd, with bits all over


def equal_beside(problem: Problem, transient: Transient | None, n_operators: int, strategies: States) -> tuple[Ints, States]:
    """Return strategies that cost what one of some feasible strategies does; none where a problem is large.

    Args:
        transient: the transient memory, of which the largest segment's is a part of a strategy's memory; None if there is
            none.
        n_operators: the number of operators, which are the problem's first nodes; the others are copies.
        strategies: int32[P, nodes].

    Returns:
        For each strategy the number of the one that it is beside, int64[N], and the strategies, int32[N, nodes].
    """
    beside = _Beside(problem, transient, n_operators, strategies)
    origins, found = [np.empty(0, np.int64)], [np.empty((0, len(problem.nodes)), np.int32)]
    if beside.n_pairs <= MOST_PAIRS:
        n_cells = 0
        for node in range(n_operators):
            if n_cells > MOST_CELLS:
                break
            for origin, others in beside.as_fast(node):
                origins.append(origin)
                found.append(others)
                n_cells += others.size
    origin, others = np.concatenate(origins), np.concatenate(found)
    if not len(others):
        return origin, others
    is_equal = (_costs(problem, transient, others) == _costs(problem, transient, strategies)[:, origin]).all(axis=0)
    _, first = np.unique(np.column_stack([origin, others])[is_equal], axis=0, return_index=True)
    kept = np.flatnonzero(is_equal)[np.sort(first)]
    return origin[kept], others[kept]


def exchanged(
    problem: Problem, transient: Transient | None, strategies: States, most_alike: int = MOST_ALIKE
) -> tuple[Ints, States]:
    """Return strategies that cost what one of some feasible strategies does, in which two nodes differ.

    Alone, the change of each node would cost more of something, or less; together they are even. There are none where a
    problem is large.

    Args:
        most_alike: the most changes of one node that cost the same, to either side.

    Returns:
        As :func:`equal_beside`.
    """
    n_states = sum(node.n_states for node in problem.nodes)
    if not len(strategies) or len(strategies) * n_states > MOST_STATES:
        return np.empty(0, np.int64), np.empty((0, len(problem.nodes)), np.int32)
    origin, node, state, mem, time_ns = _Beside(problem, transient, len(problem.nodes), strategies).changes()
    is_more = np.where(mem != 0, mem, time_ns) > 0
    costs = np.stack([origin, mem, time_ns]) * np.where(is_more, 1, np.array([[1], [-1], [-1]]))
    # Equal numbers may stand for different costs, hardly ever; all costs are compared below.
    numbers = (costs.astype(np.uint64) * _FACTORS[:, None]).sum(axis=0, dtype=np.uint64)
    more, less = (_few_of_each(np.flatnonzero(side), numbers, most_alike) for side in (is_more, ~is_more))
    begin, end = (np.searchsorted(numbers[less], numbers[more], side) for side in ("left", "right"))
    n_of_each = end - begin
    one = np.repeat(more, n_of_each)
    other = less[np.arange(len(one)) - np.repeat(np.cumsum(n_of_each) - n_of_each, n_of_each) + np.repeat(begin, n_of_each)]
    differ = np.flatnonzero(node[one] != node[other])[:MOST_EXCHANGES]
    one, other = one[differ], other[differ]
    found = strategies[origin[one]]
    for change in (one, other):
        found[np.arange(len(found)), node[change]] = state[change]
    now = _costs(problem, transient, strategies)[:, origin[one]]
    is_equal = (_costs(problem, transient, found) == now).all(axis=0)
    return origin[one][is_equal], found[is_equal]


def _few_of_each(which: Ints, numbers: np.ndarray, most: int) -> Ints:
    """Return some of the indices in the order of their numbers, at most so many of each number."""
    which = which[np.argsort(numbers[which], kind="stable")]
    of_each = numbers[which]
    rank = np.arange(len(which)) - np.searchsorted(of_each, of_each, "left")
    result: Ints = which[rank < most]
    return result


def _costs(problem: Problem, transient: Transient | None, strategies: States) -> Ints:
    """Return the memory and time of strategies, int64[2, P]."""
    mem, time_ns = summed(problem, strategies)
    return np.stack([mem if transient is None else mem + transient.most_bytes(problem, strategies), time_ns])


class _Beside:
    """Strategies, int32[P, nodes], and the costs of other states of single nodes in them; arguments as above."""

    def __init__(self, problem: Problem, transient: Transient | None, n_operators: int, strategies: States) -> None:
        self.problem, self.n_operators, self.strategies = problem, n_operators, strategies
        self.edges_of: Mapping[int, list[int]] = defaultdict(list)
        for number, edge in enumerate(problem.edges):
            self.edges_of[edge.source].append(number)
            self.edges_of[edge.target].append(number)
        self.mem_bytes = [edge.mem_bytes for edge in problem.edges]
        self.time_ns = [edge.time_ns for edge in problem.edges]
        self.transient = transient

    @cached_property
    def mem(self) -> list[Ints]:
        """The memory of edges with transient memory, by which alone a state is chosen; equal layers have the same arrays."""
        sums: dict[tuple[object, ...], Ints] = {}
        found = list(self.mem_bytes)
        for segment in () if self.transient is None else self.transient.segments:
            for number, n_bytes in segment.edges.items():
                key = identity(found[number]), identity(n_bytes)
                if key not in sums:
                    sums[key] = found[number] + n_bytes
                found[number] = sums[key]
        return found

    @property
    def n_pairs(self) -> int:
        """Return the pairs of states of operators and of copies beside them, over all strategies."""
        of_copies = (edge for edge in self.problem.edges if max(edge.source, edge.target) >= self.n_operators)
        return len(self.strategies) * sum(edge.mem_bytes.size for edge in of_copies)

    def changes(self) -> tuple[Ints, Ints, Ints, Ints, Ints]:
        """Return what a node's other state costs more than its own does, all others as they are, where that is anything.

        Memory is without transient memory.

        Returns:
            Five times int64[N]: strategy, node, state, memory in bytes, and time in nanoseconds.
        """
        found = []
        for node, own in enumerate(self.problem.nodes):
            now = np.arange(len(self.strategies)), self.strategies[:, node]
            numbers = self.edges_of[node]
            mem = self._of_states(node, own.mem_bytes, numbers, self.mem_bytes)
            time_ns = self._of_states(node, own.time_ns, numbers, self.time_ns)
            is_feasible = (mem < INFEASIBLE) & (time_ns < INFEASIBLE)
            mem, time_ns = mem - mem[now][:, None], time_ns - time_ns[now][:, None]
            origin, state = np.nonzero(is_feasible & ((mem != 0) | (time_ns != 0)))
            found.append(np.stack([origin, np.full_like(origin, node), state, mem[origin, state], time_ns[origin, state]]))
        origin, nodes, states, mem, time_ns = np.concatenate(found, axis=1)
        return origin, nodes, states, mem, time_ns

    def as_fast(self, node: int) -> Iterator[tuple[Ints, States]]:
        """Yield strategies that take as long as those given, with other states of an operator: their origins, and they."""
        to_copies = {number: self._other_end(number, node) for number in self.edges_of[node]}
        to_copies = {number: copy for number, copy in to_copies.items() if copy >= self.n_operators}
        others = [number for number in self.edges_of[node] if number not in to_copies]
        of_node = self._of_states(node, self.problem.nodes[node].time_ns, others, self.time_ns)
        if of_node.shape[1] == 1:
            return
        now = np.arange(len(self.strategies)), self.strategies[:, node]
        for by_time in (True, False) if to_copies else (True,):
            time_ns, kept_ns, following = of_node, of_node[now], {}
            for number, copy in to_copies.items():
                of_pairs, of_mem = self._with_copy(node, number, copy)
                following[copy] = states = _least(*((of_pairs, of_mem) if by_time else (of_mem, of_pairs)))
                time_ns = time_ns + np.take_along_axis(of_pairs, states[:, :, None], axis=2)[:, :, 0]
                kept_ns = kept_ns + of_pairs[now[0], now[1], self.strategies[:, copy]]
            is_other = np.arange(time_ns.shape[1]) != self.strategies[:, node, None]
            origin, state = np.nonzero((time_ns == kept_ns[:, None]) & (time_ns < INFEASIBLE) & is_other)
            found = self.strategies[origin]
            found[:, node] = state
            for copy, states in following.items():
                found[:, copy] = states[origin, state]
            yield origin, found

    def _with_copy(self, node: int, number: int, copy: int) -> tuple[Ints, Ints]:
        """Return the time and memory of a copy beside an operator, with the edge to it, int64[P, K operator, K copy].

        Args:
            number: the number of that edge.
        """
        beyond = [other for other in self.edges_of[copy] if other != number]
        is_source = self.problem.edges[number].source == node
        own = self.problem.nodes[copy]
        costs = []
        for of_copy, of_edges in ((own.time_ns, self.time_ns), (own.mem_bytes, self.mem)):
            between = of_edges[number] if is_source else of_edges[number].T
            costs.append(self._of_states(copy, of_copy, beyond, of_edges)[:, None, :] + between)
        return costs[0], costs[1]

    def _other_end(self, number: int, node: int) -> int:
        edge = self.problem.edges[number]
        return edge.target if edge.source == node else edge.source

    def _of_states(self, node: int, own: Ints, numbers: Sequence[int], of_edges: Sequence[Ints]) -> Ints:
        """Return what each state of a node costs with some of its edges, all other nodes as they are: int64[P, K]."""
        total = np.repeat(own[None], len(self.strategies), axis=0)
        for number in numbers:
            edge, costs = self.problem.edges[number], of_edges[number]
            if edge.source == node:
                total += costs[:, self.strategies[:, edge.target]].T
            else:
                total += costs[self.strategies[:, edge.source]]
        return total


def _least(first: Ints, second: Ints) -> Ints:
    """Return the index of the least along the last axis by one cost, then by another."""
    least = first.min(axis=-1, keepdims=True)
    result: Ints = np.where(first == least, second, np.iinfo(np.int64).max).argmin(axis=-1)
    return result
