"""Trace the function behind a custom gradient to a graph of its own.

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
from .stateful import has_only_an_effect, left_out

Lookup = Callable[[tf.Tensor], tf.Tensor]


@dataclass(frozen=True, eq=False)
class GradientFunction:
    """The traced function of a custom gradient.

    Attributes:
        graph: the traced function.
        placeholders: for each result of the operator the placeholder of its gradient, None where it can't have one.
        read: the tensors outside that the function reads, each with the tensor that stands for it in the graph.
        gradients: for each input of the operator its gradient, None where there is none.
    """

    graph: tf.Graph
    placeholders: tuple[tf.Tensor | None, ...]
    read: tuple[tuple[tf.Tensor, tf.Tensor], ...]
    gradients: tuple[tf.Tensor | None, ...]

    def emit(self, result_gradients: Sequence[tf.Tensor | None], read: Sequence[tf.Tensor]) -> list[tf.Tensor | None]:
        """Copy the function into the default graph and return the gradients of the operator's inputs.

        Args:
            result_gradients: the gradients of the operator's results.
            read: the counterparts of the tensors outside that the function reads.
        """
        tensors: dict[str, tf.Tensor] = {}
        for placeholder, gradient in zip(self.placeholders, result_gradients, strict=True):
            if placeholder is not None:
                tensors[placeholder.name] = tf.zeros(placeholder.shape, placeholder.dtype) if gradient is None else gradient
        tensors.update({inner.name: tensor for (_, inner), tensor in zip(self.read, read, strict=True)})
        for op in self.graph.get_operations():
            if not (op.outputs and op.outputs[0].name in tensors):
                inputs = [tensors[tensor.name] for tensor in op.inputs]
                # Gradients of gradients aren't needed.
                results = inputs if is_custom_gradient(op) else copy_operator(op, inputs)
                tensors.update({tensor.name: result for tensor, result in zip(op.outputs, results, strict=True)})
        return [None if gradient is None else tensors[gradient.name] for gradient in self.gradients]


def is_custom_gradient(op: tf.Operation) -> bool:
    """Return whether an operator passes tensors through and has a gradient that a Python function computes."""
    return op.type in ("Identity", "IdentityN") and "_gradient_op_type" in op.node_def.attr


def trace_gradient(op: tf.Operation) -> GradientFunction:
    """Trace the gradient function of an operator for which :func:`is_custom_gradient` holds.

    Raises:
        InputError: the function contains something that can't be captured.
    """
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


def copy_operator(op: tf.Operation, inputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Return the results of the same operator on other inputs, in the default graph; its shapes are inferred again."""
    attributes = {key: value for key, value in op.node_def.attr.items() if key not in ("_class", "_output_shapes")}
    kinds = [tensor.dtype for tensor in op.outputs]
    graph = tf.compat.v1.get_default_graph()
    copy = graph._create_op_internal(op.type, list(inputs), kinds, name=op.name, attrs=attributes, op_def=op.op_def)
    return list(copy.outputs)
