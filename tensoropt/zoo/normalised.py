"""A convolution with batch normalisation, which the residual networks and Inception share."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from .layers import ones, v1, weights, zeros


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
