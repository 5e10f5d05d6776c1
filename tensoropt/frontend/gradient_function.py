"""Trace the function behind a custom gradient to a graph of its own, and copy it from there.

``tf.custom_gradient`` leaves an ``IdentityN`` over the results and the arguments of the wrapped function, and registers a
Python function for its gradient. That function closes over tensors of the graph in which it was made. Here it is called
once, with placeholders for the gradients of the results, in a graph inside of that one. The tensors that it reads from
outside are its captures.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import ops as framework_ops
from tensorflow.python.framework.func_graph import FuncGraph

from ..common.errors import InputError
from ..common.gradient_types import carries_gradient
from ..common.source_lines import source_line
from ..lowering.own_gradient import Gradients, with_own_gradient
from .stateful import has_only_an_effect, left_out

Lookup = Callable[[tf.Tensor], tf.Tensor]


@dataclass(frozen=True, eq=False)
class GradientFunction:
    """The traced function of a custom gradient.

    Attributes:
        placeholders: for each result of the operator the placeholder of its gradient, None where it can't have one.
        read: the tensors outside that the function reads, each with the tensor that stands for it in the graph.
        gradients: for each input of the operator its gradient, None where there is none.
    """

    graph: tf.Graph
    placeholders: tuple[tf.Tensor | None, ...]
    read: tuple[tuple[tf.Tensor, tf.Tensor], ...]
    gradients: tuple[tf.Tensor | None, ...]


def is_custom_gradient(op: tf.Operation) -> bool:
    """Return whether an operator passes tensors through and has a gradient that a Python function computes."""
    return op.type in ("Identity", "IdentityN") and "_gradient_op_type" in op.node_def.attr


def trace_gradient(op: tf.Operation) -> GradientFunction:
    """Trace the gradient function of a custom gradient; raise InputError if it contains something that can't be captured."""
    where = f"the custom gradient '{op.name}' ({source_line(op)})"
    graph, placeholders, results = call_gradient(op, framework_ops.get_gradient_function(op))
    with graph.as_default():
        gradients = tuple(None if gradient is None else tf.convert_to_tensor(gradient) for gradient in results)
    for inner in graph.get_operations():
        if has_only_an_effect(inner, [gradient.name for gradient in gradients if gradient is not None]):
            raise left_out(f"{inner.type} '{inner.name}' ({source_line(inner)})", "a custom gradient")
        if any(attr.type in ("func", "list(func)") for attr in inner.op_def.attr):
            raise InputError(
                f"{where} calls a function ({inner.type}); expected plain operators: take tf.function off the function that "
                "computes the gradient, and write loops over a known range in Python"
            )
    if len(gradients) != len(op.inputs):
        raise InputError(f"{where} returns {len(gradients)} gradients for {len(op.inputs)} inputs; return one for each")
    read = tuple((_in_graph(op.graph, outer), inner) for outer, inner in graph.captures)
    return GradientFunction(graph, placeholders, read, gradients)


def call_gradient(
    op: tf.Operation, function: Callable[..., Any]
) -> tuple[FuncGraph, tuple[tf.Tensor | None, ...], Sequence[Any]]:
    """Call an operator's gradient function in a graph of its own.

    Returns:
        The graph; for each result the placeholder of its gradient, None where it can't have one; for each input its
        gradient, None where there is none.
    """
    with op.graph.as_default():
        graph = FuncGraph("gradient")
    with graph.as_default():
        placeholders = tuple(
            tf.compat.v1.placeholder(tensor.dtype, tensor.shape) if carries_gradient(tensor.dtype) else None
            for tensor in op.outputs
        )
        gradients = function(op, *placeholders)
    return graph, placeholders, gradients if isinstance(gradients, (list, tuple)) else [gradients]


def _in_graph(source: tf.Graph, tensor: Any) -> tf.Tensor:
    """Return the counterpart, in the source graph, of a tensor that the gradient function closes over.

    Of eager tensors, a variable's handle is captured by the source, which is a trace; any other becomes a constant.
    """
    if getattr(tensor, "graph", None) is source:
        return tensor
    with source.as_default():
        if tensor.dtype == tf.resource:
            return source.capture(tensor)
        return tf.constant(np.asarray(tensor.numpy()))


def copy_custom_gradient(op: tf.Operation, inputs: Sequence[tf.Tensor], lookup: Lookup) -> list[tf.Tensor]:
    """Copy a custom gradient into the default graph, where ``tf.gradients`` works as in the source.

    Args:
        op: an operator for which :func:`is_custom_gradient` holds.
        inputs: the counterparts of its inputs.
        lookup: returns the counterpart of a tensor of the source graph, which has been copied before.

    Returns:
        The counterparts of its outputs.

    Raises:
        InputError: the gradient contains something that can't be captured.
    """
    function = trace_gradient(op)
    read = {inner.name: lookup(outer) for outer, inner in function.read}

    def gradient(_: Sequence[tf.Tensor], result_gradients: Gradients) -> Gradients:
        tensors = dict(read)
        for placeholder, given in zip(function.placeholders, result_gradients, strict=True):
            if placeholder is not None:
                tensors[placeholder.name] = tf.zeros(placeholder.shape, placeholder.dtype) if given is None else given
        for inner in function.graph.get_operations():
            if not (inner.outputs and inner.outputs[0].name in tensors):
                operands = [tensors[tensor.name] for tensor in inner.inputs]
                # Gradients of gradients aren't needed.
                results = operands if is_custom_gradient(inner) else copy_operator(inner, operands)
                tensors.update({tensor.name: result for tensor, result in zip(inner.outputs, results, strict=True)})
        return [None if given is None else tensors[given.name] for given in function.gradients]

    return with_own_gradient(inputs, gradient, op.name)


def copy_operator(op: tf.Operation, inputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Return the results of the same operator on other inputs, in the default graph; its shapes are inferred again."""
    attributes = {key: value for key, value in op.node_def.attr.items() if key not in ("_class", "_output_shapes")}
    kinds = [tensor.dtype for tensor in op.outputs]
    graph = tf.compat.v1.get_default_graph()
    copy = graph._create_op_internal(op.type, list(inputs), kinds, name=op.name, attrs=attributes, op_def=op.op_def)
    return list(copy.outputs)
