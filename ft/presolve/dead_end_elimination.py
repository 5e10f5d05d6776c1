"""Forbid states and pairs of states that never matter because another state does at least as well. Exact.

Replace state s of a node by s', all else equal. The cost changes by the difference of the two states' own costs plus, for
each edge, the difference of their rows at the other node's state. That is at most

    D(s, s') = own(s') - own(s) + sum over edges  max over y of  (row(s', y) - row(s, y))        y allowed with s

in memory and in time. If D <= 0 in both, s never matters. This finds more than :mod:`.dominated_states`, which asks for
equal rows. If D <= 0 does not hold with the maximum over all y of one edge, but does with *some* y in its place, then the
pair (s, y) of that edge never matters, because (s', y) does as well, and it is forbidden. So a resharding that is shared by
two consumers is forbidden together with a consumer that has no use for it, and a table over a tensor's states and its
consumers' loses nearly all of its cells. ("Dead-end elimination", Goldstein, Biophys. J. 66 (1994), for pairs of costs.)

"Does as well" is a preorder, as D(s, s'') <= D(s, s') + D(s', s''). Of states that do as well as each other, the lowest
stays. One edge is changed at a time, so that for every pair that goes, one that does as well stays.

Complexity: O(K^2 L) for a node of K states whose edges have L columns together. The work is done by compiled code where
there is Numba. In NumPy, nodes for which it is more than MAX_WORK are left as they are. Equal nodes are looked at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..problem import INFEASIBLE, Edge, Ints, Node, Problem
from ..tables.merge import is_for_compiled_code

MAX_WORK = 1 << 19
"""Differences that NumPy looks at together: 8 bytes each, several times over."""
MAX_EDGES = 32
"""The most edges of a node that is looked at; with more, sums of differences could overflow."""
ROUNDS = 3
_LITTLE_WORK = 1 << 20
_WORK_OF_CANDIDATE = 1000
"""Differences that take as long as one candidate in :mod:`..tables.merge`, as most pairs of states are rejected at once."""
_NEVER = np.int64(1 << 57)
"""A number above every difference of costs; a sum with one of them still fits."""

Mask = npt.NDArray[np.bool_]


def without_replaceable(problem: Problem) -> Problem:
    """Return the problem with what never matters forbidden: the same nodes, edges and frontier.

    What is forbidden, and all that was not allowed before, costs exactly INFEASIBLE.
    """
    nodes = [np.minimum(np.stack([node.mem_bytes, node.time_ns]), INFEASIBLE) for node in problem.nodes]
    edges = [np.minimum(np.stack([edge.mem_bytes, edge.time_ns]), INFEASIBLE) for edge in problem.edges]
    for costs in (*nodes, *edges):
        costs[:, (costs >= INFEASIBLE).any(axis=0)] = INFEASIBLE
    ends: list[list[Ints]] = [[] for _ in nodes]  # views of the edges' costs, [2, states of the node, states of the other]
    neighbours: list[list[int]] = [[] for _ in nodes]
    for edge, costs in zip(problem.edges, edges, strict=True):
        ends[edge.source].append(costs)
        ends[edge.target].append(costs.transpose(0, 2, 1))
        neighbours[edge.source].append(edge.target)
        neighbours[edge.target].append(edge.source)
    work = sum(float(own.shape[1]) ** 2 * sum(e.shape[2] for e in of) for own, of in zip(nodes, ends, strict=True))
    reduce = _Once(reduce_compiled if is_for_compiled_code(work / _WORK_OF_CANDIDATE) else reduce_in_numpy)
    eligible = {node for node in range(len(nodes)) if _is_worth_it(nodes[node], ends[node])}
    pending = eligible
    for _ in range(ROUNDS):
        changed = {node for node in sorted(pending) if reduce(nodes[node], ends[node])}
        pending = changed.union(*(neighbours[node] for node in changed)) & eligible
    for index, (edge, costs) in enumerate(zip(problem.edges, edges, strict=True)):
        edges[index] = _cheaper_to_cross(edge, costs)
    return Problem(
        tuple(Node(node.name, *costs) for node, costs in zip(problem.nodes, nodes, strict=True)),
        tuple(Edge(e.source, e.target, *costs) for e, costs in zip(problem.edges, edges, strict=True)),
    )


class _Once:
    """Reduces nodes, but only one of those that are equal, edges included: deep models repeat their layers."""

    def __init__(self, reduce: Callable[[Ints, list[Ints]], bool]) -> None:
        self.reduce = reduce
        self._known: dict[tuple[tuple[tuple[int, ...], bytes], ...], tuple[list[Ints], bool]] = {}

    def __call__(self, own: Ints, ends: list[Ints]) -> bool:
        """Reduce a node in place; return whether anything was forbidden."""
        costs = [own, *ends]
        key = tuple((cost.shape, cost.tobytes()) for cost in costs)
        if key not in self._known:
            changed = self.reduce(own, ends)
            self._known[key] = [cost.copy() for cost in costs] if changed else [], changed
            return changed
        reduced, changed = self._known[key]
        for cost, known in zip(costs, reduced, strict=False):
            cost[...] = known
        return changed


def _is_worth_it(own: Ints, ends: list[Ints]) -> bool:
    """Return whether looking at a node may save more than it takes.

    Eliminating a node with at most two edges itself takes little more time than looking at it.
    """
    work = own.shape[1] ** 2 * sum(end.shape[2] for end in ends)
    return len(ends) <= MAX_EDGES and (len(ends) > 2 or work <= _LITTLE_WORK)


def _cheaper_to_cross(edge: Edge, reduced: Ints) -> Ints:
    """Return the edge's given costs where they make eliminations cheaper than the reduced ones; else the reduced ones.

    The given costs do so where they have fewer pairs of classes of rows and columns (see :mod:`..tables.state_classes`) than
    there are allowed pairs now. What they allow again was allowed in the given problem, so the frontier stays.
    """
    given = np.minimum(np.stack([edge.mem_bytes, edge.time_ns]), INFEASIBLE)
    given[:, (given >= INFEASIBLE).any(axis=0)] = INFEASIBLE
    allowed = reduced[0] < INFEASIBLE
    kept = given[:, allowed.any(axis=1)][:, :, allowed.any(axis=0)]
    rows = {kept[:, row].tobytes() for row in range(kept.shape[1])}
    columns = {kept[:, :, column].tobytes() for column in range(kept.shape[2])}
    return given if len(rows) * len(columns) < int(allowed.sum()) else reduced


def reduce_compiled(own: Ints, ends: list[Ints]) -> bool:
    """Do what ``reduce_in_numpy`` does, by :mod:`..tables.numba_kernels`; it may find other states and pairs.

    Raises:
        ImportError: Numba is not installed.
    """
    from ..tables.numba_kernels import forbid_replaceable

    if not ends:
        return False
    rows = np.concatenate(ends, axis=2)
    bounds = np.cumsum([0] + [end.shape[2] for end in ends])
    n_gone = forbid_replaceable(own, rows, bounds, INFEASIBLE, _NEVER)
    for end, start in zip(ends, bounds, strict=False):
        end[...] = rows[:, :, start : start + end.shape[2]]
    return bool(n_gone)


def reduce_in_numpy(own: Ints, ends: list[Ints]) -> bool:
    """Forbid states and pairs of one node, in place; return whether there were any."""
    states = np.flatnonzero(own[0] < INFEASIBLE)
    n_states = len(states)
    if n_states < 2 or n_states**2 > MAX_WORK:
        return False
    rows = [end[:, states] for end in ends]
    candidates = _candidates(n_states, rows)
    if len(candidates.state) * sum(row.shape[2] for row in rows) > MAX_WORK:
        return False
    difference = own[:, states]
    total = difference[:, candidates.other] - difference[:, candidates.state]
    worst = [_differences(row, candidates).max(axis=2) for row in rows]
    total = total + sum(worst)
    gone = candidates.worse((total <= 0).all(axis=0)[:, None])[:, 0]
    if gone.any():
        own[:, states[gone]] = INFEASIBLE
        for end in ends:
            end[:, states[gone]] = INFEASIBLE
        return True  # the next round looks at the pairs that are left without these states
    changed = False
    for index, (end, row) in enumerate(zip(ends, rows, strict=True)):
        elsewhere = total - worst[index]
        hopeful = candidates.take(np.flatnonzero((elsewhere < _NEVER).all(axis=0)))
        elsewhere = elsewhere[:, (elsewhere < _NEVER).all(axis=0)]
        does_as_well = (elsewhere[:, :, None] + _differences(row, hopeful) <= 0).all(axis=0)
        gone = hopeful.worse(does_as_well) & (row[0] < INFEASIBLE)
        if gone.any():
            row[:, gone] = INFEASIBLE
            end[:, states] = row
            total = _renewed(total, worst, index, row, candidates)
            changed = True
    return changed


def _renewed(total: Ints, worst: list[Ints], index: int, row: Ints, candidates: _Candidates) -> Ints:
    """Return D after the rows of one edge have changed."""
    before = worst[index]
    worst[index] = _differences(row, candidates).max(axis=2)
    return total - before + worst[index]


@dataclass(frozen=True, slots=True)
class _Candidates:
    """Pairs of states of one node, of which ``other`` might replace ``state``; by ascending state."""

    n_states: int
    state: Ints
    other: Ints

    def take(self, which: npt.NDArray[np.intp]) -> _Candidates:
        return _Candidates(self.n_states, self.state[which], self.other[which])

    def worse(self, does_as_well: Mask) -> Mask:
        """Return which states some other state replaces, at each of Y columns: bool[n_states, Y].

        Args:
            does_as_well: bool[P, Y], where ``other`` does as well as ``state``.
        """
        place = np.full((self.n_states, self.n_states), -1, np.int64)
        place[self.state, self.other] = np.arange(len(self.state))
        reverse = place[self.other, self.state]
        mutual = does_as_well[reverse] & (reverse >= 0)[:, None]
        replaces = does_as_well & ~(mutual & (self.other > self.state)[:, None])
        result = np.zeros((self.n_states, does_as_well.shape[1]), np.bool_)
        present, first = np.unique(self.state, return_index=True)
        if len(first):
            result[present] = np.logical_or.reduceat(replaces, first, axis=0)
        return result


def _candidates(n_states: int, rows: list[Ints]) -> _Candidates:
    """Return the pairs for which at most one edge forbids to ``other`` what it allows to ``state``."""
    conflicts = np.zeros((n_states, n_states), np.int64)
    for row in rows:
        allowed = (row[0] < INFEASIBLE).astype(np.float32)
        conflicts += (allowed @ (1 - allowed).T) > 0
    np.fill_diagonal(conflicts, 2)
    state, other = np.nonzero(conflicts < 2)
    return _Candidates(n_states, state.astype(np.int64), other.astype(np.int64))


def _differences(row: Ints, candidates: _Candidates) -> Ints:
    """Return row(other, y) - row(state, y): int64[2, P, Y].

    It is -_NEVER where ``state`` is not allowed, and _NEVER where only ``other`` is not.
    """
    state, other = row[:, candidates.state], row[:, candidates.other]
    result = other - state
    result[other >= INFEASIBLE] = _NEVER
    result[state >= INFEASIBLE] = -_NEVER
    return result
