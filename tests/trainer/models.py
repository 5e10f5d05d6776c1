"""A small Keras model for the trainer's tests, the data it learns, and what plain Keras makes of them on one device."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tensoropt

BATCH = 8
CLASSES = 5
METRICS = ["accuracy"]


def loss() -> keras.losses.Loss:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def images(n: int = 26, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Images with labels; 26 are three batches of 8 and two samples."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 6, 6, 2)).astype(np.float32), rng.integers(0, CLASSES, n)


def batches(n: int = 26, size: int = BATCH) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(images(n)).batch(size)


def samples_after(how: str) -> int:
    """How many samples the ranks that read data of their own evaluate; with a smaller last batch where nothing is split."""
    return 26 if how == "unsplit" else 16


def shuffled() -> tf.data.Dataset:
    """Five batches, in another order each epoch."""
    return tf.data.Dataset.from_tensor_slices(images(40)).shuffle(40, seed=5).batch(BATCH)


def network(units: int = 8) -> keras.Model:
    """Convolution, moving averages, dense layers; the same first values each time."""
    keras.utils.set_random_seed(3)
    inputs = keras.Input((6, 6, 2))
    x = keras.layers.Conv2D(4, 3, padding="same", use_bias=False)(inputs)
    x = keras.layers.BatchNormalization(momentum=0.8)(x)
    x = keras.layers.Flatten()(keras.layers.Activation("relu")(x))
    return keras.Model(inputs, keras.layers.Dense(CLASSES)(keras.layers.Dense(units, activation="tanh")(x)))


def parallelized(model: keras.Model | None = None, optimizer: Any = None, n_ranks: int = 4, **options: Any) -> Any:
    """A trainer whose ranks all run in this process."""
    optimizer = optimizer or keras.optimizers.Adam(1e-2)
    where = {"collectives": "emulated", "parallelism": n_ranks, "cluster": "v100-1x4"}
    given = {"loss": loss(), "metrics": METRICS, "batch_size": BATCH, **where, **options}
    return tensoropt.parallelize(model or network(), optimizer, **given)


def restart(trainer: Any) -> Any:
    """Return a trainer as it was when this was first called, for which it is read."""
    first = vars(trainer.ranks).setdefault("first_values", {})
    trainer.ranks.execution.engine.initialize()  # what only the ranks have
    for key, live in trainer.ranks.lives.items():
        if live.variable is not None:
            live.variable.assign(first.setdefault(key, live.variable.numpy()))
    return trainer


def plain(optimizer: Any = None) -> keras.Model:
    """The same model, to be trained by Keras itself."""
    model = network()
    model.compile(optimizer or keras.optimizers.Adam(1e-2), loss(), metrics=METRICS, jit_compile=False)
    return model


def _state(model: keras.Model) -> list[keras.Variable]:
    return [*model.variables, *model.optimizer.variables]


@cache
def _made(make: Callable[[], keras.Model], floatx: str) -> tuple[keras.Model, list[np.ndarray]]:
    model = make()
    model.optimizer.build(model.trainable_variables)
    return model, [variable.numpy() for variable in _state(model)]


def fresh_plain(make: Callable[[], keras.Model] = plain) -> keras.Model:
    """A compiled model as it was before its first step: it is the same one each time, traced once, which takes seconds."""
    model, values = _made(make, keras.config.floatx())
    for variable, value in zip(_state(model), values, strict=True):
        variable.assign(value)
    model._initial_epoch = None
    return model


def assert_same_history(got: keras.callbacks.History, expected: keras.callbacks.History, tolerance: float = 1e-5) -> None:
    assert list(got.history) == list(expected.history) and got.epoch == expected.epoch
    for name, values in expected.history.items():
        np.testing.assert_allclose(got.history[name], values, rtol=tolerance, atol=tolerance, err_msg=name)


def assert_same_weights(
    got: list[np.ndarray], expected: list[np.ndarray], tolerance: float = 1e-5, absolute: float | None = None
) -> None:
    """Assert that all are close, by the relative tolerance or, where a number is small, by the absolute one."""
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance if absolute is None else absolute)


def assert_alike(got: Any, expected: Any) -> None:
    """Assert that structures of numbers are those of one device, in float64."""
    assert_same_weights(*map(tf.nest.flatten, (got, expected)), 1e-9, 1e-12)
