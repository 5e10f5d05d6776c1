"""Find the frontier where a part of the communication overlaps with compute.

``search_overlapping(problem, overlap) -> Frontier``

Equation (3) of the TensorOpt paper adds up compute and network. But only a parameter's update waits for the sum of that
parameter's gradient: meanwhile the backward pass goes on.

**The model.** The backward pass goes through *positions*, from the highest to the lowest. At each it computes.
Then the communication that only an update waits for queues up for the link, which serves one request after the other. When
the link is done depends on where its last uninterrupted busy period began: before that position the link waited for compute,
and from there on compute doesn't count. So a step takes, over all such positions c (and one below all of them, for a link
that is done before compute is)

    time(S) = max over c of T_c(S),    T_c(S) = total(S) - overlap_c(S)
    overlap_c(S) = overlappable(S) from positions above c  +  computing(S) at positions below c

where *total* is Equation (3)'s sum, *overlappable* is the part of the overlappable communication's time that leaves the
device free to compute, *computing* is the backward pass's compute, and *overlap* is the time in which both run, which counts
once. Each T_c is a sum over nodes and edges, as the search needs; their maximum isn't.

**The search.** Let A be T_c of the lowest position from which anything is communicated, and B that of the highest: with A
compute hides all communication that it can, with B the link hides all compute that it can. Every strategy has

    time >= max(A, B) >= w A + (1 - w) B    for all w in [0, 1]

So the frontier of a weighted sum is a lower bound of the true frontier, and the highest of the bounds of several w is a
better one. The strategies found on the way, at their true times, are a frontier, and the gap between the two is known. A and
B leave the costs of nearly all equal layers equal, which a T_c in the middle wouldn't.

Complexity: a search for each weight, at most ``len(SHARES)`` of them, and O(points x (nodes + edges)) for their times.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ..budget import Budget
from ..frontier import Frontier, settled
from ..lower_bound import LowerBound
from ..pareto import reduce_unsorted
from ..problem import INFEASIBLE, Edge, Ints, Node, Problem, identity
from ..search import Progress, search
from .segment_memory import summed

UNITS = 16
SHARES = (16, 0, 8, 4, 12)
"""Weights of A, in units of 1 / UNITS, in the order in which they are tried. One is exact where all overlaps that can."""
_AT_ONCE = 256
"""Number of strategies whose times are computed together."""


@dataclass(frozen=True, slots=True)
class OverlapPart:
    """The part of a node's or an edge's time that may overlap with something else.

    Attributes:
        position: position in the backward pass, which goes from the highest to the lowest.
        ns: int64, with the shape of the costs that it is a part of; nowhere more than they are.

    Raises:
        ValueError: it has a negative time.
    """

    position: int
    ns: Ints

    def __post_init__(self) -> None:
        if self.ns.min() < 0:
            raise ValueError(f"a part of {self.ns.min()} ns at position {self.position}: expected at least 0")


@dataclass(frozen=True, slots=True, eq=False)
class Overlap:
    """The parts of a problem's times that may overlap with each other.

    Attributes:
        overlappable: overlappable communication by node: network time that only an update waits for.
        overlappable_edges: overlappable communication by edge.
        computing: compute of the backward pass by node.

    Nodes and edges that aren't named have no such part.
    """

    overlappable: dict[int, OverlapPart]
    overlappable_edges: dict[int, OverlapPart]
    computing: dict[int, OverlapPart]

    def overlap_ns(self, problem: Problem, strategies: npt.NDArray[np.int32]) -> Ints:
        """Return the overlap of strategies, int[P, nodes]: how much less time they take than Equation (3) says, int64[P]."""
        parts = [self._overlap_ns(problem.edges, strategies[i : i + _AT_ONCE]) for i in range(0, len(strategies), _AT_ONCE)]
        return np.concatenate(parts)

    def _overlap_ns(self, edges: Sequence[Edge], strategies: npt.NDArray[np.int32]) -> Ints:
        parts = [*self.overlappable.values(), *self.overlappable_edges.values(), *self.computing.values()]
        positions = sorted({part.position for part in parts})
        column = {position: i for i, position in enumerate(positions)}
        overlappable, computing = np.zeros((2, len(strategies), len(positions)), np.int64)
        for node, part in self.overlappable.items():
            overlappable[:, column[part.position]] += part.ns[strategies[:, node]]
        for number, part in self.overlappable_edges.items():
            edge = edges[number]
            overlappable[:, column[part.position]] += part.ns[strategies[:, edge.source], strategies[:, edge.target]]
        for node, part in self.computing.items():
            computing[:, column[part.position]] += part.ns[strategies[:, node]]
        ns_above = overlappable.sum(axis=1, keepdims=True) - np.cumsum(overlappable, axis=1)
        ns_below = np.cumsum(computing, axis=1) - computing
        by_position: Ints = np.concatenate([overlappable.sum(axis=1, keepdims=True), ns_above + ns_below], axis=1)
        least: Ints = by_position.min(axis=1)
        return least

    @property
    def most_ns(self) -> int:
        """Return a time that no strategy's overlap exceeds."""
        return sum(int(part.ns.max()) for part in (*self.overlappable.values(), *self.overlappable_edges.values()))

    def weighted(self, problem: Problem, share: int) -> Problem:
        """Return the problem whose times are  share A + (UNITS - share) B.

        Arrays that were identical stay identical, except at the lowest and the highest position.

        Raises:
            ValueError: a time is too long to be multiplied (26 days).
        """
        cache: dict[tuple[object, ...], Ints] = {}
        positions = [part.position for part in (*self.overlappable.values(), *self.overlappable_edges.values())]
        low, high = min(positions, default=0), max(positions, default=0)

        def times(time_ns: Ints, overlappable: OverlapPart | None, computing: OverlapPart | None) -> Ints:
            position = None if computing is None else computing.position
            weights = (
                share if overlappable is not None and overlappable.position > low else 0,
                0 if position is None else share * (position < low) + (UNITS - share) * (position < high),
            )
            key = identity(time_ns), weights, *(part and identity(part.ns) for part in (overlappable, computing))
            if key not in cache:
                feasible = np.where(time_ns < INFEASIBLE, time_ns, 0)
                if feasible.max() >= INFEASIBLE // UNITS:
                    raise ValueError(f"a time of {feasible.max()} ns, expected less than {INFEASIBLE // UNITS}")
                result = UNITS * feasible
                for part, weight in zip((overlappable, computing), weights, strict=True):
                    if part is not None:
                        result = result - weight * part.ns
                cache[key] = np.where(time_ns < INFEASIBLE, result, INFEASIBLE)
            return cache[key]

        nodes = tuple(
            Node(node.name, node.mem_bytes, times(node.time_ns, self.overlappable.get(i), self.computing.get(i)))
            for i, node in enumerate(problem.nodes)
        )
        edges = tuple(
            Edge(edge.source, edge.target, edge.mem_bytes, times(edge.time_ns, self.overlappable_edges.get(i), None))
            for i, edge in enumerate(problem.edges)
        )
        return Problem(nodes, edges)


