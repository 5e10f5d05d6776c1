"""Time a step of ``fit`` beside plain Keras, on one rank: what the trainer, its data and its metrics add.

    TF_NUM_INTRAOP_THREADS=1 python tests/benchmarks/fit.py

A small model, so that little of a step is arithmetic. Epochs of both alternate; times are per step.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf
from harness import alternate, ratio
from tabulate import tabulate

import tensoropt

BATCH = 32
WIDTHS = (784, 64, 64, 10)


def data(n_steps: int) -> tf.data.Dataset:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n_steps * BATCH, WIDTHS[0])).astype(np.float32)
    y = rng.integers(0, WIDTHS[-1], len(x))
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH, drop_remainder=True)


def model() -> keras.Model:
    layers = [keras.layers.Dense(width, "relu") for width in WIDTHS[1:-1]]
    return keras.Sequential([keras.Input((WIDTHS[0],)), *layers, keras.layers.Dense(WIDTHS[-1])])


def epoch_of(trained: keras.Model, train: tf.data.Dataset) -> Callable[[], object]:
    return lambda: trained.fit(train, epochs=1, verbose=0, shuffle=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300, help="per epoch (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    train = data(arguments.steps)
    loss, metrics = keras.losses.SparseCategoricalCrossentropy(from_logits=True), ["accuracy"]
    ours = tensoropt.parallelize(model(), "adam", loss, metrics, BATCH, cluster="v100-1x1")
    plain = model()
    plain.compile("adam", loss, metrics=metrics, jit_compile=False)
    timed, reference = alternate([epoch_of(ours, train), epoch_of(plain, train)], arguments.rounds)
    per_step = [each.divided(arguments.steps) for each in (timed, reference)]
    rows = [["fit, per step", *map(str, per_step), ratio(timed, reference)]]
    print(tabulate(rows, ["", "TensorOpt, one rank", "plain Keras", "ratio (quartiles)"]))


if __name__ == "__main__":
    main()
