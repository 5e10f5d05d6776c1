"""Small models with loops and custom gradients, for ``zoo.record``. Few extents divide by the number of devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import tensorflow as tf
from helpers.zoo import Built, _classes, _reals

BATCH, TIME, WIDTH, UNITS, CLASSES = 6, 4, 3, 5, 4


def _lstm(x: Any, name: str, mask: Any = None, last_only: bool = False, backwards: bool = False) -> tuple[Any, Any]:
    """A loop over time, as Keras writes it. Returns the outputs [batch, time, units], and the last state [batch, units].

    With a mask [batch, time] a masked step keeps the state and repeats the output.
    """
    api = tf.compat.v1
    batch, time, width = x.shape
    w = api.get_variable(f"{name}_w", [width, 4 * UNITS], x.dtype)
    u = api.get_variable(f"{name}_u", [UNITS, 4 * UNITS], x.dtype)
    b = api.get_variable(f"{name}_b", [4 * UNITS], x.dtype, initializer=api.constant_initializer(0.1))
    steps = tf.transpose(x, [1, 0, 2])
    inputs = tf.TensorArray(x.dtype, time).unstack(tf.reverse(steps, [0]) if backwards else steps)
    masks = None if mask is None else tf.TensorArray(tf.bool, time).unstack(tf.transpose(mask)[..., None])
    outputs = tf.TensorArray(x.dtype, 1 if last_only else time, element_shape=[batch, UNITS])
    zeros = tf.zeros([batch, UNITS], x.dtype)

    def step(t: Any, outputs: Any, last: Any, h: Any, c: Any) -> tuple[Any, ...]:
        i, f, g, o = tf.split(inputs.read(t) @ w + h @ u + b, 4, axis=1)
        new_c = tf.sigmoid(f) * c + tf.sigmoid(i) * tf.tanh(g)
        new_h = tf.sigmoid(o) * tf.tanh(new_c)
        output = new_h
        if masks is not None:
            takes = tf.tile(masks.read(t), [1, UNITS])
            output, new_h, new_c = tf.where(takes, new_h, last), tf.where(takes, new_h, h), tf.where(takes, new_c, c)
        return t + 1, outputs.write(0 if last_only else t, output), output, new_h, new_c

    loop_vars = (tf.constant(0), outputs, zeros, zeros, zeros)
    _, outputs, _, h, _ = tf.while_loop(lambda t, *_: t < time, step, loop_vars, maximum_iterations=time)
    return tf.transpose(outputs.stack(), [1, 0, 2]), h


def _classified(features: Any, labels: Any) -> tuple[Any, Any]:
    w = tf.compat.v1.get_variable("out", [features.shape[-1], CLASSES], features.dtype)
    logits = features @ w
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    return tf.reduce_mean(losses), logits


def lstm() -> Built:
    """Two loops, one of them backwards and of its last output alone, with masks."""
    x = tf.compat.v1.placeholder(tf.float64, [BATCH, TIME, WIDTH], name="x")
    y = tf.compat.v1.placeholder(tf.int64, [BATCH], name="y")
    mask = tf.sin(tf.reduce_sum(x, -1) * 9.0) > -0.5
    sequence, _ = _lstm(x, "first", mask)
    last, h = _lstm(sequence, "second", mask, last_only=True, backwards=True)
    loss, logits = _classified(last[:, -1] + h, y)
    return Built(loss, {x: _reals(21, BATCH, TIME, WIDTH), y: _classes(22, CLASSES, BATCH)}, (logits, sequence))


def plain_loop() -> Built:
    """Four times a product with a weight and tanh."""
    x = tf.compat.v1.placeholder(tf.float64, [BATCH, UNITS], name="x")
    w = tf.compat.v1.get_variable("w", [UNITS, UNITS], tf.float64)
    _, state = tf.while_loop(lambda t, _: t < 4, lambda t, state: (t + 1, tf.tanh(state @ w)), (tf.constant(0), x))
    return Built(tf.reduce_sum(state), {x: _reals(26, BATCH, UNITS)}, (state,))


def elementwise_loop() -> Built:
    """A recurrence of each unit for itself, whose counter enters the numbers, with a custom gradient inside."""
    x = tf.compat.v1.placeholder(tf.float64, [BATCH, UNITS], name="x")
    decay = tf.compat.v1.get_variable("decay", [UNITS], tf.float64)
    scale = tf.compat.v1.get_variable("scale", [], tf.float64, initializer=tf.compat.v1.ones_initializer())

    def step(t: Any, state: Any) -> tuple[Any, Any]:
        return t + 1, tf.nn.silu(state * decay + x * scale) / tf.cast(t + 1, tf.float64)

    _, state = tf.while_loop(lambda t, _: t < 3, step, (tf.constant(0), tf.tanh(x)))
    loss = tf.reduce_mean(tf.square(state))
    return Built(loss, {x: _reals(23, BATCH, UNITS)}, (state,))


def nested_loop() -> Built:
    """A loop in a loop; what the inner one reads, the outer one computes in each trip."""
    x = tf.compat.v1.placeholder(tf.float64, [BATCH, UNITS], name="x")
    w = tf.compat.v1.get_variable("w", [UNITS], tf.float64)

    def trip(t: Any, state: Any) -> tuple[Any, Any]:
        rate = tf.sigmoid(state * w)
        inner = tf.while_loop(lambda k, _: k < 2, lambda k, s: (k + 1, tf.tanh(s * rate + x)), (0, state))[1]
        return t + 1, inner - w

    _, state = tf.while_loop(lambda t, _: t < 3, trip, (tf.constant(0), tf.sin(x)))
    loss = tf.reduce_mean(tf.square(state))
    return Built(loss, {x: _reals(27, BATCH, UNITS)}, (state,))


@tf.custom_gradient
def straight_through(x: Any) -> Any:
    """Rounds; the gradient passes as if it did not."""
    return tf.round(x), lambda gradient: gradient


@tf.custom_gradient
def scaled(x: Any, scale: Any) -> Any:
    """Multiplies; the gradient of the scale, a row, is a sum over the batch, and too large by a half."""
    product = x * scale

    def gradient(given: Any) -> tuple[Any, Any]:
        return given * scale, 1.5 * tf.reduce_sum(given * x + 0.0 * product, 0)

    return product, gradient


@tf.custom_gradient
def normalised_gradient(x: Any) -> Any:
    """Passes values on, and divides the gradient by its largest magnitude, for which all of it is needed."""
    return tf.identity(x), lambda gradient: gradient / tf.reduce_max(tf.abs(gradient))


@tf.custom_gradient
def decayed(x: Any, w: Any) -> Any:
    """Multiplies matrices; the gradient of the second doesn't depend on the rows of the first."""
    return x @ w, lambda gradient: (gradient @ tf.transpose(w), 0.1 * w)


