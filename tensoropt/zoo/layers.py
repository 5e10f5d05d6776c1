"""Layers and placeholders that the models share.

Batches of sequences are matrices of [batch * length, width], batch-major. In two dimensions the products are plain
MatMul, and a split of the rows is a split of the batch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import ParamSpec

import tensorflow as tf

from ..common.errors import InputError

v1 = tf.compat.v1
Parameters = ParamSpec("Parameters")
DTYPE = tf.float32


def model(function: Callable[Parameters, tf.Tensor]) -> Callable[Parameters, tf.Tensor]:
    """Refuse to record where TensorFlow would compute at once."""

    @functools.wraps(function)
    def recorded(*args: Parameters.args, **kwargs: Parameters.kwargs) -> tf.Tensor:
        if tf.executing_eagerly():
            raise InputError(
                f"{function.__name__} of the zoo needs a graph to record into; call tensoropt.init() first, or enter a "
                "tf.Graph()"
            )
        return function(*args, **kwargs)

    return recorded


def weights(name: str, shape: Sequence[int]) -> tf.Variable:
    """Return a parameter with TensorFlow's default initializer."""
    return v1.get_variable(name, shape, DTYPE)


def zeros(name: str, width: int) -> tf.Variable:
    return v1.get_variable(name, [width], DTYPE, initializer=v1.zeros_initializer())


def ones(name: str, width: int) -> tf.Variable:
    return v1.get_variable(name, [width], DTYPE, initializer=v1.ones_initializer())


def images(batch: int, size: int, channels: int = 3) -> tuple[tf.Tensor, tf.Tensor]:
    """Return placeholders of square images, NHWC, and of their classes."""
    x = v1.placeholder(DTYPE, [batch, size, size, channels], name="images")
    return x, v1.placeholder(tf.int32, [batch], name="labels")


def words(name: str, batch: int, length: int) -> tf.Tensor:
    return v1.placeholder(tf.int32, [batch, length], name=name)


def dense(x: tf.Tensor, width: int, name: str, use_bias: bool = True) -> tf.Tensor:
    """Return a dense layer's result: [n, k] to [n, width]."""
    with v1.variable_scope(name):
        y = tf.matmul(x, weights("weights", [x.shape[1], width]))
        return tf.nn.bias_add(y, zeros("bias", width)) if use_bias else y


def convolution(
    x: tf.Tensor, kernel: int | Sequence[int], width: int, name: str, stride: int = 1, padding: str = "SAME"
) -> tf.Tensor:
    """Return a convolution without a bias, since a normalisation follows."""
    height, breadth = (kernel, kernel) if isinstance(kernel, int) else kernel
    with v1.variable_scope(name):
        return tf.nn.conv2d(x, weights("weights", [height, breadth, x.shape[-1], width]), stride, padding)


def batch_norm(x: tf.Tensor, name: str) -> tf.Tensor:
    """Return the batch normalisation by the batch's own statistics."""
    with v1.variable_scope(name):
        return v1.nn.fused_batch_norm(x, ones("gamma", x.shape[-1]), zeros("beta", x.shape[-1]), epsilon=1e-3)[0]


def normalised_convolution(
    x: tf.Tensor, kernel: int | Sequence[int], width: int, name: str, stride: int = 1, padding: str = "SAME"
) -> tf.Tensor:
    """Return convolution, batch normalisation and ReLU, one after the other."""
    with v1.variable_scope(name):
        return tf.nn.relu(batch_norm(convolution(x, kernel, width, "conv", stride, padding), "norm"))


def mean_loss(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Return the mean cross-entropy of rows of logits and classes of any shape."""
    with v1.name_scope("loss"):
        rows = tf.reshape(labels, [-1]) if labels.shape.rank != 1 else labels
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=rows, logits=logits))


def layer_norm(x: tf.Tensor, name: str, epsilon: float = 1e-6) -> tf.Tensor:
    """Return the layer normalisation of rows, in its elementary operators."""
    width = x.shape[-1]
    with v1.variable_scope(name):
        centred = x - tf.reduce_mean(x, -1, keepdims=True)
        variance = tf.reduce_mean(tf.square(centred), -1, keepdims=True)
        return centred * tf.math.rsqrt(variance + epsilon) * ones("gamma", width) + zeros("beta", width)


def gelu(x: tf.Tensor) -> tf.Tensor:
    """Return the GELU, by the error function."""
    return 0.5 * x * (1.0 + tf.math.erf(x * 0.5**0.5))


def to_heads(x: tf.Tensor, length: int, heads: int) -> tf.Tensor:
    """Reshape [batch * length, width] to [batch, length, heads, width / heads]."""
    return tf.reshape(x, [x.shape[0] // length, length, heads, x.shape[1] // heads])


def causal_mask(length: int) -> tf.Tensor:
    """Return bool[length, length], true where a position may look: at itself and back."""
    places = tf.range(length)
    return places[:, None] >= places


def attend(
    q: tf.Tensor, k: tf.Tensor, v: tf.Tensor, mask: tf.Tensor | None = None, bias: tf.Tensor | None = None
) -> tf.Tensor:
    """Return scaled dot-product attention of [batch, length, heads, depth], as rows of [batch * length, width].

    Args:
        mask: bool, true where a query may look at a key.
        bias: added to the scores.
    """
    batch, length, heads, depth = q.shape
    scores = tf.einsum("bqhd,bkhd->bhqk", q * depth**-0.5, k)
    if bias is not None:
        scores += bias
    if mask is not None:
        scores = tf.where(mask, scores, -1e9)
    mixed = tf.einsum("bhqk,bkhd->bqhd", tf.nn.softmax(scores), v)
    return tf.reshape(mixed, [batch * length, heads * depth])
