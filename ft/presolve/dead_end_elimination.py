"""Forbid states and pairs of states that never matter because another state does at least as well. Exact.

Replace state s of a node by s', all else equal. The cost changes by the difference of the two states' own costs plus, for
each edge, the difference of their rows at the other node's state. That is at most

    D(s, s') = own(s') - own(s) + sum over edges  max over y of  (row(s', y) - row(s, y))        y allowed with s

in memory and in time. If D <= 0 in both, s never matters. If D <= 0 does not hold with the maximum over all y of one edge,
but does with *some* y in its place, then the pair (s, y) of that edge never matters, because (s', y) does as well, and it is
forbidden. So a resharding that is shared by two consumers is forbidden together with a consumer that has no use for it, and
a table over a tensor's states and its consumers' loses nearly all of its cells. ("Dead-end elimination", Goldstein, Biophys.
J. 66 (1994), for pairs of costs.)

"Does as well" is a preorder, as D(s, s'') <= D(s, s') + D(s', s''). Of states that do as well as each other, the lowest
stays. One edge is changed at a time, so that for every pair that goes, one that does as well stays.

Complexity: O(K^2 L) for a node of K states whose edges have L columns together; O(K^2 E + K L) with E edges where a bound by
the extremes of rows says of most pairs of states that neither replaces anything of the other. Nodes whose costs are equal,
edges included, are looked at once.
"""

from __future__ import annotations

import numpy as np

from ..interning import Interned
from ..problem import INFEASIBLE, Edge, Ints, Node, Problem, identity

MAX_EDGES = 32
"""The most edges of a node that is looked at; with more, sums of differences could overflow."""
ROUNDS = 3
_LITTLE_WORK = 1 << 20
_NEVER = np.int64(1 << 57)
"""A number above every difference of costs; a sum with one of them still fits."""


def without_replaceable(problem: Problem) -> Problem:
    """Return the problem with what never matters forbidden: the same nodes, edges and frontier.

    What is forbidden, and all that was not allowed before, costs exactly INFEASIBLE.
    """
    known: dict[tuple[object, ...], Ints] = {}

    def stacked(part: Node | Edge) -> Ints:
        """Return both costs, int64[2, ...]; equal arrays once, and what is not allowed as INFEASIBLE."""
        key = identity(part.mem_bytes), identity(part.time_ns)
        if key not in known:
            costs = np.minimum(np.stack([part.mem_bytes, part.time_ns]), INFEASIBLE)
            costs[:, (costs >= INFEASIBLE).any(axis=0)] = INFEASIBLE
            known[key] = costs
        return known[key]

    nodes, edges = [stacked(node) for node in problem.nodes], [stacked(edge) for edge in problem.edges]
    edges_of: list[list[tuple[int, bool]]] = [[] for _ in nodes]  # each edge of a node, and whether the node is its source
    neighbours: list[list[int]] = [[] for _ in nodes]
    for index, edge in enumerate(problem.edges):
        edges_of[edge.source].append((index, True))
        edges_of[edge.target].append((index, False))
        neighbours[edge.source].append(edge.target)
        neighbours[edge.target].append(edge.source)

    def ends(node: int) -> list[_End]:
        return [(edges[index], is_source) for index, is_source in edges_of[node]]

    n_columns = [sum(costs.shape[1 + is_source] for costs, is_source in ends(node)) for node in range(len(nodes))]
    reduce = _Once()
    eligible = {
        node for node in range(len(nodes)) if _is_worth_it(nodes[node].shape[1], n_columns[node], len(edges_of[node]))
    }
    pending = eligible
    for _ in range(ROUNDS):
        changed = set()
        for node in sorted(pending):
            reduced = reduce(nodes[node], ends(node))
            if reduced is not None:
                changed.add(node)
                nodes[node], *of_edges = reduced
                for (index, _), costs in zip(edges_of[node], of_edges, strict=True):
                    edges[index] = costs
        pending = changed.union(*(neighbours[node] for node in changed)) & eligible
    cheaper: dict[tuple[int, int], Ints] = {}
    for index, edge in enumerate(problem.edges):
        original, costs = stacked(edge), edges[index]
        key = id(original), id(costs)
        if key not in cheaper:
            cheaper[key] = costs if original is costs else _cheaper_to_cross(original, costs)
        edges[index] = cheaper[key]
    cache: dict[int, tuple[Ints, Ints]] = {}  # one pair of arrays for all that share their costs

    def arrays_of(costs: Ints) -> tuple[Ints, Ints]:
        if id(costs) not in cache:
            cache[id(costs)] = mem, time_ns = costs[0].copy(), costs[1].copy()
            mem.flags.writeable = time_ns.flags.writeable = False
        return cache[id(costs)]

    return Problem(
        tuple(Node(node.name, *arrays_of(costs)) for node, costs in zip(problem.nodes, nodes, strict=True)),
        tuple(Edge(e.source, e.target, *arrays_of(costs)) for e, costs in zip(problem.edges, edges, strict=True)),
    )


