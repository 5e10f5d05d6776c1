"""Clipping by norms that were completed over all pieces, in Keras's and TensorFlow's arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import tensorflow as tf

from .copies import KerasBase
from .sparse import Gradient, over_values


def clip(optimizer: KerasBase, gradients: Sequence[Gradient], squares: Sequence[tf.Tensor]) -> list[Gradient]:
    """Gradients clipped by norm.

    Args:
        squares: per gradient the sum of squares over all of its pieces; for ``global_clipnorm`` one sum over all gradients.
    """
    if optimizer.clipnorm:
        limit = optimizer.clipnorm
        return [
            over_values(partial(_by_norm, squares=each, limit=limit), gradient)
            for gradient, each in zip(gradients, squares, strict=True)
        ]
    (total,) = squares
    # Rows become a whole gradient here, as in Keras.
    dense = [tf.convert_to_tensor(gradient) for gradient in gradients]
    return [gradient * _scale(tf.sqrt(tf.cast(total, gradient.dtype)), optimizer.global_clipnorm) for gradient in dense]


def _by_norm(gradient: tf.Tensor, squares: tf.Tensor, limit: float) -> tf.Tensor:
    # As tf.clip_by_norm.
    squares = tf.cast(squares, gradient.dtype)
    norm = tf.where(squares > 0, tf.sqrt(tf.where(squares > 0, squares, tf.ones_like(squares))), squares)
    # A Python number takes the gradient's type as it is; tf.cast would round it to float32 first.
    return gradient * limit / tf.maximum(norm, limit)


def _scale(norm: tf.Tensor, limit: float) -> tf.Tensor:
    # A norm that isn't finite makes everything not a number, as in Keras.
    return limit * tf.minimum(1.0 / norm, 1.0 / limit) + (norm - norm)
