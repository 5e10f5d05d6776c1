"""Clip gradients by norms that were completed over all shards, in Keras's and TensorFlow's arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import tensorflow as tf

from .copies import KerasBase
from .sparse import Gradient, over_values


def clip(optimizer: KerasBase, gradients: Sequence[Gradient], squares: Sequence[tf.Tensor]) -> list[Gradient]:
    """Return gradients clipped by norm.

    Args:
        optimizer: has the limit: ``clipnorm`` for each gradient, or else ``global_clipnorm`` for all together.
        squares: for each gradient the sum of squares over all of its shards; for ``global_clipnorm`` one sum over all
            gradients.
    """
    if optimizer.clipnorm:
        limit = optimizer.clipnorm
        return [
            over_values(partial(_by_norm, squares=each, limit=limit), gradient)
            for gradient, each in zip(gradients, squares, strict=True)
        ]
    (total,) = squares
    # Gradients of rows become dense here, as in Keras.
    dense = [tf.convert_to_tensor(gradient) for gradient in gradients]
    return [gradient * _scale(tf.sqrt(tf.cast(total, gradient.dtype)), optimizer.global_clipnorm) for gradient in dense]


def _by_norm(gradient: tf.Tensor, squares: tf.Tensor, limit: float) -> tf.Tensor:
    """Return a gradient clipped to a norm of ``limit``, in the arithmetic of ``tf.clip_by_norm``."""
    # The selection of squares above zero is that of tf.clip_by_norm.
    squares = tf.cast(squares, gradient.dtype)
    norm = tf.where(squares > 0, tf.sqrt(tf.where(squares > 0, squares, tf.ones_like(squares))), squares)
    # A Python number takes the gradient's type as it is; tf.cast would round it to float32 first.
    return gradient * limit / tf.maximum(norm, limit)


def _scale(norm: tf.Tensor, limit: float) -> tf.Tensor:
    """Return the factor that clips gradients with a global norm of ``norm`` to ``limit``."""
    # A norm that isn't finite makes all gradients not a number, as in Keras.
    return limit * tf.minimum(1.0 / norm, 1.0 / limit) + (norm - norm)
