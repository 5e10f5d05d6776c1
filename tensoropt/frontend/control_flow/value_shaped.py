"""Import operators between which tensors pass whose shapes depend on values, such as ``tf.boolean_mask`` and its mean.

A plan is made for known shapes. So all operators that such tensors connect become one operator, whose operands and results
have known shapes. It runs replicated: on every rank it has all that it works on.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import tensorflow as tf

from ...common.errors import InputError
from ...ir.body import BODY, VALUE_SHAPED, Definition
from ...ir.graph import Operator, Tensor
from ..tracing.gradient_function import is_custom_gradient
from .body_builder import LOOPS, Collector, Context

_HANDLES = (tf.resource, tf.variant)
# They may have unknown shapes before they are imported: a loop's results are known from its body's.
_NEVER_FIRST = (*LOOPS, "Placeholder", "PlaceholderWithDefault", "FusedBatchNormV3", "TensorListStack", "TensorListGetItem")


@dataclass(frozen=True, eq=False)
class Group:
    """Operators that run as one.

    Attributes:
        operators: in order of creation.
        results: the tensors that other operators, or the user, take.
    """

    operators: tuple[tf.Operation, ...]
    results: tuple[tf.Tensor, ...]

    @property
    def inputs(self) -> list[tf.Tensor]:
        """The tensors from outside, each once. Lists, which can't pass, are taken with what makes them."""
        inside = {op.name for op in self.operators}
        found: dict[str, tf.Tensor] = {}
        pending = [tensor for op in self.operators for tensor in op.inputs]
        while pending:
            tensor = pending.pop()
            if tensor.dtype == tf.variant:
                if tensor.op.name not in inside:
                    inside.add(tensor.op.name)
                    pending += tensor.op.inputs
            elif tensor.op.name not in inside:
                found[tensor.name] = tensor
        return sorted(found.values(), key=lambda tensor: tensor.name)


def grouped(
    ops: Sequence[tf.Operation], static: Collection[str], fed: Collection[str], targets: Iterable[tf.Operation]
) -> list[tf.Operation | Group]:
    """Return operators in an order in which each follows what it needs, with groups in place of their operators.

    Args:
        ops: the operators to import, in order of creation.
        static: the names of those that follow from constants and shapes alone.
        fed: the names of those whose results are fed.
        targets: the operators whose results the user takes.
    """
    members = _members([op for op in ops if op.name not in static and op.name not in fed])
    if not members:
        return list(ops)
    ends = {tensor.name for op in targets for tensor in op.outputs}
    of: dict[str, Group] = {}
    for names in members:
        inside = tuple(op for op in ops if op.name in names)
        users = {tensor.name for op in ops if op.name not in names for tensor in op.inputs}
        results = tuple(tensor for op in inside for tensor in op.outputs if tensor.name in users | ends)
        of.update(dict.fromkeys(names, Group(inside, results)))
    return _in_order(ops, of)


def _members(ops: Sequence[tf.Operation]) -> list[set[str]]:
    """Return the names of each group's operators."""
    open_of: dict[str, set[str]] = {}
    for op in ops:
        joined = [open_of[tensor.name] for tensor in op.inputs if tensor.name in open_of]
        is_first = op.type not in _NEVER_FIRST and any(map(_is_open, op.outputs)) and not any(map(_is_open, op.inputs))
        if not joined and not is_first:
            continue
        group = {op.name}.union(*joined)
        for name, other in open_of.items():
            if any(other is each for each in joined):
                open_of[name] = group
        open_of.update({tensor.name: group for tensor in op.outputs if _is_open(tensor) or tensor.dtype == tf.variant})
        open_of.setdefault(f"{op.name}:", group)  # it may have no open result
    found: list[set[str]] = []
    for name in open_of.values():
        if not any(name is each for each in found):
            found.append(name)
    return _closed(ops, [group for group in found if not any(group < other for other in found)])


