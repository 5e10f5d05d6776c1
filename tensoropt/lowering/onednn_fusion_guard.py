"""Prevent oneDNN from fusing a bias's gradient with a filter's gradient where that would make a cycle.

The gradients of a convolution's filter and of the bias behind it read the same gradient. On CPUs with oneDNN, TensorFlow
makes one operator of the two, without asking whether one has to wait for the other. It may have to: a bias's sum over ranks
comes before the collective that regathers what the filter's gradient reads, since collectives have one order on all ranks.
TensorFlow then says "Nodes in a cycle", and the step doesn't run. Where there is a path from the bias's gradient to the
filter's, the bias's gradient is made to read a two-dimensional view of the gradient: the sum is the same, and the operator
stays by itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

import tensorflow as tf

BIAS_GRADIENT, FILTER_GRADIENT = "BiasAddGrad", "Conv2DBackpropFilter"
_OF_GRADIENT = 2
"""The index of the operand of a filter's gradient that is the gradient of the convolution's result."""


def keep_apart(operators: Iterable[tf.Operation]) -> None:
    """Separate all gradients among ``operators`` whose fusion would make a cycle.

    Args:
        operators: those of a graph that has all its control dependencies.
    """
    for op in list(operators):
        is_last = op.type == BIAS_GRADIENT and op.get_attr("data_format") == b"NHWC"  # channels last, as oneDNN fuses them
        if is_last and any(leads_to(op, filter_gradient) for filter_gradient in merged_with(op)):
            _apart(op)


def merged_with(bias_gradient: tf.Operation) -> Iterator[tf.Operation]:
    """Return the gradients of filters that TensorFlow may fuse with the gradient of a bias."""
    (gradient,) = bias_gradient.inputs
    for consumer in gradient.consumers():
        if consumer.type == FILTER_GRADIENT and consumer.inputs[_OF_GRADIENT].name == gradient.name:
            yield consumer


def leads_to(source: tf.Operation, target: tf.Operation) -> bool:
    """Return whether ``target`` waits for ``source``. The search is breadth-first: the target is usually near."""
    pending, seen = deque([source]), {source.name}
    while pending:
        op = pending.popleft()
        followers = [consumer for output in op.outputs for consumer in output.consumers()]
        for each in (*followers, *op._control_outputs):
            if each.name == target.name:
                return True
            if each.name not in seen:
                seen.add(each.name)
                pending.append(each)
    return False


def _apart(bias_gradient: tf.Operation) -> None:
    """Have a bias's gradient read a two-dimensional view of its operand."""
    (gradient,) = bias_gradient.inputs
    with bias_gradient.graph.as_default(), tf.control_dependencies(None):
        # Channels in uneven blocks have no extent that is the same on all ranks.
        n_channels = tf.shape(gradient)[-1] if gradient.shape[-1] is None else gradient.shape[-1]
        # An operand can't be replaced by one with another static shape, so this one's static shape is left unknown.
        shape = tf.compat.v1.placeholder_with_default(tf.stack([-1, n_channels]), [None])
        rows = tf.reshape(gradient, shape, name=f"{bias_gradient.name}/rows")
    bias_gradient._update_input(0, rows)
