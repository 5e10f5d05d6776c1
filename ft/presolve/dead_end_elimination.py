"""Pairs of states that never matter, because another state does at least as well. Exact.

Replace state s of a node by s', all else equal. The cost changes by the difference of the two states' own costs plus, for
each edge, the difference of their rows at the other node's state: at most by

    D(s, s') = own(s') - own(s) + sum over edges  max over y of  (row(s', y) - row(s, y))        y allowed with s

in memory and in time. If D <= 0 in both, s never matters: that is more than :mod:`.dominated_states` asks, whose rows are
equal. If it does not hold for all y of one edge but for *some* y, then the pair (s, y) of that edge never matters, because
(s', y) does as well, and is forbidden. So a resharding that is shared by two consumers is forbidden to go with a consumer
that has no use for it, and a table over a tensor's states and its consumers' loses nearly all of its cells. ("Dead-end
elimination", Goldstein, Biophys. J. 66 (1994), for pairs of costs.)

"Does as well" is a preorder, as D(s, s'') <= D(s, s') + D(s', s''); of states that do as well as each other the lowest
stays. One edge is changed at a time, so that every pair that goes has one that stays.

Complexity: O(K^2 L) for a node of K states whose edges have L columns together. Compiled where there is Numba; in NumPy
nodes where that is more than MAX_WORK are left as they are. Equal nodes are looked at once.
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
"""Of a node; with more, sums of differences could overflow."""
ROUNDS = 3
_LITTLE_WORK = 1 << 20
_WORK_OF_CANDIDATE = 1000
"""Most pairs of states are told apart at once, so this much work takes the time of one candidate in
:mod:`..tables.merge`.
"""
_NEVER = np.int64(1 << 57)
"""Above every difference of costs; a sum with one of them still fits."""

Mask = npt.NDArray[np.bool_]


def without_replaceable(problem: Problem) -> Problem:
    """The same nodes, edges and frontier, with what never matters at INFEASIBLE, as is all that was not allowed."""
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
    """Reduces nodes; of those that are equal, edges and all, one: deep models repeat their layers."""

    def __init__(self, reduce: Callable[[Ints, list[Ints]], bool]) -> None:
        self.reduce = reduce
        self._known: dict[tuple[tuple[tuple[int, ...], bytes], ...], tuple[list[Ints], bool]] = {}

    def __call__(self, own: Ints, ends: list[Ints]) -> bool:
        """In place; whether anything was forbidden."""
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
    """Whether looking at a node may save more than it takes: eliminating one with two edges takes little more itself."""
    work = own.shape[1] ** 2 * sum(end.shape[2] for end in ends)
    return len(ends) <= MAX_EDGES and (len(ends) > 2 or work <= _LITTLE_WORK)


def _cheaper_to_cross(edge: Edge, reduced: Ints) -> Ints:
    """The edge as it was, where that has fewer pairs of classes of rows and columns (see :mod:`..tables.state_classes`) than
    pairs now.

    What is given back is allowed in the problem as it was given, so the frontier stays.
    """
    given = np.minimum(np.stack([edge.mem_bytes, edge.time_ns]), INFEASIBLE)
    given[:, (given >= INFEASIBLE).any(axis=0)] = INFEASIBLE
    allowed = reduced[0] < INFEASIBLE
    kept = given[:, allowed.any(axis=1)][:, :, allowed.any(axis=0)]
    rows = {kept[:, row].tobytes() for row in range(kept.shape[1])}
    columns = {kept[:, :, column].tobytes() for column in range(kept.shape[2])}
    return given if len(rows) * len(columns) < int(allowed.sum()) else reduced


def reduce_compiled(own: Ints, ends: list[Ints]) -> bool:
    """``reduce_in_numpy`` by :mod:`..tables.numba_kernels`; it may find others.

    Raises:
        ImportError: there is no Numba.
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
    """Forbid states and pairs of one node, in place; whether there were any."""
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
        return True  # its pairs, without these states, in the next round
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
    """D after the row of one edge has changed."""
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
        """bool[n_states, Y]: what some other state replaces, from where ``other`` does as well as ``state``: bool[P, Y]."""
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
    """Those pairs where at most one edge forbids ``other`` what it allows ``state``."""
    conflicts = np.zeros((n_states, n_states), np.int64)
    for row in rows:
        allowed = (row[0] < INFEASIBLE).astype(np.float32)
        conflicts += (allowed @ (1 - allowed).T) > 0
    np.fill_diagonal(conflicts, 2)
    state, other = np.nonzero(conflicts < 2)
    return _Candidates(n_states, state.astype(np.int64), other.astype(np.int64))


def _differences(row: Ints, candidates: _Candidates) -> Ints:
    """row(other, y) - row(state, y): int64[2, P, Y].

    -_NEVER where ``state`` is not allowed, _NEVER where only ``other`` is not.
    """
    state, other = row[:, candidates.state], row[:, candidates.other]
    result = other - state
    result[other >= INFEASIBLE] = _NEVER
    result[state >= INFEASIBLE] = -_NEVER
    return result
