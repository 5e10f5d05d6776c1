"""Have a rank with one core run a step in the program's order, by control dependencies.

TensorFlow's executor runs whatever is ready. The gradient that goes on to the operator before is then often far ahead of the
gradients of the parameters, and all gradients in between stay in memory. An update waits, with its gradient, behind the rest
of the backward pass; or it comes while a product still reads the old value, and TensorFlow copies the parameter. The
backward pass was emitted in the program's order (:mod:`.emission`). Here its operators are made to run one after the other,
and the operators of an update as soon as they can: after what they read, and after the last operator that reads the
variable's old value. The forward pass needs no order, except for its collectives, see :func:`_hold_collectives`.

An operator that waits for a collective, and that nothing else in the backward pass waits for, doesn't stop the others: while
a gradient is on its way the backward pass goes on, for :data:`LAG` operators at most, so that few gradients wait at once.
When the next collective of the chain begins, the gradient is there. So that collective waits for the update, which else
might come several collectives later and keep its gradient, memory of Python's, until then. (Over a link, where gradients
have a chain of their own and their communication overlaps with compute, the backward pass goes on for as long as it takes.)
Operators that only the loss needs run before the backward pass begins, unless they wait for other ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache

import tensorflow as tf

from ..common.reach import reached
from ..common.settings import LAG
from .pull_back import BACKWARD, VIEWS, Created, sources_of

FUSED = 4
"""The largest number of consecutive operators that TensorFlow may fuse into one."""
CALLBACK = "PyFunc"
"""The type of a callback's operator. Its first operand is its turn in a chain."""
COLLECTIVE_TYPES = frozenset(
    "PyFunc CollectiveReduceV2 CollectiveReduceScatterV2 CollectiveGatherV2 CollectiveAllToAllV2 "
    "HorovodAllreduce HorovodAllgather HorovodAlltoall".split()
)
_UNORDERED = COLLECTIVE_TYPES | VIEWS | {"Const", "Shape", "ShapeN", "NoOp", "ReadVariableOp"}
"""The types of operators that aren't put in order.

They take no time, except for collectives, which have an order of their own or none.
"""


@dataclass
class BackwardRecord:
    """The operators that were created in backward passes, by their numbers in the graph.

    Attributes:
        passes: those of each backward pass.
        rematerialized: those that were rematerialized, among them. They wait for what their reader waits for, and have no
            other place in the order: TensorFlow's graph optimizer has made cycles of graphs in which they had one.
        gradients: those of each operator's gradient, with the gradients that came of it; what these don't need is dead.
        forward_needs: operators that the forward pass needs, created with gradients: that of a loop gives the loop lists to
            fill.
    """

    passes: list[Created] = field(default_factory=list)
    rematerialized: list[Created] = field(default_factory=list)
    gradients: list[tuple[Created, list[tf.Tensor]]] = field(default_factory=list)
    forward_needs: list[tf.Operation] = field(default_factory=list)
    scope: str = BACKWARD

    def add(self, other: BackwardRecord) -> BackwardRecord:
        """Return the record of this one's passes and another one's."""
        return BackwardRecord(
            [*self.passes, *other.passes],
            [*self.rematerialized, *other.rematerialized],
            [*self.gradients, *other.gradients],
            [*self.forward_needs, *other.forward_needs],
        )

    def dead(self, operators: Sequence[tf.Operation]) -> set[str]:
        """Return the names of operators that were created for gradients that nobody asked for.

        Without a place in the order TensorFlow drops them.
        """
        dead: set[str] = set()
        for created, gradients in self.gradients:
            operations = {op.name: op for op in operators[created.start : created.end]}
            ends = [*(tensor.op for tensor in gradients), *(op for op in operations.values() if op.type in COLLECTIVE_TYPES)]
            dead.update(operations.keys() - _ancestors(ends, operations))
        return dead


