"""The models of the cases in ``keras_cases.py``, each with what it is compiled with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tensoropt

BATCH, WIDTH, CLASSES = 8, 5, 3
LAYERS = keras.layers


def sgd() -> keras.optimizers.Optimizer:
    return keras.optimizers.SGD(0.1, momentum=0.5)


@dataclass(frozen=True)
class Kind:
    """A model, made with the same first values each time, and what it is compiled with.

    Attributes:
        make: makes the model.
        compiled: makes the arguments of ``compile`` other than the optimizer, since metrics are objects with a state.
        own: makes arguments of ``compile`` that ``parallelize`` doesn't have: the model is compiled ahead of it.
    """

    make: Callable[[], keras.Model]
    compiled: Callable[[], dict[str, Any]]
    optimizer: Callable[[], keras.optimizers.Optimizer] = sgd
    own: dict[str, Any] = field(default_factory=dict)

    def made(self) -> keras.Model:
        keras.utils.set_random_seed(3)
        return self.make()

    def plain(self) -> keras.Model:
        """The model, to be trained by Keras itself."""
        model = self.made()
        model.compile(self.optimizer(), **self.compiled(), **{"jit_compile": False, **self.own})
        return model

    def trainer(self, **options: Any) -> Any:
        """The trainer of the model."""
        if self.own:
            return tensoropt.parallelize(self.plain(), batch_size=BATCH, **options)
        return tensoropt.parallelize(self.made(), self.optimizer(), **self.compiled(), batch_size=BATCH, **options)


def of_classes() -> keras.Model:
    return keras.Sequential(
        [keras.Input((WIDTH,)),
         LAYERS.Dense(8, "tanh", name="first"),
         LAYERS.Dropout(0.25, name="dropout"),
         LAYERS.BatchNormalization(momentum=0.8, name="normalization"),
         LAYERS.Dense(CLASSES, name="last")],
        name="of_classes",
    )  # fmt: skip


def by_name() -> keras.Model:
    left, right = keras.Input((WIDTH,), name="left"), keras.Input((2,), name="right")
    x = LAYERS.Dense(6, "tanh")(LAYERS.Concatenate()([left, right]))
    results = {"number": LAYERS.Dense(2, name="number")(x), "class": LAYERS.Dense(CLASSES, name="class")(x)}
    return keras.Model({"left": left, "right": right}, results, name="by_name")


def in_order() -> keras.Model:
    left, right = keras.Input((WIDTH,)), keras.Input((2,))
    x = LAYERS.Dense(6, "tanh")(LAYERS.Concatenate()([left, right]))
    results = [LAYERS.Dense(width, name=name)(x) for name, width in (("a", 2), ("b", 4), ("c", 2))]
    return keras.Model([left, right], results, name="in_order")


def regularized() -> keras.Model:
    layers = [LAYERS.Dense(6, "tanh", kernel_regularizer="l2"), LAYERS.ActivityRegularization(l2=0.1), LAYERS.Dense(1)]
    return keras.Sequential([keras.Input((WIDTH,)), *layers], name="regularized")


class AlwaysDropped(LAYERS.Layer):
    """Drops when it predicts, too, so that each prediction is another."""

    def __init__(self) -> None:
        super().__init__()
        self.seeds = keras.random.SeedGenerator(7)

    def call(self, x: Any) -> Any:
        return keras.random.dropout(x, 0.5, seed=self.seeds)


def always_random() -> keras.Model:
    return keras.Sequential([keras.Input((WIDTH,)), LAYERS.Dense(8), AlwaysDropped(), LAYERS.Dense(1)], name="regularized")


class Stepping(keras.Model):
    """A model with a training step of its own."""

    def __init__(self) -> None:
        super().__init__(name="regularized")
        self.first, self.dropout, self.last = LAYERS.Dense(6, "tanh"), LAYERS.Dropout(0.25, seed=2), LAYERS.Dense(1)

    def call(self, x: Any, training: bool | None = None) -> Any:
        return self.last(self.dropout(self.first(x), training=training))

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return {"loss": loss}


def stepping() -> keras.Model:
    model = Stepping()
    model(np.zeros((1, WIDTH)))
    return model


class Counting(keras.Model):
    """A model with weights in which callbacks count, and inputs in a structure."""

    def __init__(self) -> None:
        super().__init__(name="counting")
        self.train_counter = self.add_weight(shape=(), initializer="zeros", trainable=False, name="train_counter")
        self.test_counter = self.add_weight(shape=(), initializer="zeros", trainable=False, name="test_counter")
        self.left, self.right = LAYERS.Dense(4, name="left"), LAYERS.Dense(4, name="right")

    def call(self, x: Any, training: bool | None = None) -> Any:
        first, second = x["both"]
        return self.left(first) + self.right(second) * x["factor"]


def counting() -> keras.Model:
    model = Counting()
    model({"both": (np.zeros((1, WIDTH)), np.zeros((1, 2))), "factor": np.zeros((1, 1))})
    return model


def of_steps() -> keras.Model:
    layers = [LAYERS.Reshape((WIDTH, 1)), LAYERS.LSTM(4, return_sequences=True), LAYERS.Dense(CLASSES)]
    return keras.Sequential([keras.Input((WIDTH,)), *layers], name="of_steps")


class Spread(keras.metrics.Metric):
    """The largest result yet and the number of batches: a metric that is no mean."""

    def __init__(self, name: str = "spread") -> None:
        super().__init__(name=name)
        self.largest = self.add_variable((), "zeros", name="largest")
        self.n_batches = self.add_variable((), "zeros", name="n_batches")

    def update_state(self, y: Any, predicted: Any, sample_weight: Any = None) -> None:
        self.largest.assign(keras.ops.maximum(self.largest, keras.ops.max(predicted)))
        self.n_batches.assign_add(1.0)

    def result(self) -> Any:
        return {"largest": self.largest + 0.0, "n_batches": self.n_batches + 0.0}


def worst(y: Any, predicted: Any) -> Any:
    return keras.ops.max(keras.ops.abs(y - predicted), axis=-1)


def _classes() -> dict[str, Any]:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    weighted = [keras.metrics.SparseCategoricalAccuracy(name="weighed")]
    return {"loss": loss, "metrics": ["accuracy"], "weighted_metrics": weighted}


def _by_name() -> dict[str, Any]:
    loss = {"number": "mse", "class": keras.losses.SparseCategoricalCrossentropy(from_logits=True)}
    weighted = {"number": ["mse"], "class": ["accuracy"]}
    of_losses, metrics = {"number": 0.5, "class": 2.0}, {"number": ["mae"]}
    return {"loss": loss, "loss_weights": of_losses, "metrics": metrics, "weighted_metrics": weighted}


def _in_order() -> dict[str, Any]:
    return {"loss": ["mse", keras.losses.Huber(), "mae"], "loss_weights": [0.1, 0.2, 3.0], "metrics": [["mae"], [worst], []]}


def _of_bits() -> dict[str, Any]:
    area = keras.metrics.AUC(num_thresholds=20, from_logits=True, name="auc")
    metrics = [area, keras.metrics.Precision(name="precision"), Spread(), worst]
    return {"loss": keras.losses.BinaryCrossentropy(from_logits=True), "loss_weights": 0.2, "metrics": metrics}


def averaged() -> keras.optimizers.Optimizer:
    return keras.optimizers.Adam(0.01, use_ema=True, ema_momentum=0.5)


def scaled() -> keras.optimizers.Optimizer:
    return keras.optimizers.LossScaleOptimizer(sgd(), initial_scale=8.0, dynamic_growth_steps=2)


_MADE: list[keras.optimizers.Optimizer] = []


def falling() -> keras.optimizers.Optimizer:
    _MADE.append(keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5), 0.5))
    return _MADE[-1]


def accumulating() -> keras.optimizers.Optimizer:
    _MADE.append(keras.optimizers.Adam(0.01, gradient_accumulation_steps=2))
    return _MADE[-1]


def _of_optimizer() -> dict[str, Any]:
    """A loss and metrics that read the optimizer, which was made just before."""
    optimizer = _MADE[-1]

    def annealed(y: Any, predicted: Any) -> Any:
        return keras.ops.square(y - predicted) / (1.0 + keras.ops.cast(optimizer.iterations, predicted.dtype))

    def rate(y: Any, predicted: Any) -> Any:
        return keras.ops.cast(optimizer.learning_rate, predicted.dtype)

    def updates(y: Any, predicted: Any) -> Any:
        return keras.ops.cast(optimizer.iterations, predicted.dtype)

    return {"loss": annealed, "metrics": [rate, updates]}


KINDS = {
    "a rate that falls": Kind(regularized, _of_optimizer, falling),
    "a rate that is set": Kind(regularized, _of_optimizer, accumulating),
    "classes": Kind(of_classes, _classes, lambda: keras.optimizers.Adam(0.01)),
    "by name": Kind(by_name, _by_name),
    "by name, eager": Kind(by_name, _by_name, own={"run_eagerly": True}),
    "in order": Kind(in_order, _in_order),
    "bits": Kind(regularized, _of_bits),
    "averages": Kind(of_classes, _classes, averaged),
    "loss scale": Kind(of_classes, _classes, scaled),
    "decay": Kind(of_classes, _classes, lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1, global_clipnorm=0.5)),
    "Nadam": Kind(of_classes, _classes, lambda: keras.optimizers.Nadam(0.01)),
    "Lamb": Kind(of_classes, _classes, lambda: keras.optimizers.Lamb(0.01, weight_decay=0.1)),
    "accumulated": Kind(of_classes, _classes, lambda: keras.optimizers.AdamW(0.01, 0.1, gradient_accumulation_steps=2)),
    "own step": Kind(stepping, lambda: {"loss": "mse"}, lambda: keras.optimizers.AdamW(0.01, 0.1), {"run_eagerly": False}),
    "eager": Kind(of_classes, _classes, own={"run_eagerly": True}),
    "several steps": Kind(of_classes, _classes, own={"steps_per_execution": 2}),
    "compiled by XLA": Kind(regularized, lambda: {"loss": "mse", "metrics": ["mae"]}, own={"jit_compile": True}),
    "scales by itself": Kind(of_classes, _classes, own={"auto_scale_loss": True}),
    "always random": Kind(always_random, lambda: {"loss": "mse"}),
    "counting": Kind(counting, lambda: {"loss": "mse"}),
    "steps": Kind(of_steps, _classes),
    "no loss": Kind(regularized, lambda: {"loss": None}),
    "results without a loss": Kind(in_order, lambda: {"loss": ["mse", None, None]}),
}

_RNG = np.random.default_rng(5)
N = 28
"""Samples: three batches, and half of one."""
X, X2 = _RNG.normal(size=(N, WIDTH)), _RNG.normal(size=(N, 2))
Y, BITS = _RNG.integers(0, CLASSES, N), _RNG.integers(0, 2, (N, 1)).astype(float)
STEPS, OF_STEPS = _RNG.integers(0, CLASSES, (N, WIDTH)), _RNG.uniform(0.5, 2.0, (N, WIDTH))
STRUCTURE = {"both": (X, X2), "factor": X2[:, :1]}
NUMBERS, FOUR, WEIGHTS = _RNG.normal(size=(N, 2)), _RNG.normal(size=(N, 4)), _RNG.uniform(0.5, 2.0, N)
