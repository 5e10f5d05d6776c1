"""The frontier where a part of the memory is there for a while only.

What is computed again in the backward pass isn't kept, and is there only while the backward pass is in its *block*
(:mod:`tensoropt.search.problem.remat_segments`). Of blocks one after the other, one's is there at a time, so that a strategy
takes

    mem(S) = kept(S) + max over blocks b of T_b(S)

Kept, which is the problem's memory, and each T_b are sums over nodes and edges, as a search needs; their maximum isn't. But
for weights w >= 0 that add up to 1,

    max over b of T_b(S) >= sum over b of w_b T_b(S)

and the right side is such a sum. So the search is of a Problem whose memory has the weighted sum in it: its frontier is a
lower bound of the true one. Its strategies at what they take are a frontier, and the gap between the two is known.

The bound is close where the blocks that have a weight are alike, as layers are: those that are likely to be the largest have
equal ones, the others none.

Complexity: O(points x parts).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ..frontier import Frontier
from ..lower_bound import LowerBound
from ..pareto import reduce_unsorted
from ..problem import Ints, Problem, identity


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """What is there while the backward pass is in one block: bytes by state of a node, int64[K], and of the two ends of an
    edge, int64[K source, K target]."""

    nodes: Mapping[int, Ints]
    edges: Mapping[int, Ints]

    def n_bytes(self, problem: Problem, strategies: npt.NDArray[np.int32], divisor: int = 1) -> Ints:
        """By strategy, int[P, nodes], the sum of all, each divided and rounded down: int64[P]."""
        total = np.zeros(len(strategies), np.int64)
        for node, n_bytes in self.nodes.items():
            total += n_bytes[strategies[:, node]] // divisor
        for number, n_bytes in self.edges.items():
            edge = problem.edges[number]
            total += n_bytes[strategies[:, edge.source], strategies[:, edge.target]] // divisor
        return total


@dataclass(frozen=True, slots=True, eq=False)
class Transient:
    """Of a problem what is there for a while only, by block.

    Attributes:
        plain: by node the states that compute nothing again, int64[]; of nodes that aren't named, all.
        others: by node, of each state the one that differs only in what is computed again, int64[K]; -1 without one.
        large: the places of the blocks that are likely to be the largest; at least one.
    """

    blocks: tuple[Block, ...]
    plain: Mapping[int, Ints]
    others: Mapping[int, Ints]
    large: frozenset[int]

    def by_block(self, problem: Problem, strategies: npt.NDArray[np.int32]) -> Ints:
        """What strategies, int[P, nodes], have at once in each block: int64[blocks, P]."""
        return np.stack([block.n_bytes(problem, strategies) for block in self.blocks])

    def most_bytes(self, problem: Problem, strategies: npt.NDArray[np.int32]) -> Ints:
        """What strategies, int[P, nodes], take beyond the problem's memory: int64[P]."""
        most: Ints = self.by_block(problem, strategies).max(axis=0)
        return most

    def charged(self, problem: Problem) -> Problem:
        """The problem whose memory has the mean of the large blocks; what was equal by identity stays so."""
        known: dict[tuple[object, ...], Ints] = {}
        nodes, edges = list(problem.nodes), list(problem.edges)

        def with_part(mem: Ints, part: Ints) -> Ints:
            key = identity(mem), identity(part)
            if key not in known:
                known[key] = mem + part // len(self.large)
            return known[key]

        for block in (self.blocks[place] for place in self.large):
            for i, n_bytes in block.nodes.items():
                nodes[i] = replace(nodes[i], mem_bytes=with_part(nodes[i].mem_bytes, n_bytes))
            for i, n_bytes in block.edges.items():
                edges[i] = replace(edges[i], mem_bytes=with_part(edges[i].mem_bytes, n_bytes))
        return Problem(tuple(nodes), tuple(edges))

    def at_true_memory(self, problem: Problem, found: Frontier) -> Frontier:
        """The strategies of a frontier of :meth:`charged` at what they take, those of them that are Pareto-minimal.

        They are bounded by the frontier.
        """
        of_large = (self.blocks[place].n_bytes(problem, found.strategies, len(self.large)) for place in self.large)
        mem = found.mem_bytes - sum(of_large) + self.most_bytes(problem, found.strategies)
        bound = found.bound or LowerBound(found.mem_bytes, found.time_ns, "weighted sums of blocks")
        kept = reduce_unsorted(mem, found.time_ns)
        strategies = found.strategies[kept]
        return settled(
            replace(found, mem_bytes=mem[kept], time_ns=found.time_ns[kept], strategies=strategies, bound=bound)
        )


def joined(one: Frontier, other: Frontier) -> Frontier:
    """The points of two searches of one problem; bounded by the second, which had all strategies of the first."""
    counts = {kind: one.eliminations[kind] + other.eliminations[kind] for kind in one.eliminations}
    bound = other.bound or LowerBound(other.mem_bytes, other.time_ns, "weighted sums of blocks")
    more = one.mem_bytes, one.time_ns, one.strategies
    return with_more(replace(other, eliminations=counts, bound=bound), *more)


def with_more(found: Frontier, mem: Ints, time_ns: Ints, strategies: npt.NDArray[np.int32]) -> Frontier:
    """A frontier with what else is known of strategies of its problem; bounded as it is."""
    mem, time_ns = np.concatenate([found.mem_bytes, mem]), np.concatenate([found.time_ns, time_ns])
    kept = reduce_unsorted(mem, time_ns)
    all_strategies = np.concatenate([found.strategies, strategies])[kept]
    return settled(replace(found, mem_bytes=mem[kept], time_ns=time_ns[kept], strategies=all_strategies))


def settled(found: Frontier) -> Frontier:
    """Without its bound if that is no lower than the frontier, which is exact then."""
    return replace(found, bound=None) if found.worst_gap == 0 else found
