"""The Transformer of Vaswani et al., encoder and decoder, in the two sizes of TensorOpt's paper."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from .layers import DTYPE, attend, causal_mask, dense, layer_norm, mean_loss, model, to_heads, v1, weights, words


@model
def transformer(
    batch: int = 256,
    length: int = 64,
    layers: int = 6,
    width: int = 3712,
    heads: int = 16,
    inner: int | None = None,
    vocabulary: int = 32768,
) -> tf.Tensor:
    """The Transformer of TensorOpt's Table 1, 9.7 GB.

    The paper gives the bytes, the batch, and 74 GB of peak memory. Layers and heads are those of Vaswani et al.; the width
    is the one with these bytes; sentences of 64 words come near the memory.

    Args:
        layers: of the encoder, and as many of the decoder.
        inner: width inside of the feed-forward networks, four times the width by default.
        vocabulary: shared by both languages, and tied to the output.
    """
    inner = inner or 4 * width
    table = weights("embedding", [vocabulary, width])
    positions = tf.constant(_sinusoids(length, width), DTYPE)

    def embedded(name: str) -> tf.Tensor:
        with v1.name_scope(name):
            rows = tf.gather(table, words(name, batch, length)) * float(np.sqrt(width)) + positions
            return tf.reshape(rows, [batch * length, width])

    x = embedded("source_words")
    for number in range(layers):
        with v1.variable_scope(f"encoder_{number + 1}"):
            x = _attended(x, x, length, heads, None, "attention")
            x = _fed_forward(x, inner)
    y, mask = embedded("target_words"), causal_mask(length)
    for number in range(layers):
        with v1.variable_scope(f"decoder_{number + 1}"):
            y = _attended(y, y, length, heads, mask, "attention")
            y = _attended(y, x, length, heads, None, "cross_attention")
            y = _fed_forward(y, inner)
    return mean_loss(tf.matmul(y, table, transpose_b=True), words("next_words", batch, length))


@model
def transformer_s(
    batch: int = 256,
    length: int = 64,
    layers: int = 6,
    width: int = 2576,
    heads: int = 16,
    inner: int | None = None,
    vocabulary: int = 32768,
) -> tf.Tensor:
    """Transformer-S of TensorOpt's Table 4, 4.8 GB: narrower, as the paper's Figure 7 (a) varies the size."""
    return transformer(batch, length, layers, width, heads, inner, vocabulary)


def _sinusoids(length: int, width: int) -> np.ndarray:
    """Return positions as sines in the first half of the width and cosines in the second."""
    frequencies = 10000.0 ** -(np.arange(width // 2) / max(1, width // 2 - 1))
    angles = np.arange(length)[:, None] * frequencies
    return np.concatenate([np.sin(angles), np.cos(angles), np.zeros((length, width % 2))], axis=1)


def _attended(x: tf.Tensor, memory: tf.Tensor, length: int, heads: int, mask: tf.Tensor | None, name: str) -> tf.Tensor:
    """Return the attention of x to the memory, with its residual edge and normalisation."""
    width = x.shape[1]
    with v1.variable_scope(name):
        q = dense(x, width, "query", use_bias=False)
        k, v = (to_heads(dense(memory, width, part, use_bias=False), length, heads) for part in ("key", "value"))
        mixed = attend(to_heads(q, length, heads), k, v, mask)
        return layer_norm(x + dense(mixed, width, "output", use_bias=False), "norm")


def _fed_forward(x: tf.Tensor, inner: int) -> tf.Tensor:
    with v1.variable_scope("feed_forward"):
        y = dense(tf.nn.relu(dense(x, inner, "up")), x.shape[1], "down")
        return layer_norm(x + y, "norm")
