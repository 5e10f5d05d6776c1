"""The models of the suite, by name: each with batches, first values, and what plain TensorFlow makes of it on one device."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial

import composite.models
import numpy as np
import tensorflow as tf
from accumulate import models as sliced
from helpers import zoo
from optimizers.models import lookups
from pipeline.test_branches import siamese, two_towers
from zoo.small import SMALL

import tensoropt.zoo

BATCH = 8
FLOAT32, FLOAT64 = 5e-5, 1e-10
"""Tolerances. In float32 a statistic is a sum of 150 numbers, which another order of adding may change by 9e-6; after three
steps 60 strategies were off by 1.5e-5 at most in a variable (a bias, whose gradient nearly cancels)."""
WITHOUT_ADAM = ("sgd", "momentum", "nesterov")


@dataclass(frozen=True)
class Entry:
    """A model.

    Attributes:
        in_micro_batches: the numbers of micro-batches that its batch can be taken in; all others are refused.
        optimizers: those it is trained by: not by Adam where a gradient is zero but for rounding (of a key's bias), of which
            Adam makes a step of full length.
        most_stages: how many stages there may be.
        most_copies: how many times a step may be built at most: for each device and micro-batch.
    """

    function: Callable[[], zoo.Built]
    in_micro_batches: tuple[int, ...] = ()
    optimizers: tuple[str, ...] = tuple(zoo.HYPERPARAMETERS)
    tolerance: float = FLOAT64
    most_copies: int = 24
    most_stages: int = 4


def drawing() -> zoo.Built:
    """Places mixed under a causal mask, dropout from a key and from a state, and rows added up by class."""
    api, rng = tf.compat.v1, np.random.default_rng(3)
    tokens = api.placeholder(tf.int32, [6, 5], name="tokens")
    seed = api.placeholder(tf.int64, [2], name="seed")
    table = api.get_variable("table", [7, 6], tf.float64)
    w = api.get_variable("w", [6, 9], tf.float64)
    # Not a constant, so that the mask isn't folded.
    scores = api.get_variable("scores", [5, 5], tf.float64)
    embedded = tf.nn.experimental.stateless_dropout(tf.gather(table, tokens), 0.3, seed=seed)
    places = tf.linalg.band_part(tf.exp(scores), -1, 0)
    mixed = tf.einsum("qk,...kd->...qd", places / tf.reduce_sum(places, -1, keepdims=True), embedded)
    hidden = tf.nn.dropout(tf.tanh(mixed + 0.1 * tf.random.normal([6, 5, 6], dtype=tf.float64, seed=4)), 0.4, seed=5)
    values, _ = tf.math.top_k(hidden @ w, 4)
    by_class = tf.math.unsorted_segment_sum(tf.reduce_sum(tf.reverse(values, [1]), -1), tokens[:, 0], 7)
    loss = tf.reduce_mean(tf.square(by_class - 0.5))
    batches = tuple(rng.integers(0, 7, (6, 5)).astype(np.int32) for _ in range(zoo.N_BATCHES))
    seeds = tuple(np.array([1, step]) for step in range(zoo.N_BATCHES))
    return zoo.Built(loss, {tokens: batches, seed: seeds}, ())


def adversarial() -> zoo.Built:
    """Two training steps, whose losses share layers; both train the first, and one looks up rows of a table."""
    api, rng = tf.compat.v1, np.random.default_rng(5)
    x, words = api.placeholder(tf.float64, [BATCH, 6], name="x"), api.placeholder(tf.int32, [BATCH], name="words")
    table = api.get_variable("table", [9, 6], tf.float64)
    w, v, u = (api.get_variable(name, [6, 6], tf.float64) for name in "wvu")
    hidden = tf.tanh(x @ w)
    made = tf.tanh(hidden @ v + tf.gather(table, words))
    first = tf.reduce_mean(tf.square(tf.tanh(made @ u) @ w)) + 0.1 * tf.reduce_sum(tf.square(w))
    second = tf.reduce_mean(tf.square(made - x)) + 0.1 * tf.reduce_sum(tf.square(v))
    batches = {x: tuple(rng.normal(size=(BATCH, 6)) for _ in range(zoo.N_BATCHES))}
    batches[words] = tuple(rng.integers(0, 9, BATCH).astype(np.int32) for _ in range(zoo.N_BATCHES))
    steps = ((first, (w, u)), (second, (w, v, table)))
    return zoo.Built(first, batches, (second,), steps=steps)


@contextmanager
def _in_float64() -> Iterator[None]:
    """Have the zoo record in float64."""
    # The package has functions of the names of some modules.
    modules = [importlib.import_module(f"tensoropt.zoo.{name}") for name in ("layers", "language", "transformer")]
    before = [module.DTYPE for module in modules]
    try:
        for module in modules:
            module.DTYPE = tf.float64
        yield
    finally:
        for module, dtype in zip(modules, before, strict=True):
            module.DTYPE = dtype


def small_of_zoo(name: str) -> zoo.Built:
    """Record one of the zoo's models at small sizes, in float64."""
    with _in_float64():
        loss = tensoropt.zoo.find(name)(**{**SMALL[name], "batch": BATCH})
    inputs = {}
    for op in loss.graph.get_operations():
        if op.type == "Placeholder":
            tensor, drawn = op.outputs[0], [np.random.default_rng([17, step]) for step in range(zoo.N_BATCHES)]
            shape, dtype = tensor.shape.as_list(), tensor.dtype
            values = [rng.integers(0, 2, shape) if dtype.is_integer else rng.normal(size=shape) for rng in drawn]
            inputs[tensor] = tuple(value.astype(dtype.as_numpy_dtype) for value in values)
    return zoo.Built(loss, inputs, (loss,))


OF_SEVEN, OF_THREE, OF_EIGHT, OF_SIX = (7,), (3,), (2, 4, 8), (2, 3, 6)
"""The numbers of micro-batches that batches of so many samples can be taken in."""
COMPOSITES_AT_ONCE = ("normalised_gradient_with_decay", "without_some_by_branch")
NORMALISED = ("wide_resnet", "resnet101", "inception_v3")
"""Models of the zoo that TensorFlow has no float64 for: their batch normalisation is one operator."""

MODELS: Mapping[str, Entry] = {
    "mlp": Entry(zoo.mlp, OF_SEVEN),
    **{function.__name__: Entry(function, OF_THREE) for function in (zoo.attention, zoo.windows, lookups)},
    **{function.__name__: Entry(function) for function in (zoo.cnn, zoo.broadcasting, zoo.fourier, drawing)},
    "fused_cnn": Entry(zoo.fused_cnn, tolerance=FLOAT32),  # TensorFlow's one operator is of float32
    **{f"{name} of 8": Entry(function, OF_EIGHT) for name, function in sliced.FUNCTIONS.items()},
    **{function.__name__: Entry(function, OF_EIGHT) for function in (siamese, two_towers)},
    **{
        each.__name__: Entry(
            each, () if each.__name__ in COMPOSITES_AT_ONCE else OF_SIX, most_copies=6 if each.__name__ == "lstm" else 24
        )
        for each in composite.models.MODELS
    },
    **{
        name: Entry(partial(small_of_zoo, name), () if name == "bert_large" else OF_EIGHT, WITHOUT_ADAM, most_copies=6)
        for name in SMALL
        if name not in NORMALISED
    },
    "adversarial": Entry(adversarial, OF_EIGHT),
}


@cache
def recorded(name: str, optimizer: str) -> zoo.Recorded:
    return zoo.record(MODELS[name].function, optimizer)