def put_in_order(
    operators: Sequence[tf.Operation],
    n_forward: int,
    record: BackwardRecord,
    lag: float = LAG,
    first: int = 0,
    urgent: Collection[tf.Operation] = (),
) -> None:
    """Have the operators of a graph from index ``n_forward`` on run in order, by control dependencies.

    Args:
        operators: all operators of the graph, in the order in which they were created.
        record: which of them belong to backward passes.
        lag: for how many operators at most the backward pass goes on while a gradient is on its way.
        first: the index of the operator with which the forward pass begins.
        urgent: operators whose results another stage waits for; what they need of the backward pass runs ahead of the rest.
    """
    constant = constant_operators(operators[first:])
    excluded = {*constant, *record.dead(operators), *(op.name for op in record.forward_needs)}
    backward, rematerialized = (_names(operators, spans) for spans in (record.passes, record.rematerialized))
    if not math.isinf(lag) and not record.forward_needs:
        _hold_collectives(operators[first:n_forward], constant)
    row: list[tf.Operation] = []
    pending: list[tuple[int, tf.Operation]] = []
    transfers: set[str] = set()
    for op in in_order(operators, n_forward, backward, _ancestors(urgent, backward)):
        if op.name in excluded:
            continue
        if op.type in COLLECTIVE_TYPES or (
            (op.name not in backward or op.type in VIEWS) and any(source.name in transfers for source in sources_of(op))
        ):
            transfers.add(op.name)
            if not op.outputs:
                pending.append((len(row), op))
            elif op.type == CALLBACK and not math.isinf(lag):
                for _, earlier in pending:
                    op._add_control_input(earlier)
                pending.clear()
        elif op.inputs and op.type not in _UNORDERED and op.name not in rematerialized:
            waits_for = row[-1:] or _last_of_loss(operators[first:], n_forward - first)
            while pending and pending[0][0] + lag <= len(row):
                waits_for.append(pending.pop(0)[1])
            for earlier in waits_for:
                op._add_control_input(earlier)
            row.append(op)


def _ancestors(ends: Iterable[tf.Operation], names: Container[str]) -> set[str]:
    """Return the names of the operators that some wait for, with their own, as far as they are among others."""
    starts = (op for op in ends if op.name in names)
    return {op.name for op in reached(starts, lambda op: (source for source in sources_of(op) if source.name in names))}


def _names(operators: Sequence[tf.Operation], created: Iterable[Created]) -> set[str]:
    """Return the names of operators, given by their numbers."""
    return {op.name for span in created for op in operators[span.start : span.end]}


def _hold_collectives(operators: Sequence[tf.Operation], constant: set[str]) -> None:
    """Have collectives of the forward pass wait for the operators that were created before them.

    Collectives that gather parameters need nothing that is computed. A rank that computes one operator at a time could come
    to all of them before anything else, and copies that are regathered in the backward pass would then all be in memory at
    once.

    A collective doesn't wait for an operator that TensorFlow may fuse with one of the collective's consumers. For example,
    TensorFlow makes one operator of a convolution and the addition of a bias. If the bias's collective waited for the
    convolution, the fused operator would wait for itself.
    """
    row: list[tf.Operation] = []

    @cache  # the searches of near collectives overlap, and each question to TensorFlow makes objects
    def consumers(op: tf.Operation) -> list[tuple[tf.Operation, int]]:
        return _steps(consumer for output in op.outputs for consumer in output.consumers())

    @cache
    def producers(op: tf.Operation) -> list[tuple[tf.Operation, int]]:
        return _steps(tensor.op for tensor in op.inputs)

    for op in operators:
        if op.type in COLLECTIVE_TYPES:
            near = _within(_within([op], consumers), producers)
            earlier = next((candidate for candidate in reversed(row) if candidate not in near), None)
            if earlier is not None:
                op._add_control_input(earlier)
        elif op.inputs and op.type not in _UNORDERED and op.name not in constant:
            row.append(op)


def _steps(neighbours: Iterable[tf.Operation]) -> list[tuple[tf.Operation, int]]:
    """Return the neighbours of an operator that aren't collectives, with whether each counts (1) or is a view (0)."""
    return [(op, int(op.type not in VIEWS)) for op in neighbours if op.type not in COLLECTIVE_TYPES]


