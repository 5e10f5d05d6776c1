"""Train, evaluate and predict with a layer that prints, in two stages; then have its assertion fail."""

from __future__ import annotations

import sys

import keras
import numpy as np
import tensorflow as tf

import tensoropt
from tensoropt.runtime.ranks import current_processes


class Shown(keras.layers.Layer):
    """Prints the mean of what it is given."""

    def call(self, x: tf.Tensor) -> tf.Tensor:
        tf.print("mean", tf.strings.as_string(tf.reduce_mean(x)), output_stream=self.stream)
        tf.debugging.assert_less(x, tf.constant(100.0, x.dtype), "too large")
        return x


def run(stream: object, is_planned: bool) -> None:
    keras.utils.clear_session()
    keras.utils.set_random_seed(1)
    Shown.stream = stream
    layers = [Shown(), keras.layers.Dense(6, "tanh"), Shown(), keras.layers.Dense(2)]
    model = keras.Sequential([keras.Input((4,), dtype="float64"), *layers])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    if is_planned:
        model = tensoropt.parallelize(model, batch_size=8, stages=2, micro_batches=2)
    x = np.random.default_rng(0).normal(size=(20, 4))
    model.fit(x, x[:, :2], batch_size=8, verbose=0, shuffle=False)
    model.evaluate(x, x[:, :2], batch_size=8, verbose=0)
    model.predict(x[:8] + 1.0, batch_size=8, verbose=0)
    if is_planned:
        model.predict(np.full((8, 4), 1e3), batch_size=8, verbose=0)


keras.config.set_floatx("float64")
if current_processes().rank == 0:
    run(sys.stdout, False)
run(sys.stderr, True)
