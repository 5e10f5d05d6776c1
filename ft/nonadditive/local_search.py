"""Improve strategies whose transient memory isn't additive, by changing the state of one node at a time.

A search can only charge sums, so it charges the weighted mean of the rematerialization segments' memory
(:mod:`.segment_memory`). What is rematerialized in one segment is thus taken to cost a share of its memory. In truth it
costs nothing where that segment isn't the largest, and all of its memory where it is. Many of the strategies found therefore
have one segment that is larger than the others, and in that segment less could be rematerialized at no cost.

So each strategy is improved by its true costs, with two kinds of change. Either a node takes the other of a pair of states
that differ in what is rematerialized, and its neighbours that only say how a copy is saved (*free* nodes) follow. Or one
such free node takes another state. Of all strategies that such changes give, the Pareto-minimal ones are changed further,
until nothing gets better.

What a change of a node costs depends only on the states around it, its *context*, which most points have in common. It is
computed once for all points with the same context.

Complexity: O(rounds x POINTS x changes of all nodes x segments).
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..pareto import reduce_unsorted
from ..problem import INFEASIBLE, Edge, Ints, Node, Problem
from ..tables.table import States
from .segment_memory import Transient, summed

POINTS = 256
"""The largest number of new points that are changed in one round; they are spread evenly along the frontier."""
ROUNDS = 64


@dataclass(frozen=True, slots=True, eq=False)
class Changes:
    """The changes that may be made at one node in one context: C changes.

    Attributes:
        nodes: int[N], the nodes that get other states.
        states: int32[C, N], the states that they get.
        mem, time: int64[C], the differences in the problem's memory and time.
        segments: int[M], the indices of the rematerialization segments that change.
        in_segments: int64[M, C], the differences in these segments' memory.
    """

    nodes: Ints
    states: States
    mem: Ints
    time: Ints
    segments: Ints
    in_segments: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Options:
    """The costs of a node's states, int64[K], where its neighbours' states are given.

    Attributes:
        numbers: the indices of the rematerialization segments that these states take memory in.
        segments: int64[len(numbers), K], the bytes that each state takes in each of these segments.
        allowed: the states whose memory and time are feasible.
    """

    mem: Ints
    time: Ints
    numbers: Ints
    segments: Ints
    allowed: Ints
    _best: dict[tuple[bool, int], int] = field(default_factory=dict)

    def best(self, is_by_time: bool, n_large: int) -> int:
        """Return the allowed state of least time, or else of least memory with the mean of the large segments added."""
        key = is_by_time, n_large
        if key not in self._best:
            mem = (self.mem + self.segments.sum(axis=0) // n_large)[self.allowed]
            time_ns = self.time[self.allowed]
            self._best[key] = int(self.allowed[np.lexsort((mem, time_ns) if is_by_time else (time_ns, mem))[0]])
        return self._best[key]


@dataclass(slots=True)
class Sum:
    """The differences that a change makes to memory, to time and to the memory of rematerialization segments."""

    mem: int = 0
    time: int = 0
    segments: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))

    def copy(self) -> Sum:
        return Sum(self.mem, self.time, self.segments.copy())

    def add(self, options: Options, state: int, sign: int = 1) -> None:
        """Add the costs of one state of a node, or subtract them with ``sign`` -1."""
        self.mem += sign * int(options.mem[state])
        self.time += sign * int(options.time[state])
        for index, n_bytes in zip(options.numbers.tolist(), options.segments[:, state].tolist(), strict=True):
            self.segments[index] += sign * n_bytes

    def add_difference(self, costs: Node | Edge, parts: Sequence[tuple[int, Ints]], new: Any, old: Any) -> None:
        """Add the difference that a node or an edge makes between one state (or pair of states) and another."""
        self.mem += int(costs.mem_bytes[new] - costs.mem_bytes[old])
        self.time += int(costs.time_ns[new] - costs.time_ns[old])
        for index, n_bytes in parts:
            self.segments[index] += int(n_bytes[new] - n_bytes[old])


def minimal(costs: Ints) -> Ints:
    """Return the indices of the Pareto-minimal columns; of equal columns, the first."""
    _, first = np.unique(costs, axis=1, return_index=True)
    first = np.sort(first)
    costs = costs[:, first]
    does_as_well = (costs[:, :, None] <= costs[:, None, :]).all(axis=0)
    indices: Ints = first[does_as_well.sum(axis=0) == 1]
    return indices


@dataclass(frozen=True, slots=True, eq=False)
class _Points:
    """Strategies, int32[P, nodes], with their total costs, int64[P], and each segment's memory, int64[segments, P]."""

    strategies: States
    mem: Ints
    time: Ints
    segments: Ints

    @property
    def true_mem(self) -> Ints:
        """Return the memory of each point, int64[P]: its sum plus that of its largest rematerialization segment."""
        result: Ints = self.mem + self.segments.max(axis=0)
        return result

    def take(self, indices: Ints) -> _Points:
        return _Points(self.strategies[indices], self.mem[indices], self.time[indices], self.segments[:, indices])

    def with_(self, other: _Points) -> _Points:
        """Return the points of both, the other's after these."""
        return _Points(
            np.concatenate([self.strategies, other.strategies]),
            np.concatenate([self.mem, other.mem]),
            np.concatenate([self.time, other.time]),
            np.concatenate([self.segments, other.segments], axis=1),
        )


