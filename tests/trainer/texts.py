"""A model that takes raw columns: text, words, whole numbers and amounts, with all of Keras's layers that prepare such."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

BATCH = 7  # not a multiple of the number of ranks
WORDS = np.array(["ant", "bee", "cat", "dog", "eel", "fox"])


def columns(n: int = 3 * BATCH - 2, seed: int = 0) -> tuple[dict[str, Any], np.ndarray]:
    rng = np.random.default_rng(seed)
    texts = [" ".join(WORDS[rng.integers(0, 6, rng.integers(1, 7))]) + "!" for _ in range(n)]
    given = {
        "amount": rng.normal(size=(n, 2)), "code": rng.integers(0, 12, (n, 1)), "text": tf.constant(texts),
        "word": tf.constant(WORDS[rng.integers(0, 6, (n, 1))]),
    }  # fmt: skip
    return given, rng.normal(size=(n, 1))


def model() -> keras.Model:
    """The same first values each time, in float64."""
    keras.utils.set_random_seed(5)
    given, _ = columns()
    layers, inputs = keras.layers, {
        "amount": keras.Input((2,), name="amount", dtype="float64"),
        "code": keras.Input((1,), name="code", dtype="int64"),
        "text": keras.Input((), name="text", dtype="string"),
        "word": keras.Input((1,), name="word", dtype="string"),
    }
    in_order = layers.TextVectorization(output_sequence_length=5)
    weighted = layers.TextVectorization(output_mode="tf_idf")
    bigrams = layers.TextVectorization(ngrams=2, output_mode="multi_hot", max_tokens=9, pad_to_max_tokens=True)
    for layer in (in_order, weighted, bigrams):
        layer.adapt(given["text"])
    known = layers.StringLookup(vocabulary=list(WORDS[:4]), num_oov_indices=2)(inputs["word"])
    normal = layers.Normalization(dtype="float64")
    normal.adapt(given["amount"])
    crossed = layers.HashedCrossing(11, output_mode="one_hot")((inputs["word"], inputs["code"]))
    coarse = layers.Discretization(bin_boundaries=[-0.5, 0.0, 0.5])(inputs["amount"])
    parts = [
        layers.GlobalAveragePooling1D(dtype="float64")(layers.Embedding(9, 4, dtype="float64")(in_order(inputs["text"]))),
        layers.Flatten()(layers.Embedding(7, 3, dtype="float64")(known)),
        weighted(inputs["text"]),
        bigrams(inputs["text"]),
        layers.IntegerLookup(vocabulary=[2, 3, 5, 7], output_mode="one_hot", mask_token=0)(inputs["code"]),
        layers.StringLookup(vocabulary=list(WORDS), output_mode="multi_hot", num_oov_indices=0)(inputs["word"]),
        layers.Flatten()(layers.Embedding(5, 2, dtype="float64")(layers.Hashing(5, salt=3)(inputs["word"]))),
        layers.CategoryEncoding(12, output_mode="one_hot")(inputs["code"]),
        layers.CategoryEncoding(4, output_mode="count")(coarse),
        crossed,
        normal(inputs["amount"]),
    ]
    x = layers.Concatenate(dtype="float64")(parts)
    return keras.Model(inputs, layers.Dense(1, dtype="float64")(layers.Dense(6, "tanh", dtype="float64")(x)))


def plain() -> keras.Model:
    made = model()
    made.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=False)
    return made


def batches(n: int = 3 * BATCH - 2) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(columns(n)).batch(BATCH)
