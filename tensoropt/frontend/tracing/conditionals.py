"""Copy conditionals: the branch that is taken where constants tell, such as whether a model trains; else all branches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ...common.reach import reached
from .called import function_graph
from .loops import CopyBody, value_of

CONDITIONALS = ("If", "StatelessIf", "Case", "StatelessCase")
_GIVEN = ("Placeholder", "PlaceholderWithDefault", "VarHandleOp", "ReadVariableOp")


def taken_branch(op: tf.Operation, chosen: tf.Tensor) -> str:
    """Return the name of the function of the branch that a conditional takes.

    Args:
        op: an ``If`` or ``Case``, stateless or not.
        chosen: the counterpart of its first input in the graph that it is copied to, for which :func:`is_constant` holds.
    """
    with tf.compat.v1.Session(graph=chosen.graph) as session:
        value = np.asarray(session.run(chosen))
    if op.type.endswith("If"):
        # TensorFlow takes a text to be true if it isn't empty, as Python does.
        return op.get_attr("then_branch" if bool(value) else "else_branch").name
    branches = op.get_attr("branches")
    index = int(value)
    return branches[index if 0 <= index < len(branches) else -1].name


def copy_conditional(op: tf.Operation, inputs: Sequence[tf.Tensor], copy_body: CopyBody) -> list[tf.Tensor]:
    """Copy a conditional with all its branches into the default graph. A variable is read once, before the conditional.

    Args:
        op: an ``If`` or ``Case``, stateless or not.
        inputs: the counterparts of its inputs.
        copy_body: copies a function, given its arguments, into the default graph; returns its results.

    Returns:
        The counterparts of its outputs.
    """
    arguments = [value_of(tensor) for tensor in inputs[1:]]

    def emitting(function: Any) -> Callable[[], list[tf.Tensor]]:
        return lambda: copy_body(function_graph(op, function.name), arguments)

    if op.type.endswith("Case"):
        return list(tf.switch_case(inputs[0], list(map(emitting, op.get_attr("branches"))), name=op.name))
    then, otherwise = (emitting(op.get_attr(name)) for name in ("then_branch", "else_branch"))
    return list(tf.cond(tf.cast(inputs[0], tf.bool), then, otherwise, name=op.name))


def is_constant(tensor: tf.Tensor) -> bool:
    """Return whether a tensor follows from constants alone."""
    behind = reached([tensor.op], lambda op: [each.op for each in op.inputs])
    return not any(op.type in _GIVEN or op.op_def.is_stateful for op in behind)
