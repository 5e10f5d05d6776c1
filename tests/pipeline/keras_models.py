"""A small Keras model that is cut into stages, and the data it learns."""

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


def compiled(optimizer: Any = None) -> dict[str, Any]:
    return {
        "optimizer": optimizer or keras.optimizers.AdamW(1e-2, global_clipnorm=0.1),
        "loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        "metrics": ["accuracy"],
    }


def data(n: int = 24) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.integers(0, WORDS, (n, 5)), rng.integers(0, WORDS, n)
