"""Choose the branch of a conditional, which must follow from constants, such as whether a model trains."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from ...common.errors import InputError
from ...common.source_lines import source_line

_GIVEN = ("Placeholder", "PlaceholderWithDefault", "VarHandleOp", "ReadVariableOp")


def taken_branch(op: tf.Operation, inputs: Sequence[tf.Tensor]) -> tuple[str, list[tf.Tensor]]:
    """Return the branch that a conditional takes.

    Args:
        op: an ``If`` or ``Case``, stateless or not.
        inputs: the counterparts of its inputs in the graph that it is copied to; the first one decides.

    Returns:
        The name of the branch's function, and its arguments.

    Raises:
        InputError: the branch depends on what the model computes.
    """
    chosen, arguments = inputs[0], list(inputs[1:])
    if not is_constant(chosen):
        raise InputError(
            f"{op.type} '{op.name}' ({source_line(op)}) takes a branch by a value that the model computes, so that "
            "devices could take different ones, which can't be captured; compute both and choose with tf.where, or decide "
            "in Python"
        )
    with tf.compat.v1.Session(graph=chosen.graph) as session:
        value = np.asarray(session.run(chosen))
    if op.type.endswith("If"):
        # TensorFlow takes a text to be true if it isn't empty, as Python does.
        return op.get_attr("then_branch" if bool(value) else "else_branch").name, arguments
    branches = op.get_attr("branches")
    index = int(value)
    return branches[index if 0 <= index < len(branches) else -1].name, arguments


def is_constant(tensor: tf.Tensor) -> bool:
    """Return whether a tensor follows from constants alone."""
    pending, seen = [tensor.op], set()
    while pending:
        op = pending.pop()
        if op.type in _GIVEN or op.op_def.is_stateful:
            return False
        if op.name not in seen:
            seen.add(op.name)
            pending += [each.op for each in op.inputs]
    return True
