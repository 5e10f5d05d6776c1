"""Import a custom gradient as a composite operator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import tensorflow as tf

from ...common.gradient_types import carries_gradient
from ...ir.body import BODY, CUSTOM_GRADIENT, FORM, GradientForm
from ...ir.graph import Operator, Tensor
from ..gradient_function import GradientFunction
from .body_builder import Collector, OuterImporter


def import_custom_gradient(
    op: tf.Operation, function: GradientFunction, outside: OuterImporter
) -> tuple[Operator, dict[str, Tensor]]:
    """Return the operator that stands for a custom gradient.

    ``tf.custom_gradient`` passes through the results of the wrapped function, and its arguments besides. Nobody reads the
    latter, so they are left out, as are gradients of constants.

    Returns:
        The operator; and by name of each result that was left out, the tensor that it equals.

    Raises:
        InputError: the gradient contains something that can't be captured.
    """
    kept = [k for k, tensor in enumerate(op.outputs) if tensor.consumers() or _is_read(function, k)]
    operands: list[Tensor] = []

    def position(tensor: tf.Tensor) -> int:
        found = outside.operand(tensor)
        if found not in operands:
            operands.append(found)
        return operands.index(found)

    passed = [position(op.inputs[k]) for k in kept]
    collector = Collector(outside, op.name, is_differentiated=False)
    given = [_stands_for(collector, function.given[k], outside.operand(op.inputs[k])) for k in kept]
    reads = []
    for outer, inner in function.read:
        value = outside.value(outer)
        if value is not None:
            collector.made[inner.name] = collector.constant(value, inner.dtype)
        else:
            reads.append(position(outer))
            given.append(_stands_for(collector, inner, operands[reads[-1]]))
    into, gradients = _wanted(op, function, outside)
    outputs = collector.copy(gradients) if gradients else []
    form = GradientForm(tuple(passed), tuple(reads), tuple(position(tensor) for tensor in into))
    body = collector.body(given, outputs)
    results = tuple(replace(operands[i], name=op.outputs[k].name) for k, i in zip(kept, passed, strict=True))
    attributes = {BODY: body, FORM: form}
    left_out = {tensor.name: outside.operand(op.inputs[k]) for k, tensor in enumerate(op.outputs) if k not in kept}
    made = Operator(op.name, CUSTOM_GRADIENT, tuple(operands), results, {}, attributes, source=outside.line(op))
    return made, left_out


def _is_read(function: GradientFunction, output: int) -> bool:
    placeholder = function.given[output]
    return placeholder is not None and bool(placeholder.consumers())


def _stands_for(collector: Collector, inner: tf.Tensor | None, tensor: Tensor) -> tf.Tensor:
    """Return a new input of the body for a tensor outside; ``inner`` stood for that tensor in the traced function."""
    made = collector.input(tensor.shape, tensor.dtype)
    if inner is not None:
        collector.made[inner.name] = made
    return made


def _wanted(
    op: tf.Operation, function: GradientFunction, outside: OuterImporter
) -> tuple[Sequence[tf.Tensor], Sequence[tf.Tensor]]:
    """Return the inputs of the operator to which a gradient goes, and these gradients."""
    pairs = [
        (tensor, gradient)
        for tensor, gradient in zip(op.inputs, function.gradients, strict=True)
        if gradient is not None and carries_gradient(tensor.dtype) and outside.value(tensor) is None
    ]
    return [tensor for tensor, _ in pairs], [gradient for _, gradient in pairs]
