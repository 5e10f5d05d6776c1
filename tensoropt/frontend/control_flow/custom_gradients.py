"""Import a custom gradient as a composite operator."""

from __future__ import annotations

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
    indices = [k for k, tensor in enumerate(op.outputs) if tensor.consumers() or _is_read(function, k)]
    positions: dict[Tensor, int] = {}

    def position(tensor: tf.Tensor) -> int:
        return positions.setdefault(outside.operand(tensor), len(positions))

    passed = [position(op.inputs[k]) for k in indices]
    collector = Collector(outside, op.name, is_differentiated=False)
    inputs = [_stand_in(collector, function.placeholders[k], outside.operand(op.inputs[k])) for k in indices]
    reads = []
    for outer, inner in function.read:
        value = outside.value(outer)
        if value is not None:
            collector.copies[inner.name] = collector.constant(value, inner.dtype)
        else:
            reads.append(position(outer))
            inputs.append(_stand_in(collector, inner, outside.operand(outer)))
    into = {  # by position, since an input may come twice
        k: gradient
        for k, (tensor, gradient) in enumerate(zip(op.inputs, function.gradients, strict=True))
        if gradient is not None and carries_gradient(tensor.dtype) and outside.value(tensor) is None
    }
    outputs = collector.copy(list(into.values())) if into else []
    form = GradientForm(tuple(passed), tuple(reads), tuple(position(op.inputs[k]) for k in into))
    body = collector.body(inputs, outputs)
    operands = tuple(positions)
    results = tuple(replace(operands[i], name=op.outputs[k].name) for k, i in zip(indices, passed, strict=True))
    attributes = {BODY: body, FORM: form}
    left_out = {tensor.name: outside.operand(op.inputs[k]) for k, tensor in enumerate(op.outputs) if k not in indices}
    operator = Operator(op.name, CUSTOM_GRADIENT, operands, results, {}, attributes, source=outside.line(op))
    return operator, left_out


def _is_read(function: GradientFunction, output: int) -> bool:
    placeholder = function.placeholders[output]
    return placeholder is not None and bool(placeholder.consumers())


def _stand_in(collector: Collector, inner: tf.Tensor | None, tensor: Tensor) -> tf.Tensor:
    """Return a new input of the body for a tensor outside; ``inner`` stood for that tensor in the traced function."""
    placeholder = collector.input(tensor.shape, tensor.dtype)
    if inner is not None:
        collector.copies[inner.name] = placeholder
    return placeholder
