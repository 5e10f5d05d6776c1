"""Divide a program into rematerialization segments, and choose the operators that a search may rematerialize in each.

All that is rematerialized between two saved tensors is in memory at once when the backward pass comes to it. If everything
were rematerialized as one, all of it would be in memory at once, and nothing won. So the program is cut into *segments*
(``segments`` in the code), at tensors through which every dependency passes that gradients come back along: the residual
stream of a Transformer between its layers, the activations of a chain. The tensors at the cuts are saved, and so are those
still used many operators later (an encoder's result, which all layers of a decoder use); within segments a search chooses.
The rematerialized tensors of one segment are in memory at a time, and the parameters that its operators read: those that are
gathered are in memory from the first operator's rematerialization until the gradients of all have read them.

Sizes decide where to cut: the bytes of the cut tensors, of the largest segment and of the most parameters of a segment
should be small together (Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016, for chains of equal layers cut at
every square root of their number). Results count by the bytes of a device's shards, parameters by their global bytes. Among
divisions that are about as good the finest is taken: the smaller a segment, the less memory gradients and other transient
tensors take at once, and the faster and closer to their bounds searches are.

Complexity: O(operators + cuts^2 x LIMITS^2), the square in arrays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from ...common.reach import reached
from ...costs.operator_costs import OperatorCosting
from ...ir.body import viewed_operand
from ...ir.graph import Graph, Operator
from ...rules.registry import rule_of
from ...sharding.strategy import may_be_rematerialized_at_all
from .fusion_groups import FusionGroup

LIMITS = 24
"""The number of sizes of the largest segment that are tried, and of sizes of a segment's parameters."""
SLACK, SLACK_OF_RESULTS = 1 / 6, 0.6
"""The part by which a division may cost more than the cheapest, for being finer: in all, and counting results alone."""
LEAST_SHARE, LEAST_OF_SEGMENT = 0.0025, 0.02
"""The shares of all saved bytes, and of a typical segment's, of which a node must save one itself for its rematerialization
to be a choice. The second one, which doesn't depend on how many layers there are, counts where the first leaves out much.
"""
ENOUGH = 0.9
"""The share of the bytes that could be rematerialized from which nodes that save less aren't offered: they take time."""
LONG = 0.125
"""The share of the program's operators: a tensor still used farther than this from its producer is always saved."""
LARGE = 0.5
"""The share of the largest segment's bytes from which a segment may come to be the largest under some strategy."""


@dataclass(frozen=True)
class Rematerializable:
    """The operators of a node that may be rematerialized.

    Attributes:
        indices: the operators' indices in the node.
        segment: the number of their segment. The search charges the transient bytes of segments that are ``large``
            (:mod:`...ft.nonadditive.segment_memory`).
    """

    indices: tuple[int, ...]
    segment: int


@dataclass(frozen=True)
class Segments:
    """The rematerialization segments of a program.

    Attributes:
        nodes: for each node with such operators, by its number, those that may be rematerialized.
        large: the numbers of the segments whose results have at least LARGE of the largest segment's bytes.
    """

    nodes: dict[int, Rematerializable]
    large: frozenset[int]


NO_SEGMENTS = Segments({}, frozenset())


@dataclass(frozen=True)
class _Cut:
    """A possible cut behind the operator at index ``after``, where only the tensor made by ``producer`` is still used."""

    after: int
    producer: str
    n_bytes: int


def segments_of(nodes: Sequence[FusionGroup], costing: OperatorCosting, n_devices: int) -> Segments:
    """Return the rematerialization segments of a program, for a number of devices; without nodes if no cut pays."""
    graph, program = costing.graph, [op for op in costing.graph.step_operators if op.updates is None]
    path = _path(graph, program, costing)
    saved_bytes = {op.name: _saved_bytes(op, costing) if op.name in path else 0 for op in program}
    gathered = {op.name: n_devices * _gathered_bytes(op, costing) if op.name in path else 0 for op in program}
    last = {tensor.name: i for i, op in enumerate(program) for _, tensor in op.operands}  # that uses each
    long_span = LONG * len(program)
    lasting_names = {op.name for i, op in enumerate(program) if any(last.get(t.name, i) - i > long_span for t in op.outputs)}
    cuts = _cuts(program, path - lasting_names, last)
    boundaries = _choose_cuts(cuts, [saved_bytes[op.name] for op in program], [gathered[op.name] for op in program])
    if not boundaries:
        return NO_SEGMENTS
    bounds = np.array([cut.after for cut in boundaries])
    segment_of = {op.name: int(np.searchsorted(bounds, i)) for i, op in enumerate(program)}
    cut_through = _add_viewed(graph, lasting_names.union(cut.producer for cut in boundaries))
    sizes = Counter[int]()
    for op in program:
        sizes[segment_of[op.name]] += saved_bytes[op.name]
    options: dict[int, Rematerializable] = {}
    for number, node in enumerate(nodes):
        segment_bytes = Counter[int]()
        for op in node.operators:
            segment_bytes[segment_of[op.name]] += max(saved_bytes[op.name], op.name in path)
        (segment, _), = segment_bytes.most_common(1)
        indices = tuple(
            i
            for i, op in enumerate(node.operators)
            if segment_of[op.name] == segment and op.name in path and op.name not in cut_through
            and may_be_rematerialized_at_all(graph, op, rule_of(op), costing.backward.gradients)
        )
        if indices:
            options[number] = Rematerializable(indices, segment)
    worthwhile = _worth_it(nodes, options, costing, sizes.values())
    largest = max(sizes.values())
    return Segments(worthwhile, frozenset(segment for segment, size in sizes.items() if size >= LARGE * largest))


