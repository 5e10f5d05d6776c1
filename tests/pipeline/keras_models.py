"""Small Keras models that are cut into stages, and the data they learn."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

BATCH, WORDS = 16, 60


def network() -> keras.Model:
    """A tied table, a penalty, normalisation and dropout."""
    keras.utils.set_random_seed(3)
    words = keras.Input((5,), dtype="int32", name="words")
    table = keras.layers.ReversibleEmbedding(WORDS, 12, name="table")
    x = keras.layers.GlobalAveragePooling1D()(table(words))
    for _ in range(2):
        y = keras.layers.Dense(12, activation="silu", kernel_regularizer=keras.regularizers.L2(0.01))(x)
        x = keras.layers.LayerNormalization()(keras.layers.Dropout(0.25)(y) + x)
    return keras.Model(words, table(x, reverse=True))


def normalised_network() -> keras.Model:
    """Convolutions with batch normalisation, which trains its moving statistics."""
    keras.utils.set_random_seed(4)
    images = keras.Input((6, 6, 2), name="images")
    x = images
    for width in (3, 4):
        x = keras.layers.Conv2D(width, 3, padding="same", use_bias=False)(x)
        x = keras.layers.ReLU()(keras.layers.BatchNormalization(momentum=0.8)(x))
    return keras.Model(images, keras.layers.Dense(5)(keras.layers.GlobalAveragePooling2D()(x)))


def scaling(optimizer: keras.optimizers.Optimizer | None = None) -> keras.optimizers.Optimizer:
    """Return an optimizer that scales the loss, from the third step on by more."""
    inner = optimizer or keras.optimizers.AdamW(1e-2, global_clipnorm=0.1)
    return keras.optimizers.LossScaleOptimizer(inner, initial_scale=8.0, dynamic_growth_steps=2)


def compiled(optimizer: Any = None) -> dict[str, Any]:
    return {
        "optimizer": optimizer or keras.optimizers.AdamW(1e-2, global_clipnorm=0.1),
        "loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        "metrics": ["accuracy"],
    }


def data(n: int = 24) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.integers(0, WORDS, (n, 5)), rng.integers(0, WORDS, n)


def images(n: int = 24) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    return rng.normal(1.0, 2.0, (n, 6, 6, 2)), rng.integers(0, 5, n)
