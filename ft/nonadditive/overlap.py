"""The frontier where a part of the communication runs beside compute: ``search_overlapping(problem, overlap) -> Frontier``.

Equation (3) of the TensorOpt paper adds up compute and network. But the sum of a parameter's gradient keeps nobody but the
parameter's update waiting: meanwhile the backward pass goes on.

**The model.** The backward pass comes to *places*, from the highest to the lowest. At each it computes; then what is to be
communicated for nobody but an update queues up for the link, which serves one after the other. When the link is done is
decided by where it last began to be busy without a stop: before that place it waited for compute, from there on compute
doesn't count. So a step takes, over all such places c (and one below all, for a link that is done before compute is)

    time(S) = max over c of T_c(S),    T_c(S) = total(S) - hidden_c(S)
    hidden_c(S) = hideable(S) from places above c  +  hiding(S) at places below c

where *total* is Equation (3)'s sum, *hideable* the part of communication's time that leaves the device free to compute,
and *hiding* the backward pass's compute. Each T_c is a sum over nodes and edges, as the search needs; their maximum isn't.

**The search.** Let A be T_c of the lowest place from which anything is communicated, and B that of the highest: compute
hides all that it can, or the link does. Every strategy has time >= max(A, B) >= w A + (1 - w) B for all w in [0, 1]. So
the frontier of a weighted sum is a lower bound of the true one, and the highest of several w's a better one; the
strategies found on the way, at their true times, are a frontier, and the gap between the two is known. A and B leave the
costs of nearly all equal layers equal, which a T_c in the middle wouldn't.

Complexity: a search for each weight, at most :data:`SHARES` of them, and O(points x (nodes + edges)) for their times.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ..budget import Budget
from ..frontier import Frontier
from ..lower_bound import LowerBound
from ..pareto import reduce_unsorted
from ..problem import INFEASIBLE, Edge, Ints, Node, Problem, identity
from ..search import Progress, search

UNITS = 16
SHARES = (16, 0, 8, 4, 12)
"""Weights of A in :data:`UNITS`, in the order in which they are tried. Where all is hidden that can be, one is exact."""
_AT_ONCE = 256
"""Strategies whose times are worked out together."""


@dataclass(frozen=True, slots=True)
class Part:
    """What may run beside something else, of a node or an edge.

    Attributes:
        place: where in the backward pass; it goes from the highest to the lowest.
        ns: int64 of the shape of the costs that it is a part of, nowhere more than they are.

    Raises:
        ValueError: it has a negative time.
    """

    place: int
    ns: Ints

    def __post_init__(self) -> None:
        if self.ns.min() < 0:
            raise ValueError(f"a part of {self.ns.min()} ns at place {self.place}: expected at least 0")


@dataclass(frozen=True, slots=True, eq=False)
class Overlap:
    """Which parts of a problem's times may run beside each other.

    Attributes:
        hideable: by node, network that only an update waits for.
        hideable_edges: the same by edge.
        hiding: by node, compute of the backward pass.

    Nodes and edges that aren't named have nothing of the kind.
    """

    hideable: dict[int, Part]
    hideable_edges: dict[int, Part]
    hiding: dict[int, Part]

    def hidden_ns(self, problem: Problem, strategies: npt.NDArray[np.int32]) -> Ints:
        """What strategies, int[P, nodes], take less than Equation (3) says: int64[P]."""
        found = [
            self._hidden_ns(problem.edges, strategies[i : i + _AT_ONCE]) for i in range(0, len(strategies), _AT_ONCE)
        ]
        return np.concatenate(found)

    def _hidden_ns(self, edges: Sequence[Edge], chosen: npt.NDArray[np.int32]) -> Ints:
        parts = [*self.hideable.values(), *self.hideable_edges.values(), *self.hiding.values()]
        places = sorted({part.place for part in parts})
        column = {place: i for i, place in enumerate(places)}
        hideable, hiding = np.zeros((2, len(chosen), len(places)), np.int64)
        for node, part in self.hideable.items():
            hideable[:, column[part.place]] += part.ns[chosen[:, node]]
        for number, part in self.hideable_edges.items():
            edge = edges[number]
            hideable[:, column[part.place]] += part.ns[chosen[:, edge.source], chosen[:, edge.target]]
        for node, part in self.hiding.items():
            hiding[:, column[part.place]] += part.ns[chosen[:, node]]
        above = hideable.sum(axis=1, keepdims=True) - np.cumsum(hideable, axis=1)
        below = np.cumsum(hiding, axis=1) - hiding
        by_place: Ints = np.concatenate([hideable.sum(axis=1, keepdims=True), above + below], axis=1)
        least: Ints = by_place.min(axis=1)
        return least

    @property
    def most_ns(self) -> int:
        """No strategy hides more."""
        return sum(int(part.ns.max()) for part in (*self.hideable.values(), *self.hideable_edges.values()))

    def weighted(self, problem: Problem, share: int) -> Problem:
        """The problem whose times are  share A + (UNITS - share) B;  what was equal by identity stays so, ends apart.

        Raises:
            ValueError: a time is too long to be multiplied (26 days).
        """
        known: dict[tuple[object, ...], Ints] = {}
        places = [part.place for part in (*self.hideable.values(), *self.hideable_edges.values())]
        low, high = min(places, default=0), max(places, default=0)

        def times(time_ns: Ints, hideable: Part | None, hiding: Part | None) -> Ints:
            weights = (
                share if hideable is not None and hideable.place > low else 0,
                0 if hiding is None else share * (hiding.place < low) + (UNITS - share) * (hiding.place < high),
            )
            key = identity(time_ns), weights, *(part and identity(part.ns) for part in (hideable, hiding))
            if key not in known:
                feasible = np.where(time_ns < INFEASIBLE, time_ns, 0)
                if feasible.max() >= INFEASIBLE // UNITS:
                    raise ValueError(f"a time of {feasible.max()} ns, expected less than {INFEASIBLE // UNITS}")
                result = UNITS * feasible
                for part, weight in zip((hideable, hiding), weights, strict=True):
                    if part is not None:
                        result = result - weight * part.ns
                known[key] = np.where(time_ns < INFEASIBLE, result, INFEASIBLE)
            return known[key]

        nodes = tuple(
            Node(node.name, node.mem_bytes, times(node.time_ns, self.hideable.get(i), self.hiding.get(i)))
            for i, node in enumerate(problem.nodes)
        )
        edges = tuple(
            Edge(edge.source, edge.target, edge.mem_bytes, times(edge.time_ns, self.hideable_edges.get(i), None))
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
    """The frontier of a problem by the times of the module docstring, certified; arguments as of :func:`..search`.

    After the two ends, weights are tried while there is time and a gap. Each search may take half of what time is left.
    """
    budget = budget or Budget()
    deadline, best = time.monotonic() + budget.seconds, None
    for number, share in enumerate(SHARES):
        left_s = max(0.0, deadline - time.monotonic())
        if number >= 2 and not left_s:
            break
        found = search(overlap.weighted(problem, share), algorithm, progress, replace(budget, seconds=left_s / 2))
        best = _joined(best, at_true_times(problem, overlap, found, _bound_of(found)))
        if best.exact or best.worst_gap <= budget.gap:
            break
    assert best is not None
    return best


def at_true_times(problem: Problem, overlap: Overlap, found: Frontier, bound: LowerBound | None = None) -> Frontier:
    """The strategies of a frontier at the times of the module docstring, those of them that are Pareto-minimal.

    Args:
        bound: of these times; None if the frontier is what its algorithm defines.
    """
    chosen = found.strategies
    time_ns = np.zeros(len(chosen), np.int64)
    for i, node in enumerate(problem.nodes):
        time_ns += node.time_ns[chosen[:, i]]
    for edge in problem.edges:
        time_ns += edge.time_ns[chosen[:, edge.source], chosen[:, edge.target]]
    time_ns -= overlap.hidden_ns(problem, chosen)
    kept = reduce_unsorted(found.mem_bytes, time_ns)
    return _settled(
        replace(found, mem_bytes=found.mem_bytes[kept], time_ns=time_ns[kept], strategies=chosen[kept], bound=bound)
    )


def _bound_of(found: Frontier) -> LowerBound:
    bound = found.bound or LowerBound(found.mem_bytes, found.time_ns, "weighted sums")
    times = -(-bound.time_ns // UNITS)
    kept = reduce_unsorted(bound.mem_bytes, times)
    return LowerBound(bound.mem_bytes[kept], times[kept], bound.source)


def _joined(one: Frontier | None, other: Frontier) -> Frontier:
    """The points and the lower bound that two searches give together."""
    if one is None or one.bound is None or other.bound is None:
        return other if one is None or other.bound is None else one
    mem, time_ns = (np.concatenate(pair) for pair in ((one.mem_bytes, other.mem_bytes), (one.time_ns, other.time_ns)))
    kept = reduce_unsorted(mem, time_ns)
    strategies = np.concatenate([one.strategies, other.strategies])[kept]
    counts = {kind: one.eliminations[kind] + other.eliminations[kind] for kind in one.eliminations}
    bound = one.bound.tightened(other.bound)
    return _settled(Frontier(mem[kept], time_ns[kept], strategies, counts, one.algorithm, bound))


def _settled(found: Frontier) -> Frontier:
    """Without its bound if that is no lower than the frontier, which is exact then."""
    return replace(found, bound=None) if found.worst_gap == 0 else found