def _groups(rows: States) -> Iterator[tuple[States, Ints]]:
    """Yield each different row, in lexicographic order, with the indices of the rows that are equal to it.

    There are few different ones, so that a dictionary takes a fifth of the time of NumPy's ``unique``, which sorts all rows.
    """
    # Of states, which aren't negative, the bytes from the highest on are ordered as the numbers are.
    keys = np.ascontiguousarray(rows, ">i4").view(f"V{4 * rows.shape[1]}").reshape(-1).tolist()
    rows_of = defaultdict[bytes, list[int]](list)
    for row, key in enumerate(keys):
        rows_of[key].append(row)
    for _, indices in sorted(rows_of.items()):
        yield rows[indices[0]], np.array(indices, np.intp)


class Descent:
    """A local search that changes strategies of one problem.

    Args:
        problem: the problem whose strategies are changed; its memory is what is saved, without transient memory.
        transient: the memory of its rematerialization segments.
        deadline: by the monotonic clock; no round begins after it.
    """

    def __init__(self, problem: Problem, transient: Transient, deadline: float) -> None:
        self.problem, self.transient, self.deadline = problem, transient, deadline
        n_nodes = len(problem.nodes)
        self._edges: list[list[int]] = [[] for _ in range(n_nodes)]
        for number, edge in enumerate(problem.edges):
            self._edges[edge.source].append(number)
            self._edges[edge.target].append(number)
        self._of_nodes: list[list[tuple[int, Ints]]] = [[] for _ in range(n_nodes)]
        self._of_edges: list[list[tuple[int, Ints]]] = [[] for _ in problem.edges]
        for index, segment in enumerate(transient.segments):
            for node, n_bytes in segment.nodes.items():
                self._of_nodes[node].append((index, n_bytes))
            for number, n_bytes in segment.edges.items():
                self._of_edges[number].append((index, n_bytes))
        own = set(transient.plain)
        free = {node for node in range(n_nodes) if node not in own and problem.nodes[node].n_states > 1}
        self._free = {node for node in free if not free & set(self._adjacent(node))}
        self._movable = sorted(self._free | set(transient.others))
        self._context = {node: self._context_of(node) for node in self._movable}
        self._known: dict[tuple[int, bytes], Changes | None] = {}
        self._known_options: dict[tuple[int, ...], Options] = {}

    def _adjacent(self, node: int) -> Iterator[int]:
        """Yield the other end of each edge of a node."""
        for number in self._edges[node]:
            edge = self.problem.edges[number]
            yield edge.target if edge.source == node else edge.source

    def _context_of(self, node: int) -> Ints:
        """Return the nodes on whose states the cost of changing a node depends; the node itself comes first."""
        context = dict.fromkeys([node, *self._adjacent(node)])
        for other in [n for n in context if n in self._free]:
            context.update(dict.fromkeys(self._adjacent(other)))
        return np.fromiter(context, np.intp, len(context))

    def improved(self, strategies: States) -> tuple[Ints, Ints, States]:
        """Return the Pareto-minimal strategies among the given ones and all that changes make of them.

        Returns:
            Their true memory, int64[P], their time, int64[P], and the strategies, int32[P, nodes].
        """
        mem, time_ns = summed(self.problem, strategies)
        new = _Points(strategies, mem, time_ns, self.transient.by_segment(self.problem, strategies))
        best = new = new.take(reduce_unsorted(new.true_mem, new.time))
        for _ in range(ROUNDS):
            if time.monotonic() > self.deadline or not len(new.mem):
                break
            if len(new.mem) > POINTS:
                new = new.take(np.linspace(0, len(new.mem) - 1, POINTS).round().astype(np.intp))
            changed = self._changed(new, best)
            n_before, union = len(best.mem), best.with_(changed)
            indices = reduce_unsorted(union.true_mem, union.time)
            best, new = union.take(indices), union.take(indices[indices >= n_before])
        return best.true_mem, best.time, best.strategies

    def _changed(self, points: _Points, best: _Points) -> _Points:
        """Return the changed points that are Pareto-minimal among all changed points and the best ones so far."""
        groups: list[tuple[Ints, Changes]] = []
        mem, time_ns = [best.true_mem], [best.time]
        for node in self._movable:
            if time.monotonic() > self.deadline:
                break  # of a deep model a round takes seconds
            for states, indices in _groups(points.strategies[:, self._context[node]]):
                changes = self._changes(node, states)
                if changes is None:
                    continue
                of_segments = points.segments[:, indices, None]
                if len(changes.segments):
                    of_segments = np.repeat(of_segments, len(changes.mem), axis=2)
                    of_segments[changes.segments] += changes.in_segments[:, None, :]
                groups.append((indices, changes))
                mem.append((points.mem[indices, None] + changes.mem + of_segments.max(axis=0)).reshape(-1))
                time_ns.append((points.time[indices, None] + changes.time).reshape(-1))
        survivors = reduce_unsorted(np.concatenate(mem), np.concatenate(time_ns))
        starts = np.cumsum([len(part) for part in mem])
        survivors = survivors[survivors >= starts[0]]
        group = np.searchsorted(starts, survivors, side="right") - 1
        offsets = survivors - starts[group]
        chosen = [(*groups[i], offset) for i, offset in zip(group.tolist(), offsets.tolist(), strict=True)]
        rows = [indices[offset // len(changes.mem)] for indices, changes, offset in chosen]
        result = points.take(np.array(rows, np.intp))
        for i, (_, changes, offset) in enumerate(chosen):
            change = offset % len(changes.mem)
            result.strategies[i, changes.nodes] = changes.states[change]
            result.mem[i] += changes.mem[change]
            result.time[i] += changes.time[change]
            result.segments[changes.segments, i] += changes.in_segments[:, change]
        return result

    def _changes(self, node: int, states: States) -> Changes | None:
        """Return the possible changes of a node in a context, or None if there are none."""
        key = node, states.tobytes()
        if key not in self._known:
            state_of = dict(zip(self._context[node].tolist(), states.tolist(), strict=True))
            changes = self._own_changes if node in self._free else self._pair_changes
            self._known[key] = changes(node, state_of)
        return self._known[key]

    def _own_changes(self, node: int, state_of: Mapping[int, int]) -> Changes | None:
        """Return the changes of a free node alone: its other states that improve at least one cost."""
        options, before = self._options(node, state_of), state_of[node]
        states = options.allowed
        costs = options.mem, options.time, options.segments
        mem, time_ns, segments = (cost[..., states] - cost[..., [before]] for cost in costs)
        is_better = (mem < 0) | (time_ns < 0) | (segments < 0).any(axis=0)
        if not is_better.any():
            return None
        states, mem, time_ns, segments = states[is_better], mem[is_better], time_ns[is_better], segments[:, is_better]
        indices = minimal(np.concatenate([[mem, time_ns], segments]))
        changed = states[indices, None].astype(np.int32)
        return Changes(np.array([node]), changed, mem[indices], time_ns[indices], options.numbers, segments[:, indices])

    def _pair_changes(self, node: int, state_of: Mapping[int, int]) -> Changes | None:
        """Return the changes of a node to the other state of its pair, which differs only in what is rematerialized.

        The neighbouring free nodes follow: each takes its state of least memory, or each its state of least time.
        """
        after = int(self.transient.others[node][state_of[node]])
        if after < 0:
            return None
        changed, own = {**state_of, node: after}, Sum()
        own.add_difference(self.problem.nodes[node], self._of_nodes[node], after, state_of[node])
        for number in self._edges[node]:
            edge = self.problem.edges[number]
            if edge.source not in self._free and edge.target not in self._free:
                new_pair, old_pair = ((states[edge.source], states[edge.target]) for states in (changed, state_of))
                if max(edge.time_ns[new_pair], edge.mem_bytes[new_pair]) >= INFEASIBLE:
                    return None
                own.add_difference(edge, self._of_edges[number], new_pair, old_pair)
        following = sorted(self._free & set(self._adjacent(node)))
        before, options = ([self._options(neighbour, states) for neighbour in following] for states in (state_of, changed))
        if not all(len(o.allowed) for o in options):
            return None
        ways = dict.fromkeys(tuple(o.best(by_time, len(self.transient.large)) for o in options) for by_time in (False, True))
        sums = []
        for states in ways:
            total = own.copy()
            for neighbour, old, new, state in zip(following, before, options, states, strict=True):
                total.add(new, state)
                total.add(old, state_of[neighbour], -1)
            sums.append(total)
        numbers = sorted({index for total in sums for index in total.segments})
        return Changes(
            np.array([node, *following]),
            np.array([[after, *states] for states in ways], np.int32),
            np.array([total.mem for total in sums], np.int64),
            np.array([total.time for total in sums], np.int64),
            np.array(numbers, np.intp),
            np.array([[total.segments[index] for total in sums] for index in numbers], np.int64).reshape(-1, len(sums)),
        )

    def _options(self, node: int, state_of: Mapping[int, int]) -> Options:
        """Return the costs of a node's states, given the states of its neighbours."""
        key = node, *(state_of[other] for other in self._adjacent(node))
        if key not in self._known_options:
            self._known_options[key] = self._computed_options(node, state_of)
        return self._known_options[key]

    def _computed_options(self, node: int, state_of: Mapping[int, int]) -> Options:
        own = self.problem.nodes[node]
        mem, time_ns = own.mem_bytes.copy(), own.time_ns.copy()
        parts = defaultdict[int, Ints](lambda: np.zeros_like(mem))
        for index, n_bytes in self._of_nodes[node]:
            parts[index] = parts[index] + n_bytes
        for number in self._edges[node]:
            edge = self.problem.edges[number]
            selection = (slice(None), state_of[edge.target]) if edge.source == node else (state_of[edge.source], slice(None))
            mem += edge.mem_bytes[selection]
            time_ns += edge.time_ns[selection]
            for index, n_bytes in self._of_edges[number]:
                parts[index] = parts[index] + n_bytes[selection]
        numbers = sorted(parts)
        segments = np.array([parts[index] for index in numbers], np.int64).reshape(len(numbers), len(mem))
        allowed = np.flatnonzero(np.maximum(mem, time_ns) < INFEASIBLE)
        return Options(mem, time_ns, np.array(numbers, np.intp), segments, allowed)
