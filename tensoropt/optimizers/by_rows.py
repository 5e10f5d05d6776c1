"""Update tables by the rows of their gradients, for the optimizers of Keras's whose updates leave other rows alone."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from keras import ops

from .copies import KerasBase, Parameter


class AdagradByRows(keras.optimizers.Adagrad):
    """Keras's Adagrad, which takes roots of the accumulator's rows at the rows of a gradient alone, and not everywhere."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Update a parameter and its accumulator by a gradient, as Keras does."""
        if not isinstance(gradient, tf.IndexedSlices):
            super().update_step(gradient, variable, learning_rate)
            return
        rate, gradient = ops.cast(learning_rate, variable.dtype), ops.cast(gradient, variable.dtype)
        accumulator = self._accumulators[self._get_variable_index(variable)]
        self.assign_add(accumulator, ops.square(gradient))
        scale = ops.sqrt(ops.add(tf.gather(accumulator.value, gradient.indices), self.epsilon))
        step = ops.divide(ops.multiply(rate, gradient.values), scale)
        self.assign_sub(variable, tf.IndexedSlices(step, gradient.indices, gradient.dense_shape))


def leaves_rows(optimizer: KerasBase, parameter: Parameter) -> bool:
    """Return whether an update by a gradient of rows changes these rows alone, and makes nothing of the parameter's shape.

    Weight decay, averages, constraints and accumulation go through all rows.
    """
    is_by_rows = type(optimizer) is keras.optimizers.Adagrad or (
        type(optimizer) is keras.optimizers.SGD and not optimizer.momentum
    )
    decays = optimizer.weight_decay is not None and parameter.decays
    goes_through_all = decays or optimizer.use_ema or optimizer.gradient_accumulation_steps or parameter.constraint
    return is_by_rows and not goes_through_all
