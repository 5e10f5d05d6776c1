"""Transformers and recurrent networks of Keras layers, at any size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf
from keras import layers

DROPPED = 0.1


@dataclass(frozen=True)
class Size:
    """Attributes:
    width: of the stream between layers; it divides by ``heads``.
    depth: layers (in an encoder and a decoder each).
    """

    length: int
    vocabulary: int
    width: int
    depth: int
    heads: int

    @property
    def head(self) -> int:
        return self.width // self.heads


class Places(layers.Layer):
    """Adds a trained vector for each place of a sequence."""

    supports_masking = True

    def build(self, input_shape: Any) -> None:
        self.table = self.add_weight(shape=input_shape[1:], initializer="normal", name="table")

    def call(self, x: Any) -> Any:
        return x + self.table


def _feed_forward(x: Any, size: Size) -> Any:
    hidden = layers.Dense(4 * size.width, activation="gelu")(x)
    return layers.Dropout(DROPPED)(layers.Dense(size.width)(hidden))


def _embedded(words: Any, size: Size, **options: Any) -> Any:
    return Places()(layers.Embedding(size.vocabulary, size.width, **options)(words))


def bert(size: Size) -> keras.Model:
    """An encoder as in BERT: words of two kinds of segments, padding masked, one class for a sequence by its first word."""
    words = keras.Input((size.length,), dtype="int32", name="words")
    segments = keras.Input((size.length,), dtype="int32", name="segments")
    x = _embedded(words, size, mask_zero=True) + layers.Embedding(2, size.width)(segments)
    x = layers.Dropout(DROPPED)(layers.LayerNormalization(epsilon=1e-12)(x))
    for _ in range(size.depth):
        attended = layers.MultiHeadAttention(size.heads, size.head, dropout=DROPPED)(x, x)
        x = layers.LayerNormalization(epsilon=1e-12)(x + layers.Dropout(DROPPED)(attended))
        x = layers.LayerNormalization(epsilon=1e-12)(x + _feed_forward(x, size))
    pooled = layers.Dense(size.width, activation="tanh")(x[:, 0])
    return keras.Model([words, segments], layers.Dense(2)(pooled), name="bert")


class Mixing(layers.Layer):
    """The real part of a Fourier transform over places and features."""

    def call(self, x: Any) -> Any:
        numbers = tf.complex64 if x.dtype == tf.float32 else tf.complex128
        return tf.math.real(tf.signal.fft2d(tf.cast(x, numbers)))


def fnet(size: Size) -> keras.Model:
    """An encoder as in FNet, which mixes words by Fourier transforms instead of attention; says a word for each."""
    words = keras.Input((size.length,), dtype="int32", name="words")
    x = _embedded(words, size)
    for _ in range(size.depth):
        x = layers.LayerNormalization()(x + Mixing()(x))
        x = layers.LayerNormalization()(x + _feed_forward(x, size))
    return keras.Model(words, layers.Dense(size.vocabulary)(x), name="fnet")


def gpt(size: Size, tied: bool = True) -> keras.Model:
    """A decoder as in GPT, with two queries to a key; the output's weights are the embedding's, or its own."""
    words = keras.Input((size.length,), dtype="int32", name="words")
    table = layers.ReversibleEmbedding(size.vocabulary, size.width, tie_weights=tied)
    x = Places()(table(words))
    for _ in range(size.depth):
        normal = layers.LayerNormalization()(x)
        attention = layers.GroupQueryAttention(size.head, size.heads, size.heads // 2, dropout=DROPPED)
        x = x + attention(normal, normal, use_causal_mask=True)
        x = x + _feed_forward(layers.LayerNormalization()(x), size)
    return keras.Model(words, table(layers.LayerNormalization()(x), reverse=True), name="gpt")


def vit(image: int, patch: int, size: Size, classes: int) -> keras.Model:
    """A vision Transformer: patches by a strided convolution, the mean of all places classified."""
    images = keras.Input((image, image, 3))
    x = layers.Conv2D(size.width, patch, patch)(layers.Rescaling(1 / 255)(images))
    x = Places()(layers.Reshape(((image // patch) ** 2, size.width))(x))
    for _ in range(size.depth):
        normal = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(size.heads, size.head)(normal, normal)
        x = x + _feed_forward(layers.LayerNormalization()(x), size)
    pooled = layers.GlobalAveragePooling1D()(layers.LayerNormalization()(x))
    return keras.Model(images, layers.Dense(classes)(pooled), name="vit")


def encoder_decoder(size: Size) -> keras.Model:
    """Translates: the decoder attends to its own words so far, and to all of the encoder's, save padding."""
    source = keras.Input((size.length,), dtype="int32", name="source")
    target = keras.Input((size.length,), dtype="int32", name="target")

    def attended(x: Any, to: Any, causal: bool = False) -> Any:
        attention = layers.MultiHeadAttention(size.heads, size.head, dropout=DROPPED)
        return layers.LayerNormalization()(x + attention(x, to, use_causal_mask=causal))

    encoded = _embedded(source, size, mask_zero=True)
    for _ in range(size.depth):
        encoded = attended(encoded, encoded)
        encoded = layers.LayerNormalization()(encoded + _feed_forward(encoded, size))
    x = _embedded(target, size)
    for _ in range(size.depth):
        x = attended(attended(x, x, causal=True), encoded)
        x = layers.LayerNormalization()(x + _feed_forward(x, size))
    return keras.Model([source, target], layers.Dense(size.vocabulary)(x), name="encoder_decoder")


def lstm(size: Size) -> keras.Model:
    """A language model of stacked LSTMs, each a loop over time."""
    words = keras.Input((size.length,), dtype="int32", name="words")
    x = layers.Embedding(size.vocabulary, size.width)(words)
    for _ in range(size.depth):
        x = layers.Dropout(DROPPED)(layers.LSTM(size.width, return_sequences=True)(x))
    return keras.Model(words, layers.Dense(size.vocabulary)(x), name="lstm")


def gru(size: Size, unroll: bool = False) -> keras.Model:
    """A class for each word by GRUs that read from both ends; loops, or a layer for each place."""
    words = keras.Input((size.length,), dtype="int32", name="words")
    x = layers.Embedding(size.vocabulary, size.width)(words)
    for _ in range(size.depth):
        x = layers.Bidirectional(layers.GRU(size.width, return_sequences=True, unroll=unroll))(x)
    return keras.Model(words, layers.Dense(size.vocabulary)(x), name="gru")