def _within(
    operators: Iterable[tf.Operation], steps: Callable[[tf.Operation], list[tuple[tf.Operation, int]]]
) -> dict[tf.Operation, int]:
    """Return the operators that are at most :data:`FUSED` operators away in one direction, with their distances.

    Views don't count, and collectives end the search.
    """
    nearest: dict[tf.Operation, int] = {}
    pending = [(op, 0) for op in operators]
    while pending:
        operator, distance = pending.pop()
        for op, length in steps(operator):
            further = distance + length
            if further < nearest.get(op, FUSED + 1):
                nearest[op] = further
                pending.append((op, further))
    return nearest


def in_order(
    operators: Sequence[tf.Operation], n_forward: int, backward: set[str], urgent: Container[str] = ()
) -> list[tf.Operation]:
    """Return the operators from index ``n_forward`` on, in the order in which they are to run.

    The backward pass comes as it was created, what is urgent first. Any other operator comes as soon as it can: behind the
    last operator of the backward pass that it waits for. It waits for what it reads, for earlier operators on the same
    variable, and for those of the backward pass that read the variable's old value.

    Args:
        backward: the names of the operators of the backward pass.
        urgent: the names of those of them that come first; with each all that it waits for.
    """
    predecessors: dict[str, int] = {}
    latest: dict[str, int] = {}
    created = {op.name: number for number, op in enumerate(operators) if number >= n_forward}
    places = {name: place for place, name in enumerate(sorted(created, key=lambda name: name not in urgent))}
    for name, number in created.items():
        op = operators[number]
        if name in backward:
            predecessors[name] = places[name]
            continue
        waits = [predecessors.get(source.name, -1) for source in sources_of(op)]
        for handle in _handles(op):
            waits.append(latest.get(handle.name, -1))
            if op.type != "ReadVariableOp" and handle.name not in latest:
                waits += [places.get(reader.name, -1) for reader in _readers(handle) if reader.name in backward]
        predecessors[name] = max(waits, default=-1)
        latest.update((handle.name, predecessors[name]) for handle in _handles(op))
    ops = [operators[number] for number in created.values()]
    return sorted(ops, key=lambda op: (predecessors[op.name], op.name not in backward))


def _last_of_loss(operators: Sequence[tf.Operation], n_forward: int) -> list[tf.Operation]:
    """Return the operators of the forward pass that the backward pass doesn't need and that wait for no other rank.

    Each follows, without a collective, from operators that the backward pass needs.
    """
    names = {source.name for op in operators[n_forward:] for source in _sources_of_values(op)}
    for op in reversed(operators[:n_forward]):
        if op.name in names:
            names.update(source.name for source in _sources_of_values(op))
    alone: dict[str, tf.Operation] = {}
    for op in operators[:n_forward]:
        is_follower = all(source.name in names or source.name in alone for source in sources_of(op))
        if is_follower and op.name not in names and op.type not in COLLECTIVE_TYPES:
            alone[op.name] = op
    return [op for op in alone.values() if op.inputs and op.type not in _UNORDERED]


def constant_operators(operators: Sequence[tf.Operation]) -> set[str]:
    """Return the names of the operators that depend on no input.

    TensorFlow computes them once and for all, and drops their control dependencies.
    """
    names: set[str] = set()
    for op in operators:
        if op.type in ("Const", "Shape", "ShapeN") or (op.inputs and all(tensor.op.name in names for tensor in op.inputs)):
            names.add(op.name)
    return names


def _sources_of_values(op: tf.Operation) -> Iterator[tf.Operation]:
    """Return the operators that an operator waits for, without the callback before it in its chain."""
    return (source for i, source in enumerate(sources_of(op)) if i or op.type != CALLBACK)


def _handles(op: tf.Operation) -> list[tf.Tensor]:
    """Return the handles of variables among an operator's operands."""
    return [tensor for tensor in op.inputs if tensor.dtype == tf.resource]


def _readers(handle: tf.Tensor) -> Iterator[tf.Operation]:
    """Return the operators that use the value of a variable as read from its handle, or a view of the value."""
    pending = [op.outputs[0] for op in handle.consumers() if op.type == "ReadVariableOp"]
    while pending:
        for op in pending.pop().consumers():
            yield op
            if op.type in VIEWS:
                pending += op.outputs
