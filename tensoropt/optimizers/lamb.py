"""Run LAMB on shards: Keras's update, with its two norms for each parameter taken over all shards.

The norms depend on what the update itself computes, the decayed parameter and Adam's direction, and the update may be inside
of a condition, where no collective may be. So both are computed ahead of the update, without changing any variable, and the
update then uses the ratio of the completed norms.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from .sparse import Gradient, over_values


class LambOnShards(keras.optimizers.Lamb):
    """Keras's LAMB, with ratios that are given.

    Attributes:
        ratios: by a parameter's index, the norm of the parameter over that of its direction; set while an update is emitted.
    """

    ratios: Mapping[int, tf.Tensor]

    def direction(self, gradient: Gradient, variable: Any) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Return the two moments after a step, and the direction of the step.

        In a gradient of rows, a row that occurs twice is squared twice and then summed, as in Keras.
        """
        index, dtype = self._get_variable_index(variable), variable.dtype
        gradient = over_values(lambda values: tf.cast(values, dtype), gradient)
        squares = tf.convert_to_tensor(over_values(tf.square, gradient))
        step = tf.cast(self.iterations + 1, dtype)
        m, v = self._momentums[index].value, self._velocities[index].value
        m = m + (tf.convert_to_tensor(gradient) - m) * (1 - self.beta_1)
        v = v + (squares - v) * (1 - self.beta_2)
        m_hat = m / (1.0 - tf.pow(keras.ops.cast(self.beta_1, dtype), step))
        v_hat = v / (1.0 - tf.pow(keras.ops.cast(self.beta_2, dtype), step))
        return m, v, m_hat / (tf.sqrt(v_hat) + self.epsilon)

    def decayed(self, variable: tf.Variable) -> tf.Tensor:
        """Return the parameter after weight decay, as the update will find it."""
        if self.weight_decay is None or not self._use_weight_decay(variable):
            return variable.read_value()
        rate, decay = tf.cast(self.learning_rate, variable.dtype), keras.ops.cast(self.weight_decay, variable.dtype)
        return variable - variable * decay * rate

    def update_step(self, gradient: Gradient, variable: Any, learning_rate: Any) -> None:
        """Update a parameter and its moments, with the ratio that was given."""
        index = self._get_variable_index(variable)
        m, v, direction = self.direction(gradient, variable)
        self.assign(self._momentums[index], m)
        self.assign(self._velocities[index], v)
        rate = tf.cast(learning_rate, variable.dtype)
        self.assign_sub(variable, tf.cast(self.ratios[index], variable.dtype) * rate * direction)


def ratio_of(parameter_squares: tf.Tensor, direction_squares: tf.Tensor) -> tf.Tensor:
    """Return the ratio of two norms, given their squares; 1 where either is zero."""
    are_positive = tf.logical_and(parameter_squares > 0, direction_squares > 0)
    return tf.where(are_positive, tf.sqrt(parameter_squares) / tf.sqrt(direction_squares), tf.ones_like(parameter_squares))
