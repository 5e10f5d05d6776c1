"""Tell which element types carry gradients: TensorFlow is asked, so that gradients are followed here as they are there."""

from __future__ import annotations

import tensorflow as tf

# The function that ``tf.gradients`` and ``tf.GradientTape`` ask.
from tensorflow.python.eager.backprop_util import IsTrainable


def carries_gradient(dtype: str | tf.DType) -> bool:
    """Return whether gradients pass through tensors of a type: floating-point and complex numbers, and handles."""
    return bool(IsTrainable(tf.as_dtype(dtype)))
