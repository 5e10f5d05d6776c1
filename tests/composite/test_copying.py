"""Custom gradients and loops in another graph than the one they were traced in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from composite import models

from tensoropt.common.errors import InputError
from tensoropt.frontend.gradient_function import copy_custom_gradient, copy_operator, is_custom_gradient
from tensoropt.frontend.tracing.loops import copy_while

X = np.random.default_rng(0).normal(size=(4, 3))


def copy_graph(graph: Any, arguments: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """All of a traced function in the graph that is the default one."""
    made = {inner.name: given for inner, given in zip(graph.inputs, arguments, strict=True)}
    for op in graph.get_operations():
        inputs = [made[tensor.name] for tensor in op.inputs]
        if op.outputs and op.outputs[0].name in made:
            continue
        if is_custom_gradient(op):
            results = copy_custom_gradient(op, inputs, lambda tensor: made[tensor.name])
        elif op.type in ("While", "StatelessWhile"):
            results = copy_while(op, inputs, copy_graph)
        else:
            results = copy_operator(op, inputs)
        made.update({tensor.name: result for tensor, result in zip(op.outputs, results, strict=True)})
    return [made[tensor.name] for tensor in graph.outputs]


def swish_and_rounding(x: tf.Tensor) -> tf.Tensor:
    return tf.nn.silu(x) * models.straight_through(x)


def two_results(x: tf.Tensor) -> tf.Tensor:
    """The gradient function reads a tensor of the forward pass, and is asked for one result alone as well."""

    @tf.custom_gradient
    def both(x: tf.Tensor, y: tf.Tensor) -> Any:
        sine = tf.sin(x)
        return (x * y, x + y), lambda first, second: (first * sine + np.ones(3), second * tf.cast(tf.shape(x)[0], x.dtype))

    first, second = both(x, x * x)
    return first * second + both(x, tf.tanh(x))[1]


def swish_in_a_loop(x: tf.Tensor) -> tf.Tensor:
    rows = tf.TensorArray(x.dtype, 4).unstack(x)
    step = lambda t, s: (t + 1, tf.nn.silu(s * rows.read(t)))  # noqa: E731
    return tf.while_loop(lambda t, _: t < 4, step, (0, x))[1]


@pytest.mark.parametrize("function", [swish_and_rounding, two_results, swish_in_a_loop, models.normalised_gradient])
def test_values_and_gradients_are_those_of_the_source(function: Callable[[tf.Tensor], tf.Tensor]) -> None:
    traced = tf.function(function).get_concrete_function(tf.TensorSpec(X.shape, tf.float64)).graph
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x = tf.compat.v1.placeholder(tf.float64, X.shape)
        (copied,) = copy_graph(traced, [x])
        got = session.run([copied, *tf.gradients(tf.square(copied), x)], {x: X})
    x = tf.constant(X)
    with tf.GradientTape() as tape:
        tape.watch(x)
        result = function(x)
        loss = tf.square(result)
    np.testing.assert_array_equal(got[0], result.numpy())
    np.testing.assert_allclose(got[1], tape.gradient(loss, x).numpy(), rtol=1e-12)


def test_gradients_that_call_functions_are_refused() -> None:
    @tf.custom_gradient
    def calling(x: tf.Tensor) -> Any:
        return tf.identity(x), lambda given: tf.function(lambda y: y * 2.0)(given)

    traced = tf.function(calling).get_concrete_function(tf.TensorSpec(X.shape, tf.float64)).graph
    (op,) = (op for op in traced.get_operations() if is_custom_gradient(op))
    with pytest.raises(InputError, match=r"take tf.function off .*") as error:
        copy_custom_gradient(op, list(op.inputs), lambda tensor: tensor)
    assert "test_copying.py" in str(error.value)
