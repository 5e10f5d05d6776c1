"""Copy conditionals: the branch that is taken where constants tell, such as whether a model trains; else all branches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ...common.reach import reached
from .called import function_graph
from .loops import CopyBody

CONDITIONALS = ("If", "StatelessIf", "Case", "StatelessCase")
_SOURCES = ("Placeholder", "PlaceholderWithDefault", "VarHandleOp", "ReadVariableOp")


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


def copy_conditional(op: tf.Operation, values: Sequence[tf.Tensor], copy_body: CopyBody) -> list[tf.Tensor]:
    """Copy a conditional with all its branches into the default graph.

    Args:
        op: an ``If`` or ``Case``, stateless or not.
        values: the counterparts of its inputs; for a variable's handle, the value.
        copy_body: copies a function, given its arguments, into the default graph; returns its results.

    Returns:
        The results of the branch that is taken.
    """

    def emitting(graph: Any) -> Callable[[], list[tf.Tensor]]:
        return lambda: copy_body(graph, values[1:])

    branches = list(map(emitting, branch_graphs(op)))
    if op.type.endswith("Case"):
        return list(tf.switch_case(values[0], branches, name=op.name))
    return list(tf.cond(tf.cast(values[0], tf.bool), *branches, name=op.name))


def is_taken(op: tf.Operation, chosen: tf.Tensor, branch: int) -> tf.Tensor:
    """Return whether a conditional takes one of its branches.

    Args:
        chosen: the counterpart of its first input.
        branch: the position of the branch among those that :func:`branch_graphs` returns.
    """
    if not op.type.endswith("Case"):
        condition = tf.cast(chosen, tf.bool)
        return tf.logical_not(condition) if branch else condition
    last = len(op.get_attr("branches")) - 1
    return tf.equal(tf.where((chosen < 0) | (chosen > last), last, chosen), branch)


def branch_graphs(op: tf.Operation) -> list[Any]:
    """Return the graphs of a conditional's branches."""
    is_case = op.type.endswith("Case")
    functions = op.get_attr("branches") if is_case else [op.get_attr(f"{name}_branch") for name in ("then", "else")]
    return [function_graph(op, function.name) for function in functions]


def is_constant(tensor: tf.Tensor) -> bool:
    """Return whether a tensor follows from constants alone."""
    behind = reached([tensor.op], lambda op: [operand.op for operand in op.inputs])
    return not any(op.type in _SOURCES or op.op_def.is_stateful for op in behind)
