"""Order the backward pass and the updates, which TensorFlow leaves unordered, so that memory is freed early.

The forward pass needs no order, except for its collectives, see :func:`_hold_collectives`.

TensorFlow's executor runs whatever is ready. The gradient that goes on to the operator before is then often far ahead of the
gradients of the parameters, and all gradients in between stay in memory. An update waits, with its gradient, behind the rest
of the backward pass; or it comes while a product still reads the old value, and TensorFlow copies the parameter. Here
operators run one after the other in the order of their creation, except that sums of gradients and updates run as soon as
they can, and an update of a variable runs after the last operator that reads its old value.

An operator that waits for a collective, and that nothing else in the backward pass waits for, doesn't stop the others: while
a gradient is on its way the backward pass goes on, for :data:`LAG` operators at most, so that few gradients wait at once.
(Over a link, where gradients have a chain of their own and their communication overlaps with compute, it goes on for as long
as it takes.) Operators that only the loss needs run before the backward pass begins, unless they wait for other ranks.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import tensorflow as tf

from ..common.settings import LAG

Neighbours = Callable[[tf.Operation], Iterable[tf.Operation]]
from .pull_back import BACKWARD, VIEWS

REMATERIALIZED = f"{BACKWARD}/rematerialized"
"""The name scope of rematerialized operators, which wait for what their reader waits for.

They have no other place in the order: TensorFlow's graph optimizer has made cycles of graphs in which they had one.
"""
FUSED = 4
"""The largest number of consecutive operators that TensorFlow may fuse into one."""
CALLBACK = "PyFunc"
"""The type of a callback's operator. Its first operand is its turn in a chain."""
COLLECTIVES = frozenset("PyFunc HorovodAllreduce HorovodAllgather HorovodAlltoall".split())
SHAPES = frozenset("Shape ShapeN Size Rank".split())
"""The types of operators that read no values. They run with the forward pass.

Made to wait, they would keep all their operands in memory until then.
"""
_UNORDERED = COLLECTIVES | VIEWS | {"Const", "Shape", "ShapeN", "NoOp", "ReadVariableOp"}
"""The types of operators that aren't put in order.

They take no time, except for collectives, which have an order of their own or none.
"""


def put_in_order(operators: Sequence[tf.Operation], n_forward: int, lag: float = LAG) -> None:
    """Have the operators of a graph from index ``n_forward`` on run in order, by control dependencies.

    Args:
        operators: all operators of the graph, in the order in which they were created.
        lag: for how many operators at most the backward pass goes on while a gradient is on its way.
    """
    ahead, constant = needed_ahead(operators, n_forward), constant_operators(operators)
    if not math.isinf(lag) and not ahead:
        _hold_collectives(operators[:n_forward], constant)
    row: list[tf.Operation] = []
    behind: list[tuple[int, tf.Operation]] = []
    arriving: set[str] = set()
    for op in schedule(operators, n_forward):
        if op.name in ahead or op.name in constant or is_idle(op):
            continue
        if op.type in COLLECTIVES or (
            (not _is_backward(op) or op.type in VIEWS) and any(source.name in arriving for source in _sources(op))
        ):
            arriving.add(op.name)
            if not op.outputs:
                behind.append((len(row), op))
        elif op.inputs and op.type not in _UNORDERED and not op.name.startswith(REMATERIALIZED):
            waits_for = row[-1:] or _last_of_loss(operators, n_forward)
            while behind and behind[0][0] + lag <= len(row):
                waits_for.append(behind.pop(0)[1])
            for earlier in waits_for:
                op._add_control_input(earlier)
            row.append(op)


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
    for op in operators:
        if op.type in COLLECTIVES:
            near = {each.name for each in _within(_within([op], _consumers), _producers)}
            earlier = next((each for each in reversed(row) if each.name not in near), None)
            if earlier is not None:
                op._add_control_input(earlier)
        elif op.inputs and op.type not in _UNORDERED and op.name not in constant:
            row.append(op)


def _within(operators: Iterable[tf.Operation], neighbours: Neighbours) -> list[tf.Operation]:
    """Return the operators that are at most :data:`FUSED` operators away in one direction.

    Views don't count, and collectives end the search.
    """
    found: dict[str, tuple[int, tf.Operation]] = {}
    pending = [(op, 0) for op in operators]
    while pending:
        op, distance = pending.pop()
        for each in neighbours(op):
            further = distance + (each.type not in VIEWS)
            is_nearer = each.name not in found or further < found[each.name][0]
            if further <= FUSED and is_nearer and each.type not in COLLECTIVES:
                found[each.name] = further, each
                pending.append((each, further))
    return [op for _, op in found.values()]


def _consumers(op: tf.Operation) -> Iterator[tf.Operation]:
    """Return the operators that read an operator's results."""
    return (consumer for output in op.outputs for consumer in output.consumers())


