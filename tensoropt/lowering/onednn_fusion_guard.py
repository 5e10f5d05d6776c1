"""Gradients of biases that mustn't become one operator with a filter's.

Of the gradients of a convolution's filter and of the bias behind it, which read the same gradient, TensorFlow makes one
operator on CPUs with oneDNN, without asking whether one has to wait for the other. It may have to: a bias's sum over ranks
comes before the collective that brings again what the filter's gradient reads, since collectives have one order on all
ranks. "Nodes in a cycle", says TensorFlow then, and the step doesn't run. Where there is such a way from the one to the
other, the bias's gradient reads a view of the gradient in two dimensions, which is the same sum, and stays by itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

import tensorflow as tf

BIAS_GRADIENT, FILTER_GRADIENT = "BiasAddGrad", "Conv2DBackpropFilter"
_OF_GRADIENT = 2
"""Which operand of a filter's gradient is the gradient of the convolution's result."""


def keep_apart(operators: Iterable[tf.Operation]) -> None:
    """Look for such gradients among the operators of a graph that has all its control dependencies."""
    for op in list(operators):
        is_last = op.type == BIAS_GRADIENT and op.get_attr("data_format") == b"NHWC"  # the channels, as oneDNN has them
        if is_last and any(leads_to(op, filter_gradient) for filter_gradient in merged_with(op)):
            _apart(op)


def merged_with(bias_gradient: tf.Operation) -> Iterator[tf.Operation]:
    """The gradients of filters that TensorFlow may make one operator with that of a bias."""
    (gradient,) = bias_gradient.inputs
    for consumer in gradient.consumers():
        if consumer.type == FILTER_GRADIENT and consumer.inputs[_OF_GRADIENT].name == gradient.name:
            yield consumer


def leads_to(source: tf.Operation, target: tf.Operation) -> bool:
    """Whether one operator waits for another. What is near is looked at first: of operators in order the other is."""
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
    (gradient,) = bias_gradient.inputs
    with bias_gradient.graph.as_default(), tf.control_dependencies(None):
        # Of channels in uneven blocks the ranks know no extent in common.
        n_channels = tf.shape(gradient)[-1] if gradient.shape[-1] is None else gradient.shape[-1]
        # An operand's known shape can't be changed for another, so this one's isn't known while the graph is made.
        shape = tf.compat.v1.placeholder_with_default(tf.stack([-1, n_channels]), [None])
        rows = tf.reshape(gradient, shape, name=f"{bias_gradient.name}/rows")
    bias_gradient._update_input(0, rows)
