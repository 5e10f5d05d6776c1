"""Copy loops from a traced function to the flat graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import while_v2

READERS = ("ReadVariableOp", "ResourceGather")
CopyBody = Callable[[Any, Sequence[tf.Tensor]], list[tf.Tensor]]


def loop_functions(op: tf.Operation) -> tuple[Any, Any]:
    """Return the condition and the body of a ``While``, as graphs."""
    return while_v2._get_graph(op, "cond", "_cond_graph"), while_v2._get_graph(op, "body", "_body_graph")


def is_passed_on(body: Any, position: int) -> bool:
    """Return whether the body returns a loop variable unchanged."""
    result = body.outputs[position]
    while result.op.type == "Identity":
        result = result.op.inputs[0]
    return result is body.inputs[position]


def read_value(op: tf.Operation, inputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Return the results of an operator that reads a variable, where the variable's value stands for its handle."""
    if op.type == "ReadVariableOp":
        return list(inputs)
    dims = op.get_attr("batch_dims")
    return [tf.raw_ops.GatherV2(params=inputs[0], indices=inputs[1], axis=dims, batch_dims=dims)]


def copy_while(op: tf.Operation, inputs: Sequence[tf.Tensor], copy_body: CopyBody) -> list[tf.Tensor]:
    """Copy a loop into the default graph, by ``tf.while_loop``.

    A loop variable that no iteration changes becomes a tensor that the new loop captures. A variable is read once before the
    loop, and the copied body gets its value where it had the handle.

    Args:
        op: a ``While`` or ``StatelessWhile``.
        inputs: the counterparts of its inputs.
        copy_body: copies a function, given its arguments, into the default graph; returns its results.

    Returns:
        The counterparts of its outputs.
    """
    cond, body = loop_functions(op)
    values = [value_of(tensor) for tensor in inputs]
    changing = [k for k in range(len(values)) if not is_passed_on(body, k)]

    def arguments(variables: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        given = dict(zip(changing, variables, strict=True))
        return [given.get(k, value) for k, value in enumerate(values)]

    def step(*variables: tf.Tensor) -> list[tf.Tensor]:
        results = copy_body(body, arguments(variables))
        return [results[k] for k in changing]

    results = tf.while_loop(
        lambda *variables: copy_body(cond, arguments(variables))[0],
        step,
        [values[k] for k in changing],
        shape_invariants=[body.inputs[k].shape for k in changing],
        parallel_iterations=op.get_attr("parallel_iterations"),
        name=op.name,
    )
    made = dict(zip(changing, results, strict=True))
    return [made.get(k, tensor) for k, tensor in enumerate(inputs)]


def value_of(tensor: tf.Tensor) -> tf.Tensor:
    """Return a tensor, or the value of a variable whose handle it is."""
    if tensor.dtype != tf.resource:
        return tensor
    return tf.raw_ops.ReadVariableOp(resource=tensor, dtype=tensor.op.get_attr("dtype"))
