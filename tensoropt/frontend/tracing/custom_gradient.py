"""Copy custom gradients from one graph to another."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from ...lowering.own_gradient import Gradients, with_own_gradient
from ..gradient_function import Lookup, trace_gradient


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
    read = [lookup(outer) for outer, _ in function.read]

    def gradient(_: Sequence[tf.Tensor], gradients: Gradients) -> Gradients:
        return function.emit(gradients, read)

    return with_own_gradient(inputs, gradient, op.name)