def _producers(op: tf.Operation) -> Iterator[tf.Operation]:
    """Return the operators whose results an operator reads."""
    return (tensor.op for tensor in op.inputs)


def schedule(operators: Sequence[tf.Operation], n_forward: int) -> Iterator[tf.Operation]:
    """Yield the operators from index ``n_forward`` on, in an order that frees memory early.

    Each comes after what it needs, and after earlier ones on the same variable. Among those that are ready, updates and sums
    of gradients come first, then the rest of the backward pass in the order of creation.
    """
    ordered = operators[n_forward:]
    place = {op.name: i for i, op in enumerate(ordered)}
    needs = [{place[source.name] for source in _sources(op) if source.name in place} for op in ordered]
    # Among the readers of a variable's old value may be this operator itself, or operators that depend on it: only those
    # created earlier count.
    after: list[set[int]] = [set() for _ in ordered]
    latest: dict[str, int] = {}
    for i, op in enumerate(ordered):
        for handle in _handles(op):
            if handle.name in latest:
                after[i].add(latest[handle.name])
            elif op.type != "ReadVariableOp":
                after[i].update(place[reader.name] for reader in _readers(handle) if place.get(reader.name, i) < i)
            latest[handle.name] = i
    followers: list[list[int]] = [[] for _ in ordered]
    for i, needed in enumerate(needs):
        needed |= after[i]
        for each in needed:
            followers[each].append(i)
    missing = [len(needed) for needed in needs]
    is_late = [_is_backward(op) and op.type != "AddN" for op in ordered]
    ready = [(is_late[i], i) for i, count in enumerate(missing) if not count]
    heapq.heapify(ready)
    while ready:
        _, i = heapq.heappop(ready)
        yield ordered[i]
        for each in followers[i]:
            missing[each] -= 1
            if not missing[each]:
                heapq.heappush(ready, (is_late[each], each))


def _last_of_loss(operators: Sequence[tf.Operation], n_forward: int) -> list[tf.Operation]:
    """Return the operators of the forward pass that the backward pass doesn't need and that wait for no other rank.

    Each follows, without a collective, from operators that the backward pass needs.
    """
    needed = {source.name for op in operators[n_forward:] for source in _sources_of_values(op)}
    for op in reversed(operators[:n_forward]):
        if op.name in needed:
            needed.update(source.name for source in _sources_of_values(op))
    alone: dict[str, tf.Operation] = {}
    for op in operators[:n_forward]:
        follows = all(source.name in needed or source.name in alone for source in _sources(op))
        if follows and op.name not in needed and op.type not in COLLECTIVES:
            alone[op.name] = op
    return [op for op in alone.values() if op.inputs and op.type not in _UNORDERED]


def constant_operators(operators: Sequence[tf.Operation]) -> set[str]:
    """Return the names of the operators that depend on no input.

    TensorFlow computes them once and for all, and drops their control dependencies.
    """
    found: set[str] = set()
    for op in operators:
        if op.type in ("Const", "Shape", "ShapeN") or (op.inputs and all(tensor.op.name in found for tensor in op.inputs)):
            found.add(op.name)
    return found


def needed_ahead(operators: Sequence[tf.Operation], n_forward: int) -> set[str]:
    """Return the names of operators that were created with the backward pass and that the forward pass needs.

    For example, the gradient of a loop gives the loop lists to fill.
    """
    late = {op.name for op in operators[n_forward:]}
    pending = [source for op in operators[:n_forward] for source in _sources(op) if source.name in late]
    found: set[str] = set()
    while pending:
        op = pending.pop()
        if op.name not in found:
            found.add(op.name)
            pending += [source for source in _sources(op) if source.name in late]
    return found


def is_idle(op: tf.Operation) -> bool:
    """Return whether an operator makes zeros that nothing reads, as gradients of what a resharding only passes through.

    Without a place in the order TensorFlow drops such operators. With one they were computed, and to know their shape a step
    kept the tensors in memory that reshardings had cut shards out of: a WideResNet took up to a tenth more memory at its
    peak than predicted.
    """
    return op.type == "ZerosLike" and not any(output.consumers() for output in op.outputs)


def _is_backward(op: tf.Operation) -> bool:
    """Return whether an operator is in the gradients' name scope."""
    return op.name.startswith(BACKWARD)


def _sources(op: tf.Operation) -> Iterator[tf.Operation]:
    """Return the operators that an operator waits for, by data or by control dependency."""
    yield from (tensor.op for tensor in op.inputs)
    yield from op.control_inputs


def _sources_of_values(op: tf.Operation) -> Iterator[tf.Operation]:
    """Return the operators that an operator waits for, without the callback before it in its chain."""
    return (source for i, source in enumerate(_sources(op)) if i or op.type != CALLBACK)


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
