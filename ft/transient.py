"""The frontier where a part of the memory is there for a while only: ``at_true_memory(problem, transient, found)``.

What is computed again in the backward pass isn't kept, and is there only while the backward pass is in its *block*
(:mod:`tensoropt.blocks`). Of blocks one after the other, one's is there at a time, so that a strategy takes

    mem(S) = kept(S) + max over blocks b of T_b(S)

Kept and each T_b are sums over nodes and edges, as a search needs; their maximum isn't. But for weights w >= 0 that add up
to 1,

    max over b of T_b(S) >= sum over b of w_b T_b(S)

and the right side is such a sum. So the search is of a Problem whose memory has the weighted sum in it: its frontier is a
lower bound of the true one, close to it where the blocks that have a weight are alike, as layers are. Its strategies at
what they take are a frontier, and the gap between the two is known.

Complexity: O(points x parts).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from .bound import LowerBound
from .frontier import Frontier
from .pareto import reduce_unsorted
from .problem import Edge, Ints, Node, Problem, identity


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """What is there while the backward pass is in one block: bytes by state of a node, int64[K], and of the two ends of an
    edge, int64[K source, K target].

    Attributes:
        share: the problem's memory has each of them in it, divided by this and rounded down; 0 where it has none.
    """

    nodes: Mapping[int, Ints]
    edges: Mapping[int, Ints]
    share: int

    def amounts(self, problem: Problem, chosen: npt.NDArray[np.int32]) -> tuple[Ints, Ints]:
        """By strategy, int[P, nodes], what there is, and what of it the problem's memory has: int64[P] each."""
        total, charged = np.zeros((2, len(chosen)), np.int64)
        parts = [n_bytes[chosen[:, node]] for node, n_bytes in self.nodes.items()]
        for number, n_bytes in self.edges.items():
            edge = problem.edges[number]
            parts.append(n_bytes[chosen[:, edge.source], chosen[:, edge.target]])
        for part in parts:
            total += part
            charged += part // self.share if self.share else 0
        return total, charged


@dataclass(frozen=True, slots=True, eq=False)
class Transient:
    """Of a problem what is there for a while only, by block.

    Attributes:
        plain: by node the states that compute nothing again, int64[]; of nodes that aren't named, all.
    """

    blocks: tuple[Block, ...]
    plain: Mapping[int, Ints]

    def missing_bytes(self, problem: Problem, strategies: npt.NDArray[np.int32]) -> Ints:
        """What strategies, int[P, nodes], take beyond the problem's memory: int64[P], nowhere below 0."""
        most, charged = np.zeros((2, len(strategies)), np.int64)
        for block in self.blocks:
            total, of_block = block.amounts(problem, strategies)
            most = np.maximum(most, total)
            charged += of_block
        return most - charged


def at_true_memory(problem: Problem, transient: Transient, found: Frontier) -> Frontier:
    """The strategies of a frontier at what they take, those of them that are Pareto-minimal; bounded by the frontier."""
    mem = found.mem_bytes + transient.missing_bytes(problem, found.strategies)
    bound = found.bound or LowerBound(found.mem_bytes, found.time_ns, "weighted sums of blocks")
    kept = reduce_unsorted(mem, found.time_ns)
    return settled(
        replace(found, mem_bytes=mem[kept], time_ns=found.time_ns[kept], strategies=found.strategies[kept], bound=bound)
    )


def joined(one: Frontier, other: Frontier) -> Frontier:
    """The points of two searches of one problem; bounded by the second, which had all strategies of the first."""
    mem, time_ns = (np.concatenate(pair) for pair in ((one.mem_bytes, other.mem_bytes), (one.time_ns, other.time_ns)))
    kept = reduce_unsorted(mem, time_ns)
    strategies = np.concatenate([one.strategies, other.strategies])[kept]
    counts = {kind: one.eliminations[kind] + other.eliminations[kind] for kind in one.eliminations}
    bound = other.bound or LowerBound(other.mem_bytes, other.time_ns, "weighted sums of blocks")
    return settled(Frontier(mem[kept], time_ns[kept], strategies, counts, other.algorithm, bound))


def restricted(problem: Problem, states: Sequence[Ints]) -> Problem:
    """:meth:`.Problem.restricted`, where what was equal by identity stays so."""
    known: dict[tuple[object, ...], Ints] = {}

    def of(costs: Ints, *kept: Ints) -> Ints:
        key = identity(costs), tuple(each.tobytes() for each in kept)
        if key not in known:
            known[key] = costs[np.ix_(*kept)]
        return known[key]

    nodes = [
        Node(node.name, of(node.mem_bytes, kept), of(node.time_ns, kept))
        for node, kept in zip(problem.nodes, states, strict=True)
    ]
    edges = []
    for edge in problem.edges:
        kept = states[edge.source], states[edge.target]
        edges.append(Edge(edge.source, edge.target, of(edge.mem_bytes, *kept), of(edge.time_ns, *kept)))
    return Problem(tuple(nodes), tuple(edges))


def settled(found: Frontier) -> Frontier:
    """Without its bound if that is no lower than the frontier, which is exact then."""
    return replace(found, bound=None) if found.worst_gap == 0 else found
