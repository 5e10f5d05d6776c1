"""Find the frontier where a part of the memory is transient.

What is rematerialized in the backward pass isn't saved. It takes memory only while the backward pass is in its
*rematerialization segment* (class ``SegmentMemory`` here, see :mod:`tensoropt.search.problem.remat_segments`). Segments
come one after the other, and only one's memory is there at a time, so that a strategy takes

    mem(S) = saved(S) + max over segments b of T_b(S)

The saved memory, which is the problem's memory, and each T_b are sums over nodes and edges, as a search needs; their maximum
isn't. But for weights w >= 0 that add up to 1,

    max over b of T_b(S) >= sum over b of w_b T_b(S)

and the right side is such a sum. So the search is of a Problem whose memory includes the weighted sum: its frontier is a
lower bound of the true one. Its strategies at their true memory are a frontier, and the gap between the two is known.

The bound is close where the segments that have a weight are alike, as layers are: those that are likely to be the largest
have equal weights, the others none. Where segments are few and unlike, as in a small model, further searches bring it closer
(:mod:`.relaxations`).

Complexity: O(points x nodes and edges of all segments).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ..frontier import Frontier, settled
from ..lower_bound import LowerBound
from ..pareto import reduce_unsorted
from ..problem import INFEASIBLE, Ints, Problem, identity


@dataclass(frozen=True, slots=True, eq=False)
class SegmentMemory:
    """The transient memory of one rematerialization segment.

    Attributes:
        nodes: for each node that has such memory, the bytes of each of its states: int64[K].
        edges: for each edge that has such memory, the bytes of each pair of states: int64[K source, K target].
    """

    nodes: Mapping[int, Ints]
    edges: Mapping[int, Ints]

    def n_bytes(self, problem: Problem, strategies: npt.NDArray[np.int32]) -> Ints:
        """Return the segment's bytes for each strategy, int[P, nodes]: int64[P]."""
        total = np.zeros(len(strategies), np.int64)
        for node, n_bytes in self.nodes.items():
            total += n_bytes[strategies[:, node]]
        for number, n_bytes in self.edges.items():
            edge = problem.edges[number]
            total += n_bytes[strategies[:, edge.source], strategies[:, edge.target]]
        return total


@dataclass(frozen=True, slots=True, eq=False)
class Transient:
    """The transient memory of a problem, by rematerialization segment.

    Attributes:
        plain: by node, the states that rematerialize nothing, int64[]; all states of the nodes that aren't named.
        others: by node, for each state the index of the state that differs only in what is rematerialized, int64[K]; -1
            without one.
        large: the indices of the segments that are likely to be the largest; at least one.
    """

    segments: tuple[SegmentMemory, ...]
    plain: Mapping[int, Ints]
    others: Mapping[int, Ints]
    large: frozenset[int]

    def by_segment(self, problem: Problem, strategies: npt.NDArray[np.int32]) -> Ints:
        """Return the transient bytes of strategies, int[P, nodes], in each segment: int64[segments, P]."""
        by_node = np.asfortranarray(strategies)
        return np.stack([segment.n_bytes(problem, by_node) for segment in self.segments])

    def most_bytes(self, problem: Problem, strategies: npt.NDArray[np.int32]) -> Ints:
        """Return the bytes that strategies, int[P, nodes], take beyond the problem's memory: int64[P]."""
        result: Ints = self.by_segment(problem, strategies).max(axis=0)
        return result

    @property
    def has_negative(self) -> bool:
        """Return whether any part of the memory is negative."""
        arrays = [array for segment in self.segments for array in (*segment.nodes.values(), *segment.edges.values())]
        return any(int(array.min()) < 0 for array in arrays)

    def charged(self, problem: Problem) -> Problem:
        """Return the problem with the mean of the large segments added to its memory."""
        return self.weighted(problem, np.isin(np.arange(len(self.segments)), list(self.large)) / len(self.large))

    def weighted(self, problem: Problem, parts: npt.NDArray[np.float64]) -> Problem:
        """Return the problem with parts of the segments' memory added to its memory, each rounded down.

        Arrays that were identical stay identical.

        Args:
            parts: float64[segments].
        """

        def with_part(mem: Ints, n_bytes: Ints, part: float) -> Ints:
            total: Ints = mem + np.floor(n_bytes * part).astype(np.int64)
            return total

        return self._changed(problem, {index: part for index, part in enumerate(parts.tolist()) if part > 0}, with_part)

    def capped(self, problem: Problem, most: int) -> Problem:
        """Return the problem without the states and pairs that take more than ``most`` bytes in a segment."""

        def without(mem: Ints, n_bytes: Ints, most: float) -> Ints:
            return np.where(n_bytes > most, INFEASIBLE, mem)

        return self._changed(problem, dict.fromkeys(range(len(self.segments)), float(most)), without)

    def _changed(
        self, problem: Problem, numbers: Mapping[int, float], change: Callable[[Ints, Ints, float], Ints]
    ) -> Problem:
        """Return the problem with its memory changed by that of segments; identical arrays stay identical."""
        cache: dict[tuple[object, ...], Ints] = {}
        nodes, edges = list(problem.nodes), list(problem.edges)

        def changed(mem: Ints, n_bytes: Ints, number: float) -> Ints:
            key = identity(mem), identity(n_bytes), number
            if key not in cache:
                cache[key] = change(mem, n_bytes, number)
                cache[key].flags.writeable = False  # so that it is checked once, whichever nodes and edges have it
            return cache[key]

        for index, number in numbers.items():
            segment = self.segments[index]
            for i, n_bytes in segment.nodes.items():
                nodes[i] = replace(nodes[i], mem_bytes=changed(nodes[i].mem_bytes, n_bytes, number))
            for i, n_bytes in segment.edges.items():
                edges[i] = replace(edges[i], mem_bytes=changed(edges[i].mem_bytes, n_bytes, number))
        return Problem(tuple(nodes), tuple(edges))

    def at_true_memory(self, problem: Problem, frontier: Frontier, bound: LowerBound) -> Frontier:
        """Return the Pareto-minimal ones of a frontier's strategies at their true memory.

        Args:
            frontier: a frontier of the problem with some of the segments' memory added, or none.
            bound: a lower bound of the problem's strategies at their true memory.
        """
        mem = summed(problem, frontier.strategies)[0] + self.most_bytes(problem, frontier.strategies)
        rows = reduce_unsorted(mem, frontier.time_ns)
        mem, time_ns, strategies = mem[rows], frontier.time_ns[rows], frontier.strategies[rows]
        return settled(replace(frontier, mem_bytes=mem, time_ns=time_ns, strategies=strategies, bound=bound))


def summed(problem: Problem, strategies: npt.NDArray[np.int32]) -> Ints:
    """Return the problem's memory and time of strategies, int[P, nodes]: int64[2, P]."""
    sums = np.zeros((2, len(strategies)), np.int64)
    mem, time_ns = sums
    by_node = np.asfortranarray(strategies)
    for number, node in enumerate(problem.nodes):
        mem += node.mem_bytes[by_node[:, number]]
        time_ns += node.time_ns[by_node[:, number]]
    for edge in problem.edges:
        pair = by_node[:, edge.source], by_node[:, edge.target]
        mem += edge.mem_bytes[pair]
        time_ns += edge.time_ns[pair]
    return sums
