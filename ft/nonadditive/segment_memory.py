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
have equal weights, the others none. Where segments are few and unlike, as in a small model, each subset of them with equal
weights gives another bound, and all of these together are closer.

Complexity: O(points x nodes and edges of all segments).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from ..frontier import Frontier, settled
from ..lower_bound import LowerBound
from ..pareto import reduce_unsorted
from ..problem import Ints, Problem, identity

Number = TypeVar("Number", int, float)
MOST_SEGMENTS = 3
"""The most segments of which all subsets are charged."""


@dataclass(frozen=True, slots=True, eq=False)
class SegmentMemory:
    """The transient memory of one rematerialization segment.

    Attributes:
        nodes: for each node that has such memory, the bytes of each of its states: int64[K].
        edges: for each edge that has such memory, the bytes of each pair of states: int64[K source, K target].
    """

    nodes: Mapping[int, Ints]
    edges: Mapping[int, Ints]

    def n_bytes(self, problem: Problem, strategies: npt.NDArray[np.int32], divisor: int = 1) -> Ints:
        """Return the segment's bytes for each strategy: int64[P].

        Args:
            strategies: int[P, nodes].
            divisor: each summand is divided by this and rounded down.
        """
        total = np.zeros(len(strategies), np.int64)
        for node, n_bytes in self.nodes.items():
            total += n_bytes[strategies[:, node]] // divisor
        for number, n_bytes in self.edges.items():
            edge = problem.edges[number]
            total += n_bytes[strategies[:, edge.source], strategies[:, edge.target]] // divisor
        return total


@dataclass(frozen=True, slots=True, eq=False)
class Transient:
    """The transient memory of a problem, by rematerialization segment.

    Attributes:
        segments: the segments.
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
        most: Ints = self.by_segment(problem, strategies).max(axis=0)
        return most

    def charged(self, problem: Problem) -> Problem:
        """Return the problem with the mean of the large segments added to its memory.

        Arrays that were identical stay identical.
        """
        return self._added(problem, dict.fromkeys(self.large, len(self.large)), lambda n_bytes, size: n_bytes // size)

    def weighted(self, problem: Problem, parts: npt.NDArray[np.float64]) -> Problem:
        """Return the problem with parts of the segments' memory added to its memory, each rounded down.

        Args:
            parts: float64[segments].
        """
        of_segments = {index: part for index, part in enumerate(parts.tolist()) if part > 0}
        return self._added(problem, of_segments, lambda n_bytes, part: np.floor(n_bytes * part).astype(np.int64))

    def _added(self, problem: Problem, numbers: Mapping[int, Number], part_of: Callable[[Ints, Number], Ints]) -> Problem:
        """Return the problem with something of segments' memory added to its memory; identical arrays stay identical.

        Args:
            numbers: a number for each of these segments, by its index.
            part_of: returns what to add, given bytes and the segment's number.
        """
        known: dict[tuple[object, ...], Ints] = {}
        nodes, edges = list(problem.nodes), list(problem.edges)

        def with_part(mem: Ints, n_bytes: Ints, number: Number) -> Ints:
            key = identity(mem), identity(n_bytes), number
            if key not in known:
                known[key] = mem + part_of(n_bytes, number)
            return known[key]

        for index, number in numbers.items():
            segment = self.segments[index]
            for i, n_bytes in segment.nodes.items():
                nodes[i] = replace(nodes[i], mem_bytes=with_part(nodes[i].mem_bytes, n_bytes, number))
            for i, n_bytes in segment.edges.items():
                edges[i] = replace(edges[i], mem_bytes=with_part(edges[i].mem_bytes, n_bytes, number))
        return Problem(tuple(nodes), tuple(edges))

    def other_charges(self) -> Iterator[Transient]:
        """Yield the same with each other subset of the segments as the large ones, small subsets first.

        Nothing where there are more than MOST_SEGMENTS: their subsets are too many.
        """
        indices = range(len(self.segments) if len(self.segments) <= MOST_SEGMENTS else 0)
        for size in range(1, len(indices) + 1):
            for subset in combinations(indices, size):
                if frozenset(subset) != self.large:
                    yield replace(self, large=frozenset(subset))

    def at_true_memory(self, problem: Problem, found: Frontier) -> Frontier:
        """Return the Pareto-minimal ones of a frontier's strategies at their true memory.

        Args:
            found: a frontier of the problem of :meth:`charged`. It also gives the lower bound of the result.
        """
        by_node = np.asfortranarray(found.strategies)
        of_large = (self.segments[index].n_bytes(problem, by_node, len(self.large)) for index in self.large)
        mem = found.mem_bytes - sum(of_large) + self.most_bytes(problem, found.strategies)
        bound = found.bound or LowerBound(found.mem_bytes, found.time_ns, "weighted sums of blocks")
        kept = reduce_unsorted(mem, found.time_ns)
        strategies = found.strategies[kept]
        return settled(
            replace(found, mem_bytes=mem[kept], time_ns=found.time_ns[kept], strategies=strategies, bound=bound)
        )


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


def joined(one: Frontier, other: Frontier) -> Frontier:
    """Return the frontier of the points of two searches of one problem.

    Args:
        other: its search saw all strategies that the first one saw, so its lower bound is the result's.
    """
    counts = {kind: one.eliminations[kind] + other.eliminations[kind] for kind in one.eliminations}
    bound = other.bound or LowerBound(other.mem_bytes, other.time_ns, "weighted sums of blocks")
    more = one.mem_bytes, one.time_ns, one.strategies
    return with_more(replace(other, eliminations=counts, bound=bound), *more)


def agreed(one: Frontier, other: Frontier) -> Frontier:
    """Return the frontier of the points of two searches that both saw all strategies, with what both bounds prove."""
    if one.bound is None or other.bound is None:
        return one if one.bound is None else other
    both = one.with_points(other.mem_bytes, other.time_ns, other.strategies)
    return settled(replace(both, bound=one.bound.tightened(other.bound)))


def with_more(found: Frontier, mem: Ints, time_ns: Ints, strategies: npt.NDArray[np.int32]) -> Frontier:
    """Return a frontier with further strategies of its problem added; its lower bound stays."""
    return settled(found.with_points(mem, time_ns, strategies))