def search_overlapping(
    problem: Problem,
    overlap: Overlap,
    algorithm: str = "ft-ldp",
    progress: Progress | None = None,
    budget: Budget | None = None,
) -> Frontier:
    """Find the certified frontier of a problem by the times of the module docstring.

    The arguments ``algorithm``, ``progress`` and ``budget`` are those of :func:`..search`.

    After the weights of A alone and of B alone, further weights are tried while there is time and a gap. Each search may
    take half of the time that is left.
    """
    budget = budget or Budget()
    deadline, best = time.monotonic() + budget.seconds, None
    for number, share in enumerate(SHARES):
        left_s = max(0.0, deadline - time.monotonic())
        if number >= 2 and not left_s:
            break
        frontier = search(overlap.weighted(problem, share), algorithm, progress, replace(budget, seconds=left_s / 2))
        bound = frontier.lower_bound("weighted sums")
        times = -(-bound.time_ns // UNITS)
        rows = reduce_unsorted(bound.mem_bytes, times)
        bound = LowerBound(bound.mem_bytes[rows], times[rows], bound.source)
        points = at_true_times(problem, overlap, frontier, bound)
        if best is not None:
            counts = {kind: count + best.eliminations[kind] for kind, count in points.eliminations.items()}
            points = best.joined(replace(points, eliminations=counts))
        best = points
        if best.exact or best.worst_gap <= budget.gap:
            break
    assert best is not None
    return best


def at_true_times(problem: Problem, overlap: Overlap, frontier: Frontier, bound: LowerBound | None = None) -> Frontier:
    """Return the Pareto-minimal ones of a frontier's strategies at the times of the module docstring.

    Args:
        bound: a lower bound of these times; None if the frontier is what its algorithm defines.
    """
    strategies = frontier.strategies
    time_ns = summed(problem, strategies)[1] - overlap.overlap_ns(problem, strategies)
    rows = reduce_unsorted(frontier.mem_bytes, time_ns)
    mem_bytes, time_ns, strategies = frontier.mem_bytes[rows], time_ns[rows], strategies[rows]
    return settled(replace(frontier, mem_bytes=mem_bytes, time_ns=time_ns, strategies=strategies, bound=bound))