def _closed(ops: Sequence[tf.Operation], groups: list[set[str]]) -> list[set[str]]:
    """Add to each group what lies between its operators, and join groups that meet so."""
    for group in groups:
        behind, before = set(group), set(group)
        for op in ops:
            if any(tensor.op.name in behind for tensor in op.inputs):
                behind.add(op.name)
        for op in reversed(ops):
            if op.name in before:
                before.update(tensor.op.name for tensor in op.inputs)
        between = (behind & before) - group
        if between:
            meeting = [other for other in groups if other is group or other & between]
            rest = [other for other in groups if not any(other is each for each in meeting)]
            return _closed(ops, [*rest, between.union(*meeting)])
    return groups


def _is_open(tensor: tf.Tensor) -> bool:
    return tensor.dtype not in _HANDLES and not tensor.shape.is_fully_defined()


def _in_order(ops: Sequence[tf.Operation], of: dict[str, Group]) -> list[tf.Operation | Group]:
    """Return operators and groups in topological order, and else in order of creation."""
    nodes: list[tf.Operation | Group] = []
    index: dict[str, int] = {}
    for op in ops:
        node = of.get(op.name, op)
        if isinstance(node, Group) and node.operators[0].name != op.name:
            continue
        for each in node.operators if isinstance(node, Group) else (op,):
            index[each.name] = len(nodes)
        nodes.append(node)
    consumers: list[set[int]] = [set() for _ in nodes]
    for op in ops:
        for needed in (*(tensor.op for tensor in op.inputs), *op.control_inputs):
            if needed.name in index and index[needed.name] != index[op.name]:
                consumers[index[needed.name]].add(index[op.name])
    waits = [0] * len(nodes)
    for each in consumers:
        for consumer in each:
            waits[consumer] += 1
    ready, found = [i for i, count in enumerate(waits) if not count], list[tf.Operation | Group]()
    while ready:
        i = heapq.heappop(ready)
        found.append(nodes[i])
        for consumer in consumers[i]:
            waits[consumer] -= 1
            if not waits[consumer]:
                heapq.heappush(ready, consumer)
    return found


def import_group(group: Group, outside: Context) -> Operator:
    """Return the operator that stands for a group.

    Raises:
        InputError: a tensor whose shape depends on values leaves the group, or an operator can't be in one.
    """
    first, inside = group.operators[0], {op.name for op in group.operators}
    for op in group.operators:
        if op.op_def.is_stateful or is_custom_gradient(op) or not op.outputs:
            raise InputError(
                f"{op.type} '{op.name}' ({outside.line(op)}) works on a tensor whose shape depends on values, by {first.type} "
                f"'{first.name}' ({outside.line(first)}), which can't be captured of variables' updates, random numbers and "
                "custom gradients; keep all elements there, and choose by tf.where(condition, x, y) or a mask"
            )
    collector = Collector(outside, first.name)
    operands: list[Tensor] = []
    placeholders: list[tf.Tensor] = []
    for tensor in group.inputs:
        value = outside.value(tensor)
        if value is not None:
            collector.made[tensor.name] = collector.constant(value, tensor.dtype)
            continue
        operand = outside.operand(tensor)
        if operand in operands:
            collector.made[tensor.name] = placeholders[operands.index(operand)]
            continue
        operands.append(operand)
        placeholders.append(collector.input(operand.shape, operand.dtype))
        collector.made[tensor.name] = placeholders[-1]
    results = tuple(outside.known(tensor) for tensor in group.results)
    outputs = collector.copy(group.results)
    bound = max((math.prod(operand.shape) for operand in operands), default=1)
    inside_bytes = sum(
        math.prod(bound if extent is None else extent for extent in tensor.shape) * tensor.dtype.size
        for op in group.operators
        for tensor in op.outputs
        if tensor.dtype not in _HANDLES and tensor.shape.rank is not None and tensor.op.name in inside
    )
    definition = Definition(
        collector.graph.as_graph_def().SerializeToString(deterministic=True),
        tuple(tensor.name for tensor in placeholders),
        tuple(tensor.name for tensor in outputs),
        inside_bytes,
    )
    return Operator(first.name, VALUE_SHAPED, tuple(operands), results, {}, {BODY: definition}, source=outside.line(first))