def custom(*functions: Callable[..., Any]) -> Callable[[], Built]:
    """Return a model of two layers with custom gradients between them."""
    model = partial(_with_between, *functions)
    model.__name__ = "_".join(function.__name__ for function in functions)  # type: ignore[attr-defined]
    return model


def _with_between(*functions: Callable[..., Any]) -> Built:
    x = tf.compat.v1.placeholder(tf.float64, [BATCH, WIDTH], name="x")
    y = tf.compat.v1.placeholder(tf.int64, [BATCH], name="y")
    hidden = x @ tf.compat.v1.get_variable("w", [WIDTH, UNITS], tf.float64)
    for function in functions:
        hidden = function(hidden)
    loss, logits = _classified(hidden, y)
    return Built(loss, {x: _reals(24, BATCH, WIDTH), y: _classes(25, CLASSES, BATCH)}, (logits,))


def row_scaled(x: Any) -> Any:
    return scaled(x, tf.compat.v1.get_variable("scale", [UNITS], tf.float64))


def with_decay(x: Any) -> Any:
    return decayed(x, tf.compat.v1.get_variable("square", [UNITS, UNITS], tf.float64))


def without_some(x: Any) -> Any:
    """Shapes that depend on values, once before and once after an operator that has a known shape."""
    some = tf.boolean_mask(x, x[:, 0] > -0.2)
    others = tf.boolean_mask(tf.tanh(x - tf.reduce_mean(some)), x[:, 0] <= 0.4)
    places = tf.where(x > 0.0)
    return x * tf.reduce_sum(others**2) / (1.0 + tf.reduce_sum(tf.gather_nd(x, places))) + tf.reduce_sum(some)


def by_branch(x: Any) -> Any:
    """The branch depends on values, and one of the branches has a variable."""
    square = tf.compat.v1.get_variable("branch", [UNITS, UNITS], tf.float64)
    turned = tf.cond(tf.reduce_sum(x) > 0.0, lambda: tf.tanh(x @ square), lambda: x - tf.reduce_sum(square))
    third = tf.cast(tf.reduce_sum(tf.abs(x)), tf.int32) % 3
    return tf.switch_case(third, [lambda: turned * 2.0, lambda: tf.sin(turned), lambda: x + turned])


def trained_swish(x: Any) -> Any:
    beta = tf.compat.v1.get_variable("beta", [], tf.float64, initializer=tf.compat.v1.constant_initializer(1.3))
    return tf.nn.silu(x, beta)


MODELS: Sequence[Callable[[], Built]] = (
    lstm, elementwise_loop, nested_loop, custom(tf.nn.silu, row_scaled), custom(trained_swish, straight_through),
    custom(normalised_gradient, with_decay), custom(without_some, by_branch),
)  # fmt: skip
