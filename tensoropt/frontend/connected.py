"""Follow TensorFlow's gradients through the recorded graph itself, to check :mod:`..lowering.gradient_analysis`.

The recorded graph is walked as ``tf.gradients`` walks it: forward from the variables through tensors that carry gradients,
then back from the loss. The inputs of an operator to which a gradient goes on follow from its registered gradient function.
That is called once in a process for all operators of one type with equal attributes and types of inputs and results, in a
graph of its own. Nothing is executed, and the imported model isn't read: a type, an operator or an edge that the import or
the analysis forgets shows as a difference.

Complexity: O(operators + edges), and one call for each kind of operator.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping

import tensorflow as tf
from tensorflow.python.framework import ops as framework_ops

from ..common.gradient_types import carries_gradient
from ..common.reach import reached
from ..ir.graph import Differentiated
from .gradient_function import GradientFunction, call_gradient, is_custom_gradient, trace_gradient

_HANDLES = (tf.resource, tf.variant)

_INDICES: dict[tuple[object, ...], frozenset[int]] = {}
"""The inputs to which the gradient functions of operators give a gradient, by what makes operators alike."""


def differentiated(
    loss: tf.Tensor, variables: Iterable[str], custom: Mapping[str, GradientFunction] | None = None
) -> Differentiated:
    """Return the tensors and operands that get a gradient of ``loss`` on the paths to the handles of these variables.

    Args:
        custom: the traced gradient functions of the graph's custom gradients, by operator name; None to trace them.
    """
    ops = loss.graph.get_operations()
    if custom is None:
        custom = {op.name: trace_gradient(op) for op in ops if is_custom_gradient(op)}
    # The operators that depend on the variables by way of tensors that carry gradients.
    behind = reached(
        [loss.graph.get_operation_by_name(name) for name in variables],
        lambda op: [user for t in op.outputs if carries_gradient(t.dtype) for user in t.consumers()],
    )
    if loss.op not in behind:
        return Differentiated(frozenset(), {})
    arriving, tensors = {loss.op.name}, {loss.name}
    operands: dict[str, frozenset[int]] = {}
    # Go back in order of creation: an operator's consumers were created after it.
    for op in reversed(ops):
        if op.name not in arriving or op not in behind:
            continue
        inputs = list(op.inputs)
        operands[op.name] = frozenset(
            index
            for index in _indices(op, custom)
            if inputs[index].op in behind and carries_gradient(inputs[index].dtype)
        )
        for index in operands[op.name]:
            arriving.add(inputs[index].op.name)
            tensors.add(inputs[index].name)
    return Differentiated(frozenset(tensors), operands)


def _indices(op: tf.Operation, custom: Mapping[str, GradientFunction]) -> Iterable[int]:
    """Return the input positions to which an operator's gradient function gives a gradient, from any of its results."""
    if op.name in custom:
        return [index for index, gradient in enumerate(custom[op.name].gradients) if gradient is not None]
    if not op.inputs:
        return ()
    types = (tuple(tensor.dtype for tensor in op.inputs), tuple(tensor.dtype for tensor in op.outputs))
    attributes = sorted((key, value.SerializeToString()) for key, value in op.node_def.attr.items() if key[0] != "_")
    key = (op.type, repr(attributes), types)
    if key not in _INDICES:
        _INDICES[key] = frozenset(_ask(op))
    return _INDICES[key]


def _ask(op: tf.Operation) -> Iterable[int]:
    every = range(len(op.inputs))
    is_composite = any(attr.type in ("func", "list(func)") for attr in op.op_def.attr)
    if is_composite or any(tensor.dtype in _HANDLES for tensor in (*op.inputs, *op.outputs)):
        # Loops, reads of variables, lists: TensorFlow passes a gradient on to all of their inputs that can have one.
        return every
    try:
        function = framework_ops.get_gradient_function(op)
    except LookupError:
        return ()
    if function is None:
        return ()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Converting sparse IndexedSlices")
        _, _, gradients = call_gradient(op, function)
    return [index for index, gradient in zip(every, gradients, strict=False) if gradient is not None]
