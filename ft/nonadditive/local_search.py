"""Better strategies, where a part of the memory is there for a while only, by changing one node at a time.

A search charges the weighted mean of the blocks' memory (:mod:`.segment_memory`), since a sum is all that it can charge, and
so takes what is computed again in one block to cost a share of what it does. But where that block isn't the largest it costs
nothing, and where it is, all of it: of its strategies many have one block that is larger than the others, in which less
could be computed again for nothing. So each is improved by what it truly takes: a node is given the other of a pair of
states that differ in what is computed again, and the nodes beside it, which have no meaning of their own (how a copy is
kept), follow; or one of these alone is given another state. Of all that such changes make of all strategies the
Pareto-minimal ones are changed further, until nothing is better.

What a change of a node costs depends on the states around it alone, which most points have in common: it is worked out once
for all that do.

Complexity: O(rounds x POINTS x changes of all nodes x blocks).
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..pareto import reduce_unsorted
from ..problem import INFEASIBLE, Edge, Ints, Node, Problem
from .segment_memory import Transient

POINTS = 256
"""Of those that are new the most that are changed in a round: evenly along the frontier."""
ROUNDS = 64

States = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class _Changes:
    """Of one node in one context what may be changed: C changes.

    Attributes:
        nodes: int[N], which nodes get other states.
        states: int32[C, N], which.
        mem, time: int64[C], by how much the problem's memory and time change.
        blocks: int[M], the blocks that change; ``in_blocks``, int64[M, C], by how much.
    """

    nodes: Ints
    states: States
    mem: Ints
    time: Ints
    blocks: Ints
    in_blocks: Ints


@dataclass(frozen=True, slots=True, eq=False)
class _Points:
    """Strategies, int32[P, nodes], their sums, int64[P], and what each block has, int64[blocks, P]."""

    strategies: States
    mem: Ints
    time: Ints
    blocks: Ints

    @property
    def true_mem(self) -> Ints:
        most: Ints = self.mem + self.blocks.max(axis=0)
        return most

    def take(self, which: Ints) -> _Points:
        return _Points(self.strategies[which], self.mem[which], self.time[which], self.blocks[:, which])

    def with_(self, other: _Points) -> _Points:
        return _Points(
            np.concatenate([self.strategies, other.strategies]),
            np.concatenate([self.mem, other.mem]),
            np.concatenate([self.time, other.time]),
            np.concatenate([self.blocks, other.blocks], axis=1),
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Options:
    """What a node's states cost, int64[K], and what each of some blocks has by them, int64[len(numbers), K]."""

    mem: Ints
    time: Ints
    numbers: Ints
    blocks: Ints

    @property
    def allowed(self) -> Ints:
        return np.flatnonzero(np.maximum(self.mem, self.time) < INFEASIBLE)

    def best(self, by_time: bool, n_large: int) -> int:
        """The allowed state of the least time, or else of the least memory with the blocks' mean."""
        allowed = self.allowed
        mem, time_ns = (self.mem + self.blocks.sum(axis=0) // n_large)[allowed], self.time[allowed]
        return int(allowed[np.lexsort((mem, time_ns) if by_time else (time_ns, mem))[0]])


@dataclass(slots=True)
class _Sum:
    """By how much memory and time change, and what some blocks have."""

    mem: int = 0
    time: int = 0
    blocks: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))

    def copy(self) -> _Sum:
        return _Sum(self.mem, self.time, self.blocks.copy())

    def add(self, options: _Options, state: int, sign: int = 1) -> None:
        self.mem += sign * int(options.mem[state])
        self.time += sign * int(options.time[state])
        for place, n_bytes in zip(options.numbers.tolist(), options.blocks[:, state].tolist(), strict=True):
            self.blocks[place] += sign * n_bytes

    def add_difference(self, costs: Node | Edge, parts: Sequence[tuple[int, Ints]], then: Any, now: Any) -> None:
        """Of a node or an edge from one state, or one pair of them, to another."""
        self.mem += int(costs.mem_bytes[then] - costs.mem_bytes[now])
        self.time += int(costs.time_ns[then] - costs.time_ns[now])
        for place, n_bytes in parts:
            self.blocks[place] += int(n_bytes[then] - n_bytes[now])


def _minimal(costs: Ints) -> Ints:
    """The places of the columns than which no other is less in some row and more in none; of equal ones the first."""
    _, first = np.unique(costs, axis=1, return_index=True)
    first = np.sort(first)
    costs = costs[:, first]
    does_as_well = (costs[:, :, None] <= costs[:, None, :]).all(axis=0)
    kept: Ints = first[does_as_well.sum(axis=0) == 1]
    return kept


