"""Which operators a search may have computed again, and in which blocks.

All that is recomputed between two kept tensors is there at once when the backward pass comes to it. If everything were
recomputed all of it would be there at once, and nothing won. So the program is cut into *blocks*, at tensors through which
all goes that gradients come back to: the residual stream of a Transformer between its layers, the activations of a chain.
What is cut through is kept, and so is what is still taken many operators later (what the encoder made, by all layers of a
decoder); within blocks a search chooses. One block's recomputed tensors are there at a time, and the parameters that its
operators read: where they are gathered they are there from when the first operator is computed again until the gradients of
all have read theirs.

Where to cut is decided by sizes: cut tensors, largest block and most parameters of a block should be small together (Chen et
al., Training Deep Nets with Sublinear Memory Cost, 2016, for chains of equal layers cut at every square root of their
number). Results count by what a device has of them, parameters whole. Of divisions that are about as good the finest is
taken: the smaller a block, the less there is at once of gradients and of what is there for a moment, too, and searches are
faster and closer to their bounds.

Complexity: O(operators + cuts x LIMITS^2).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from ...costs.operator_costs import OperatorCosting
from ...ir.graph import Graph, Operator
from ...ir.views import viewed_operand
from ...rules.registry import rule_of
from ...sharding.rematerializable import may_be_recomputed
from .fusion_groups import Followers

LIMITS = 24
"""Sizes of the largest block that are tried, and as many of a block's parameters."""
SLACK, SLACK_OF_RESULTS = 1 / 6, 0.6
"""By how much a division may be worse than the best, for being finer, and by cut tensors and the largest block alone."""
LEAST_SHARE = 0.0025
"""Of all that is kept, what a node must keep for it to have a choice."""
LONG = 0.125
"""Of the program, how far from its producer a tensor is taken that is kept."""
LARGE = 0.5
"""Of the largest block, how large one is that may come to be the largest under a strategy."""


@dataclass(frozen=True)
class Recomputable:
    """What may be recomputed of a node.

    Attributes:
        places: of the operators in the node.
        block: its number; the search knows what is there at once of those that are ``large``
            (:mod:`...ft.nonadditive.segment_memory`).
    """

    places: tuple[int, ...]
    block: int


@dataclass(frozen=True)
class Blocks:
    """Attributes:
    nodes: by number of the node.
    large: the numbers of the blocks whose results are about as large as the largest's.
    """

    nodes: dict[int, Recomputable]
    large: frozenset[int]


NO_BLOCKS = Blocks({}, frozenset())


@dataclass(frozen=True)
class _Cut:
    """A place in the program, behind the operator at ``after``, that one tensor crosses, made by operator ``producer``."""

    after: int
    producer: str
    n_bytes: int


def blocks_of(nodes: Sequence[Followers], costing: OperatorCosting, n_devices: int) -> Blocks:
    """The division of a program's operators, for a number of devices; no nodes where there are no two blocks."""
    graph, program = costing.graph, [op for op in costing.graph.step_operators if op.updates is None]
    path = _path(graph, program, costing)
    kept = {op.name: _kept_bytes(op, costing) if op.name in path else 0 for op in program}
    gathered = {op.name: n_devices * _gathered_bytes(op, costing) if op.name in path else 0 for op in program}
    last = _last_consumers(program)
    far = LONG * len(program)
    lasting = {op.name for i, op in enumerate(program) if any(last.get(t.name, i) - i > far for t in op.outputs)}
    cuts = _cuts(program, path - lasting, last)
    chosen = _chosen(cuts, [kept[op.name] for op in program], [gathered[op.name] for op in program])
    if not chosen:
        return NO_BLOCKS
    bounds = np.array([cut.after for cut in chosen])
    block_of = {op.name: int(np.searchsorted(bounds, i)) for i, op in enumerate(program)}
    cut_through = _with_viewed(graph, lasting.union(cut.producer for cut in chosen))
    sizes = Counter[int]()
    for op in program:
        sizes[block_of[op.name]] += kept[op.name]
    possible: dict[int, Recomputable] = {}
    for number, node in enumerate(nodes):
        by_block = Counter[int]()
        for op in node.operators:
            by_block[block_of[op.name]] += max(kept[op.name], op.name in path)
        (block, _), = by_block.most_common(1)
        places = tuple(
            i
            for i, op in enumerate(node.operators)
            if block_of[op.name] == block and op.name in path and op.name not in cut_through
            and may_be_recomputed(graph, op, rule_of(op), costing.backward.gradients)
        )
        if places:
            possible[number] = Recomputable(places, block)
    found = _worth_it(nodes, possible, costing)
    largest = max(sizes.values())
    return Blocks(found, frozenset(block for block, size in sizes.items() if size >= LARGE * largest))


def _worth_it(
    nodes: Sequence[Followers], possible: Mapping[int, Recomputable], costing: OperatorCosting
) -> dict[int, Recomputable]:
    """The nodes that keep much, and those whose results they take, which would be kept instead of their own."""
    node_of = {op.name: number for number, node in enumerate(nodes) for op in node.operators}
    made_by = {
        number: [op for i, op in enumerate(nodes[number].operators) if i in each.places] for number, each in possible.items()
    }
    kept = {number: sum(_kept_bytes(op, costing) for op in made) for number, made in made_by.items()}
    least = max(1.0, LEAST_SHARE * sum(kept.values()))
    pending = [number for number, n_bytes in kept.items() if n_bytes >= least]
    found = set(pending)
    while pending:
        for op in made_by[pending.pop()]:
            for _, tensor in op.operands:
                producer = costing.graph.producers[tensor.name]
                number = node_of.get(producer.name, -1)
                is_new = number not in found and any(producer is each for each in made_by.get(number, ()))
                if is_new and tensor.mem_bytes >= least:
                    found.add(number)
                    pending.append(number)
    return {number: possible[number] for number in sorted(found)}