def _worth_it(
    nodes: Sequence[FusionGroup], options: Mapping[int, Rematerializable], costing: OperatorCosting, sizes: Collection[int]
) -> dict[int, Rematerializable]:
    """Return the nodes whose rematerialization can pay: those that save much, and the producers of their operands.

    The operands would have to be saved instead if their producers couldn't be rematerialized too.
    """
    node_of = {op.name: number for number, node in enumerate(nodes) for op in node.operators}
    operators_of = {
        number: [op for i, op in enumerate(nodes[number].operators) if i in option.indices]
        for number, option in options.items()
    }
    saved_bytes = {number: sum(_saved_bytes(op, costing) for op in operators) for number, operators in operators_of.items()}
    total = sum(saved_bytes.values())
    threshold = LEAST_SHARE * total
    if sum(n_bytes for n_bytes in saved_bytes.values() if n_bytes >= threshold) < ENOUGH * total:
        threshold = min(threshold, LEAST_OF_SEGMENT * _typical(sizes))
    threshold = max(1.0, threshold)
    pending = [number for number, n_bytes in saved_bytes.items() if n_bytes >= threshold]
    numbers = set(pending)
    while pending:
        for op in operators_of[pending.pop()]:
            for _, tensor in op.operands:
                producer = costing.graph.producers[tensor.name]
                number = node_of.get(producer.name, -1)
                is_new = number not in numbers and any(producer is op for op in operators_of.get(number, ()))
                if is_new and tensor.mem_bytes >= threshold:
                    numbers.add(number)
                    pending.append(number)
    return {number: options[number] for number in sorted(numbers)}


def _typical(sizes: Collection[int]) -> int:
    """Return the size of a segment such that half of all bytes are in segments that aren't larger."""
    ascending = np.sort(list(sizes))
    return int(ascending[np.searchsorted(2 * np.cumsum(ascending), ascending.sum())])


def _path(graph: Graph, program: Sequence[Operator], costing: OperatorCosting) -> set[str]:
    """Return the operators that gradients pass through, without those computed from variables alone, which are few."""
    gradients = costing.backward.gradients
    return {
        op.name
        for op in program
        if any((op.name, i) in gradients for i, _ in op.operands)
        and not all(tensor.name in graph.made_of_variables for tensor in op.outputs)
    }


def _saved_bytes(op: Operator, costing: OperatorCosting) -> int:
    """Return the bytes of the operator's global results that the backward pass reads."""
    return sum(tensor.mem_bytes for tensor in op.outputs if tensor.name in costing.saved)


def _gathered_bytes(op: Operator, costing: OperatorCosting) -> int:
    """Return the global bytes of the parameters that the operator's gradient reads."""
    graph, read = costing.graph, costing.backward.residual_operands
    return sum(
        tensor.mem_bytes for i, tensor in op.operands if tensor.name in graph.made_of_variables and (op.name, i) in read
    )


def _cuts(program: Sequence[Operator], path: set[str], last: Mapping[str, int]) -> list[_Cut]:
    """Return all possible cuts: where exactly one result of the path's operators is still used."""
    alive: dict[str, tuple[int, str, int]] = {}
    cuts = []
    for i, op in enumerate(program):
        if op.name in path:
            for tensor in op.outputs:
                if last.get(tensor.name, i) > i:
                    alive[tensor.name] = last[tensor.name], op.name, tensor.mem_bytes
        alive = {name: entry for name, entry in alive.items() if entry[0] > i}
        if len(alive) == 1 and op.name in path:
            ((_, producer, n_bytes),) = alive.values()
            cuts.append(_Cut(i, producer, n_bytes))
    return cuts


