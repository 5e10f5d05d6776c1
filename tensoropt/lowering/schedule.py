"""The order of the backward pass and of updates, which TensorFlow leaves open: the one that frees memory first.

The forward pass needs none but for its collectives, see :func:`_hold_collectives`.

TensorFlow's executor runs whatever is ready. The gradient that goes on to the operator before is then often far ahead of
those of the parameters, and all gradients in between stay in memory; an update waits, with its gradient, behind the rest of
the backward pass; or it comes while a product still reads the old value, and TensorFlow copies the parameter. Here operators
run one after the other as they were made, but sums of gradients and updates as soon as they can be, and an update of a
variable after the last operator that reads its old value.

What waits for a collective, and nothing else in the backward pass waits for, doesn't stop the others: while a gradient is
on its way the backward pass goes on, for :data:`LAG` operators at most, so that few gradients wait at once. (Over a link,
where gradients have a chain of their own and compute goes on beside them, for as long as it takes.) What only the loss
needs is done before the backward pass begins, as far as it needn't wait for other ranks.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import tensorflow as tf

from ..common.settings import LAG

Neighbours = Callable[[tf.Operation], Iterable[tf.Operation]]
BACKWARD = "gradients"
"""The scope in which gradients are emitted."""
AGAIN = f"{BACKWARD}/again"
"""The scope of what is computed again there: it waits for what its reader waits for, and has no other place in the order.

TensorFlow's graph optimizer has made cycles of graphs in which it had one.
"""
FUSED = 4
"""So many operators one after the other may become one."""
CALLBACK = "PyFunc"
"""The first operand of a callback is its turn."""
COLLECTIVES = frozenset("PyFunc HorovodAllreduce HorovodAllgather HorovodAlltoall".split())
SHAPES = frozenset("Shape ShapeN Size Rank".split())
"""These read no values and run with the forward pass: made to wait, they would keep all their operands until then."""
VIEWS = frozenset("Identity IdentityN Reshape ExpandDims Squeeze".split())
_UNORDERED = COLLECTIVES | VIEWS | {"Const", "Shape", "ShapeN", "NoOp", "ReadVariableOp"}
"""They take no time or, the collectives, have an order of their own, or none."""


def put_in_order(operators: Sequence[tf.Operation], n_forward: int, lag: float = LAG) -> None:
    """Have the operators of a graph from the ``n_forward``-th on run in order, by control dependencies.

    Args:
        operators: all of the graph, as they were made.
        lag: for so many operators at most the backward pass goes on while a gradient is on its way.
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
        elif op.inputs and op.type not in _UNORDERED and not op.name.startswith(AGAIN):
            waits_for = row[-1:] or _last_of_loss(operators, n_forward)
            while behind and behind[0][0] + lag <= len(row):
                waits_for.append(behind.pop(0)[1])
            for earlier in waits_for:
                op._add_control_input(earlier)
            row.append(op)


def _hold_collectives(operators: Sequence[tf.Operation], constant: set[str]) -> None:
    """Have collectives of the forward pass wait for what was made before them.

    Those that gather parameters need nothing that is computed. A rank that computes one operator at a time could come to all
    of them before anything else, and copies that are made again in the backward pass would be there at once meanwhile.

    What may become one operator with something that follows from them isn't waited for: of a convolution and the addition of
    a bias TensorFlow makes one, and a bias that waited for the convolution would then wait for its own consumer.
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
    """What is up to :data:`FUSED` operators away in one direction, views not counted; collectives end the search."""
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
    return (consumer for output in op.outputs for consumer in output.consumers())


def _producers(op: tf.Operation) -> Iterator[tf.Operation]:
    return (tensor.op for tensor in op.inputs)


def schedule(operators: Sequence[tf.Operation], n_forward: int) -> Iterator[tf.Operation]:
    """Operators from the ``n_forward``-th on, each after what it needs and after earlier ones on the same variable."""
    ordered = operators[n_forward:]
    place = {op.name: i for i, op in enumerate(ordered)}
    needs = [{place[source.name] for source in _sources(op) if source.name in place} for op in ordered]
    # Of readers of what a variable was some may be this operator, or follow from it: only earlier ones count.
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
    """Operators of the forward pass that follow, without a collective, from what the backward pass needs."""
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
    """What depends on no input: TensorFlow computes it once and for all, and forgets what it was to run after or before."""
    found: set[str] = set()
    for op in operators:
        if op.type in ("Const", "Shape", "ShapeN") or (op.inputs and all(tensor.op.name in found for tensor in op.inputs)):
            found.add(op.name)
    return found


def needed_ahead(operators: Sequence[tf.Operation], n_forward: int) -> set[str]:
    """What was made late and is needed by the forward pass: the gradient of a loop gives the loop lists to fill."""
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
    """Zeros that nobody takes, as gradients of what a resharding only passes through.

    Without a place in the order TensorFlow drops them. With one they were filled, and to know their shape a step kept the
    tensors that reshardings had cut pieces out of: a WideResNet took up to a tenth more memory at its peak than foretold.
    """
    return op.type == "ZerosLike" and not any(output.consumers() for output in op.outputs)


def _is_backward(op: tf.Operation) -> bool:
    return op.name.startswith(BACKWARD)


def _sources(op: tf.Operation) -> Iterator[tf.Operation]:
    yield from (tensor.op for tensor in op.inputs)
    yield from op.control_inputs


def _sources_of_values(op: tf.Operation) -> Iterator[tf.Operation]:
    """Without the callback whose turn is before this one's."""
    return (source for i, source in enumerate(_sources(op)) if i or op.type != CALLBACK)


def _handles(op: tf.Operation) -> list[tf.Tensor]:
    return [tensor for tensor in op.inputs if tensor.dtype == tf.resource]


def _readers(handle: tf.Tensor) -> Iterator[tf.Operation]:
    """The operators that take the value of a variable as it was read from its handle, or a view of it."""
    pending = [op.outputs[0] for op in handle.consumers() if op.type == "ReadVariableOp"]
    while pending:
        for op in pending.pop().consumers():
            yield op
            if op.type in VIEWS:
                pending += op.outputs