def _path(graph: Graph, program: Sequence[Operator], costing: OperatorCosting) -> set[str]:
    """The operators to whose operands a gradient comes back; of what follows from variables alone there is little."""
    gradients = costing.backward.gradients
    return {
        op.name
        for op in program
        if any((op.name, i) in gradients for i, _ in op.operands)
        and not all(tensor.name in graph.made_of_variables for tensor in op.outputs)
    }


def _kept_bytes(op: Operator, costing: OperatorCosting) -> int:
    """Of whole tensors, what the backward pass reads."""
    return sum(tensor.mem_bytes for tensor in op.outputs if tensor.name in costing.kept)


def _gathered_bytes(op: Operator, costing: OperatorCosting) -> int:
    """The parameters that the operator's gradient reads."""
    graph, read = costing.graph, costing.backward.kept_operands
    return sum(
        tensor.mem_bytes for i, tensor in op.operands if tensor.name in graph.made_of_variables and (op.name, i) in read
    )


def _last_consumers(program: Sequence[Operator]) -> dict[str, int]:
    """By tensor, the place of the last operator that takes it."""
    return {tensor.name: i for i, op in enumerate(program) for _, tensor in op.operands}


def _cuts(program: Sequence[Operator], path: set[str], last: Mapping[str, int]) -> list[_Cut]:
    """All places that one tensor crosses, of those that operators of the path make."""
    alive: dict[str, tuple[int, str, int]] = {}
    found = []
    for i, op in enumerate(program):
        if op.name in path:
            for tensor in op.outputs:
                if last.get(tensor.name, i) > i:
                    alive[tensor.name] = last[tensor.name], op.name, tensor.mem_bytes
        alive = {name: each for name, each in alive.items() if each[0] > i}
        if len(alive) == 1 and op.name in path:
            ((_, producer, n_bytes),) = alive.values()
            found.append(_Cut(i, producer, n_bytes))
    return found


def _with_viewed(graph: Graph, names: set[str]) -> set[str]:
    """These operators, and those whose results theirs are views of."""
    found, pending = set(names), list(names)
    while pending:
        op = graph.operators[pending.pop()]
        for tensor in op.outputs:
            viewed = viewed_operand(op, tensor.name)
            if viewed is not None and graph.producers[viewed.name].name not in found:
                found.add(graph.producers[viewed.name].name)
                pending.append(graph.producers[viewed.name].name)
    return found


def _chosen(cuts: Sequence[_Cut], kept: Sequence[int], gathered: Sequence[int]) -> list[_Cut]:
    """The cuts of the finest division for which cut tensors, largest block and most parameters are about least together.

    None where all divisions keep as many results at once as no division does.

    Args:
        kept, gathered: by operator of the program.
    """
    sums = np.cumsum([kept, gathered], axis=1)
    ends = np.concatenate([sums[:, [cut.after for cut in cuts]], sums[:, -1:]], axis=1)
    if ends.shape[1] < 2 or not ends[0, -1]:
        return []
    n_bytes = [cut.n_bytes for cut in cuts]
    smallest = np.diff(ends, prepend=0).max(axis=1)
    divisions = {(), tuple(range(len(cuts)))}
    for limits in product(*(_limits(int(low), int(high)) for low, high in zip(smallest, ends[:, -1], strict=True))):
        divisions.add(_within(n_bytes, ends, limits))
    of_results, of_all = ({taken: _cost(taken, n_bytes, of) for taken in divisions} for of in (ends[:1], ends))
    most_of_results = (1 + SLACK_OF_RESULTS) * min(of_results.values())
    good = [taken for taken in divisions if of_results[taken] <= most_of_results and of_results[taken] < of_results[()]]
    if not good:
        return []
    most = (1 + SLACK) * min(of_all[taken] for taken in good)
    finest = max((taken for taken in good if of_all[taken] <= most), key=lambda taken: (len(taken), -of_all[taken], taken))
    return [cuts[i] for i in finest]


def _cost(taken: tuple[int, ...], n_bytes: Sequence[int], ends: np.ndarray) -> int:
    """The cut tensors, and of the blocks between them the most by each row of ``ends``."""
    return int(np.diff(ends[:, [*taken, -1]], prepend=0).max(axis=1).sum()) + sum(n_bytes[i] for i in taken)


def _limits(low: int, high: int) -> list[int]:
    return np.unique(np.geomspace(max(1, low), max(1, high), LIMITS).astype(np.int64)).tolist()


def _within(n_bytes: Sequence[int], ends: np.ndarray, limits: Sequence[int]) -> tuple[int, ...]:
    """Of cuts, the places of those of the least bytes that leave no block above the limits.

    Blocks end at ``ends``, int64[limits, cuts + 1], by what is before: a limit for each of its rows. Whatever ends last
    takes the cheapest cut within the limits before it: a queue holds the candidates, ascending.
    """
    cost, origin = [0], [-1]  # of the division up to the start, and up to each cut
    rows = ends.T.tolist()
    starts, queue = [[0] * len(limits), *rows[:-1]], deque([0])
    for i, end in enumerate(rows):
        while queue and any(e - s > limit for e, s, limit in zip(end, starts[queue[0]], limits, strict=True)):
            queue.popleft()
        place = queue[0] if queue else i
        cost.append(cost[place] + (n_bytes[i] if i < len(n_bytes) else 0))
        origin.append(place)
        while queue and cost[queue[-1]] >= cost[-1]:
            queue.pop()
        queue.append(i + 1)
    found, place = [], origin[-1]
    while place > 0:
        found.append(place - 1)
        place = origin[place]
    return tuple(found[::-1])
