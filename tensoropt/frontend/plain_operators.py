"""Refuse operators that can't be imported, since they aren't TensorFlow's own or stand for others."""

from __future__ import annotations

import tensorflow as tf

from ..common.errors import InputError
from .stateful import Treatment, check_is_known, left_out, treatment_of

_UNSUPPORTED = {
    "EagerPyFunc": "it calls Python with gradients; use TensorFlow's operators, or numpy_function where none are needed",
}


def check_is_plain(op: tf.Operation, line: str) -> None:
    """Check that an operator is one of TensorFlow's own, with TensorFlow's gradient.

    Raises:
        InputError: it calls a function or Python, has another gradient or an effect, or can't be recorded else.
    """
    check_is_known(op, line)
    if not op.outputs and treatment_of(op.type) is Treatment.EFFECT:
        raise left_out(f"{op.type} '{op.name}' ({line})", "a recorded graph")
    functions = [attr.name for attr in op.op_def.attr if attr.type in ("func", "list(func)")]
    if functions:
        raise InputError(
            f"{op.type} '{op.name}' ({line}) calls a function, which can't be recorded; expected plain "
            "operators: choose between values with tensoropt.where, or decide in Python"
        )
    if "_gradient_op_type" in op.node_def.attr:
        raise InputError(
            f"{op.type} '{op.name}' ({line}) has another gradient by gradient_override_map, which can't be "
            "recorded; write it with tf.custom_gradient"
        )
    if op.type in _UNSUPPORTED:
        raise InputError(f"{op.type} '{op.name}' ({line}) can't be recorded: {_UNSUPPORTED[op.type]}")