class Descent:
    """Changes strategies of a problem.

    Args:
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
        for place, block in enumerate(transient.blocks):
            for node, n_bytes in block.nodes.items():
                self._of_nodes[node].append((place, n_bytes))
            for number, n_bytes in block.edges.items():
                self._of_edges[number].append((place, n_bytes))
        own = set(transient.plain)
        free = {node for node in range(n_nodes) if node not in own and problem.nodes[node].n_states > 1}
        self._free = {node for node in free if not free & set(self._beside(node))}
        self._movable = sorted(self._free | set(transient.others))
        self._context = {node: self._context_of(node) for node in self._movable}
        self._known: dict[tuple[int, bytes], _Changes | None] = {}

    def _beside(self, node: int) -> Iterator[int]:
        for number in self._edges[node]:
            edge = self.problem.edges[number]
            yield edge.target if edge.source == node else edge.source

    def _context_of(self, node: int) -> Ints:
        """The nodes on whose states it depends what a change of a node costs; the node first."""
        found = dict.fromkeys([node, *self._beside(node)])
        for other in [each for each in found if each in self._free]:
            found.update(dict.fromkeys(self._beside(other)))
        return np.fromiter(found, np.intp, len(found))

    def improved(self, strategies: States) -> tuple[Ints, Ints, States]:
        """Pareto-minimal strategies, with their true memory and time, of these and of what changes make of them."""
        new = self._points(strategies)
        best = new = new.take(reduce_unsorted(new.true_mem, new.time))
        for _ in range(ROUNDS):
            if time.monotonic() > self.deadline or not len(new.mem):
                break
            if len(new.mem) > POINTS:
                new = new.take(np.linspace(0, len(new.mem) - 1, POINTS).round().astype(np.intp))
            changed = self._changed(new, best)
            n_before, both = len(best.mem), best.with_(changed)
            kept = reduce_unsorted(both.true_mem, both.time)
            best, new = both.take(kept), both.take(kept[kept >= n_before])
        return best.true_mem, best.time, best.strategies

    def _points(self, strategies: States) -> _Points:
        mem, time_ns = np.zeros((2, len(strategies)), np.int64)
        for number, node in enumerate(self.problem.nodes):
            mem += node.mem_bytes[strategies[:, number]]
            time_ns += node.time_ns[strategies[:, number]]
        for edge in self.problem.edges:
            pair = strategies[:, edge.source], strategies[:, edge.target]
            mem += edge.mem_bytes[pair]
            time_ns += edge.time_ns[pair]
        return _Points(strategies, mem, time_ns, self.transient.by_block(self.problem, strategies))

    def _changed(self, points: _Points, best: _Points) -> _Points:
        """Of all changes of points those that are Pareto-minimal among them and the best so far."""
        found: list[tuple[Ints, _Changes]] = []
        mem, time_ns = [best.true_mem], [best.time]
        for node in self._movable:
            context = self._context[node]
            seen, member = np.unique(points.strategies[:, context], axis=0, return_inverse=True)
            for number, states in enumerate(seen):
                changes = self._changes(node, states)
                if changes is None:
                    continue
                (which,) = np.nonzero(member.reshape(-1) == number)
                of_blocks = points.blocks[:, which, None]
                if len(changes.blocks):
                    of_blocks = np.repeat(of_blocks, len(changes.mem), axis=2)
                    of_blocks[changes.blocks] += changes.in_blocks[:, None, :]
                found.append((which, changes))
                mem.append((points.mem[which, None] + changes.mem + of_blocks.max(axis=0)).reshape(-1))
                time_ns.append((points.time[which, None] + changes.time).reshape(-1))
        kept = reduce_unsorted(np.concatenate(mem), np.concatenate(time_ns))
        starts = np.cumsum([len(each) for each in mem])
        kept = kept[kept >= starts[0]]
        group = np.searchsorted(starts, kept, side="right") - 1
        rows = np.zeros(len(kept), np.intp)
        for i, (place, of_group) in enumerate(zip(kept.tolist(), group.tolist(), strict=True)):
            which, changes = found[of_group]
            rows[i] = which[(place - int(starts[of_group])) // len(changes.mem)]
        result = points.take(rows)
        for i, (place, of_group) in enumerate(zip(kept.tolist(), group.tolist(), strict=True)):
            changes = found[of_group][1]
            change = (place - int(starts[of_group])) % len(changes.mem)
            result.strategies[i, changes.nodes] = changes.states[change]
            result.mem[i] += changes.mem[change]
            result.time[i] += changes.time[change]
            result.blocks[changes.blocks, i] += changes.in_blocks[:, change]
        return result

    def _changes(self, node: int, states: States) -> _Changes | None:
        """What may be changed of a node, where the nodes of its context have some states; None where nothing can be."""
        key = node, states.tobytes()
        if key not in self._known:
            at = dict(zip(self._context[node].tolist(), states.tolist(), strict=True))
            self._known[key] = self._alone(node, at) if node in self._free else self._other(node, at)
        return self._known[key]

    def _alone(self, node: int, at: Mapping[int, int]) -> _Changes | None:
        """Other states of a node that has no meaning of its own: those that are better in something."""
        options, before = self._options(node, at), at[node]
        states = options.allowed
        costs = options.mem, options.time, options.blocks
        mem, time_ns, blocks = (cost[..., states] - cost[..., [before]] for cost in costs)
        is_better = (mem < 0) | (time_ns < 0) | (blocks < 0).any(axis=0)
        if not is_better.any():
            return None
        states, mem, time_ns, blocks = states[is_better], mem[is_better], time_ns[is_better], blocks[:, is_better]
        kept = _minimal(np.concatenate([[mem, time_ns], blocks]))
        changed = states[kept, None].astype(np.int32)
        return _Changes(np.array([node]), changed, mem[kept], time_ns[kept], options.numbers, blocks[:, kept])

    def _other(self, node: int, at: Mapping[int, int]) -> _Changes | None:
        """The other of a pair of states; the nodes beside it that have no meaning follow, for the least memory or time."""
        after = int(self.transient.others[node][at[node]])
        if after < 0:
            return None
        changed, own = {**at, node: after}, _Sum()
        own.add_difference(self.problem.nodes[node], self._of_nodes[node], after, at[node])
        for number in self._edges[node]:
            edge = self.problem.edges[number]
            if edge.source not in self._free and edge.target not in self._free:
                then, now = (changed[edge.source], changed[edge.target]), (at[edge.source], at[edge.target])
                if max(edge.time_ns[then], edge.mem_bytes[then]) >= INFEASIBLE:
                    return None
                own.add_difference(edge, self._of_edges[number], then, now)
        following = sorted(self._free & set(self._beside(node)))
        before, options = ([self._options(each, states) for each in following] for states in (at, changed))
        if not all(len(each.allowed) for each in options):
            return None
        ways = dict.fromkeys(
            tuple(each.best(by_time, len(self.transient.large)) for each in options) for by_time in (False, True)
        )
        sums = []
        for states in ways:
            total = own.copy()
            for each, old, new, state in zip(following, before, options, states, strict=True):
                total.add(new, state)
                total.add(old, at[each], -1)
            sums.append(total)
        numbers = sorted({place for total in sums for place in total.blocks})
        return _Changes(
            np.array([node, *following]),
            np.array([[after, *states] for states in ways], np.int32),
            np.array([total.mem for total in sums], np.int64),
            np.array([total.time for total in sums], np.int64),
            np.array(numbers, np.intp),
            np.array([[total.blocks[place] for total in sums] for place in numbers], np.int64).reshape(-1, len(sums)),
        )

    def _options(self, node: int, at: Mapping[int, int]) -> _Options:
        """What a node's states cost beside the states of others."""
        own = self.problem.nodes[node]
        mem, time_ns = own.mem_bytes.copy(), own.time_ns.copy()
        parts = defaultdict[int, Ints](lambda: np.zeros_like(mem))
        for place, n_bytes in self._of_nodes[node]:
            parts[place] = parts[place] + n_bytes
        for number in self._edges[node]:
            edge = self.problem.edges[number]
            here = (slice(None), at[edge.target]) if edge.source == node else (at[edge.source], slice(None))
            mem += edge.mem_bytes[here]
            time_ns += edge.time_ns[here]
            for place, n_bytes in self._of_edges[number]:
                parts[place] = parts[place] + n_bytes[here]
        numbers = sorted(parts)
        blocks = np.array([parts[place] for place in numbers], np.int64).reshape(len(numbers), len(mem))
        return _Options(mem, time_ns, np.array(numbers, np.intp), blocks)