_End = tuple[Ints, bool]
"""An edge's costs, [2, states of the source, states of the target], and whether a node is the source."""


class _Once:
    """Reduces nodes, but only one of those that are equal, edges included: deep models repeat layers.

    Equal results are one object too, so that the next layer's node is recognised.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], list[Ints] | None] = {}
        self._first = Interned()

    def __call__(self, own: Ints, ends: list[_End]) -> list[Ints] | None:
        """Return the node's and its edges' costs, reduced, as new arrays; None if nothing was forbidden."""
        own, ends = self._first(own), [(self._first(costs), is_source) for costs, is_source in ends]
        key = id(own), *((id(costs), is_source) for costs, is_source in ends)
        if key not in self._known:
            copies = [own.copy(), *(costs.copy() for costs, _ in ends)]
            of_ends = [
                copy if is_source else copy.transpose(0, 2, 1) for copy, (_, is_source) in zip(copies[1:], ends, strict=True)
            ]
            changed = reduce_node(copies[0], of_ends)
            self._known[key] = [self._first(costs) for costs in copies] if changed else None
        return self._known[key]


def _is_worth_it(n_states: int, n_columns: int, n_edges: int) -> bool:
    """Return whether looking at a node may save more than it takes.

    Eliminating a node with at most two edges itself takes little more time than looking at it.
    """
    return n_edges <= MAX_EDGES and (n_edges > 2 or n_states**2 * n_columns <= _LITTLE_WORK)


def _cheaper_to_cross(original: Ints, reduced: Ints) -> Ints:
    """Return an edge's given costs where they make eliminations cheaper than the reduced ones; else the reduced ones.

    The given costs do so where they have fewer pairs of classes of rows and columns (see :mod:`..tables.state_classes`) than
    there are allowed pairs now. What they allow again was allowed in the given problem, so the frontier stays.
    """
    is_allowed = reduced[0] < INFEASIBLE
    crossed = original[:, is_allowed.any(axis=1)][:, :, is_allowed.any(axis=0)]
    rows = {crossed[:, row].tobytes() for row in range(crossed.shape[1])}
    columns = {crossed[:, :, column].tobytes() for column in range(crossed.shape[2])}
    return original if len(rows) * len(columns) < int(is_allowed.sum()) else reduced


def reduce_node(own: Ints, ends: list[Ints]) -> bool:
    """Forbid states and pairs of one node, in place; return whether there were any."""
    from ..tables.numba_kernels import forbid_replaceable

    if not ends:
        return False
    rows = np.concatenate(ends, axis=2)
    bounds = np.cumsum([0] + [end.shape[2] for end in ends])
    n_gone = forbid_replaceable(own, rows, bounds, INFEASIBLE, _NEVER)
    for end, start in zip(ends, bounds, strict=False):
        end[...] = rows[:, :, start : start + end.shape[2]]
    return bool(n_gone)