def _add_viewed(graph: Graph, names: set[str]) -> set[str]:
    """Return the named operators, and those whose results theirs are views of."""

    def viewed(name: str) -> list[str]:
        op = graph.operators[name]
        operands = (viewed_operand(op, tensor.name) for tensor in op.outputs)
        return [graph.producers[tensor.name].name for tensor in operands if tensor is not None]

    return set(reached(names, viewed))


def _choose_cuts(cuts: Sequence[_Cut], saved_bytes: Sequence[int], gathered: Sequence[int]) -> list[_Cut]:
    """Return the cuts of the finest division whose cost (see :func:`_cost`) is about the least.

    No cuts where every division holds as many bytes of results at once as no division does.
    """
    sums = np.cumsum([saved_bytes, gathered], axis=1)
    ends = np.concatenate([sums[:, [cut.after for cut in cuts]], sums[:, -1:]], axis=1)
    if ends.shape[1] < 2 or not ends[0, -1]:
        return []
    n_bytes = [cut.n_bytes for cut in cuts]
    smallest = np.diff(ends, prepend=0).max(axis=1)
    divisions = {(), tuple(range(len(cuts)))}
    limits = product(*(_limits(int(low), int(high)) for low, high in zip(smallest, ends[:, -1], strict=True)))
    divisions |= _within(n_bytes, ends, np.array(list(limits), np.int64))
    result_cost, costs = ({picks: _cost(picks, n_bytes, rows) for picks in divisions} for rows in (ends[:1], ends))
    most_of_results = (1 + SLACK_OF_RESULTS) * min(result_cost.values())
    pool = [picks for picks in divisions if result_cost[picks] <= most_of_results and result_cost[picks] < result_cost[()]]
    if not pool:
        return []
    limit = (1 + SLACK) * min(costs[picks] for picks in pool)
    finest = max((picks for picks in pool if costs[picks] <= limit), key=lambda picks: (len(picks), -costs[picks], picks))
    return [cuts[i] for i in finest]


def _cost(picks: tuple[int, ...], n_bytes: Sequence[int], ends: np.ndarray) -> int:
    """Return the bytes of the cut tensors plus, for each row of ``ends``, those of the largest segment between cuts."""
    return int(np.diff(ends[:, [*picks, -1]], prepend=0).max(axis=1).sum()) + sum(n_bytes[i] for i in picks)


def _limits(low: int, high: int) -> list[int]:
    return np.unique(np.geomspace(max(1, low), max(1, high), LIMITS).astype(np.int64)).tolist()


def _within(n_bytes: Sequence[int], ends: np.ndarray, limits: np.ndarray) -> set[tuple[int, ...]]:
    """Return the indices of the cuts with the fewest bytes in all that make no segment exceed the limits, for each limits.

    A dynamic program over the cuts, for all limits together: each cut is preceded by the cheapest one from which the segment
    is within the limits, of equal ones by the last; where none is, by the one next to it.

    Args:
        ends: int64[rows, cuts + 1], the bytes before each cut and before the program's end, for each kind of bytes.
        limits: int64[L, rows], the most bytes of a segment.
    """
    starts = np.concatenate([np.zeros((len(ends), 1), np.int64), ends[:, :-1]], axis=1)
    first = np.zeros((ends.shape[1], len(limits)), np.int64)  # the first place from which a segment up to each end may go
    for start, end, limit in zip(starts, ends, limits.T, strict=True):
        np.maximum(first, np.searchsorted(start, end[:, None] - limit), out=first)
    first = np.unique(np.minimum(first, np.arange(len(first))[:, None]), axis=1)
    cost, origin = np.zeros((2, len(first) + 1, first.shape[1]), np.int64)  # up to each place, which is behind a cut
    for i, first_places in enumerate(first):
        low = int(first_places.min())
        candidates = np.where(np.arange(low, i + 1)[:, None] >= first_places, cost[low : i + 1], np.iinfo(np.int64).max)
        origin[i + 1] = i - candidates[::-1].argmin(axis=0)
        cost[i + 1] = np.take_along_axis(cost, origin[i + 1 : i + 2], axis=0)[0] + (n_bytes[i] if i < len(n_bytes) else 0)
    divisions = set()
    for origins in origin.T.tolist():
        picks, place = [], origins[-1]
        while place > 0:
            picks.append(place - 1)
            place = origins[place]
        divisions.add(tuple(picks[::-1]))
    return divisions
