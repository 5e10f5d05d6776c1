"""Copy loops from a traced function to the flat graph."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import while_v2

CopyBody = Callable[[Any, Sequence[tf.Tensor]], list[tf.Tensor]]


def loop_functions(op: tf.Operation) -> tuple[Any, Any]:
    """Return the condition and the body of a ``While``, as graphs."""
    return while_v2._get_graph(op, "cond", "_cond_graph"), while_v2._get_graph(op, "body", "_body_graph")


def is_passed_on(body: Any, position: int) -> bool:
    """Return whether the body returns a loop variable unchanged."""
    return behind_identities(body.outputs[position]) is body.inputs[position]


def behind_identities(tensor: tf.Tensor) -> tf.Tensor:
    while tensor.op.type == "Identity":
        tensor = tensor.op.inputs[0]
    return tensor


def copy_while(
    op: tf.Operation, values: Sequence[tf.Tensor], copy_body: CopyBody, written: Collection[int] = ()
) -> list[tf.Tensor]:
    """Copy a loop into the default graph, by ``tf.while_loop``.

    A loop variable that no iteration changes becomes a tensor that the new loop captures. The copied body gets a variable's
    value where it had the handle, and returns what the variable holds afterwards.

    Args:
        op: a ``While`` or ``StatelessWhile``.
        values: the counterparts of its inputs; for a variable's handle, the value.
        copy_body: copies a function, given its arguments, into the default graph; returns its results.
        written: the positions of the variables that the body writes.

    Returns:
        The counterparts of its outputs; for a variable's handle, the value.
    """
    cond, body = loop_functions(op)
    changing = [k for k in range(len(values)) if k in written or not is_passed_on(body, k)]

    def arguments(variables: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        by_position = dict(zip(changing, variables, strict=True))
        return [by_position.get(k, value) for k, value in enumerate(values)]

    def step(*variables: tf.Tensor) -> list[tf.Tensor]:
        results = copy_body(body, arguments(variables))
        return [results[k] for k in changing]

    results = tf.while_loop(
        lambda *variables: copy_body(cond, arguments(variables))[0],
        step,
        [values[k] for k in changing],
        shape_invariants=[values[k].shape if k in written else body.inputs[k].shape for k in changing],
        parallel_iterations=op.get_attr("parallel_iterations"),
        name=op.name,
    )
    finals = dict(zip(changing, results, strict=True))
    return [finals.get(k, tensor) for k, tensor in enumerate(values)]
