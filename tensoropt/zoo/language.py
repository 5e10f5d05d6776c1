"""Language models of today: BERT-large, GPT-3, LLaMA-3-8B."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from .layers import (
    DTYPE,
    attend,
    causal_mask,
    dense,
    gelu,
    layer_norm,
    mean_loss,
    model,
    ones,
    to_heads,
    v1,
    weights,
    words,
    zeros,
)


@model
def bert_large(
    batch: int = 256,
    length: int = 512,
    layers: int = 24,
    width: int = 1024,
    heads: int = 16,
    vocabulary: int = 30522,
    predictions: int = 76,
) -> tf.Tensor:
    """BERT-large in pre-training, 336 million parameters: masked words and next sentences, uncased vocabulary.

    Args:
        length: words per sample, at most which there are positions.
        predictions: masked words per sample, 15 % as published; their places are rows of [batch * length].
    """
    numbers, segments = words("words", batch, length), words("segments", batch, length)
    with v1.variable_scope("embedding"):
        table = weights("words", [vocabulary, width])
        x = tf.gather(table, numbers) + tf.gather(weights("segments", [2, width]), segments)
        x = tf.reshape(x + weights("positions", [length, width]), [batch * length, width])
        x = layer_norm(x, "norm", 1e-12)
    with v1.name_scope("mask"):
        mask = tf.cast(words("is_word", batch, length), DTYPE)
        bias = tf.reshape((1.0 - mask) * -10000.0, [batch, 1, 1, length])
    for number in range(layers):
        with v1.variable_scope(f"layer_{number + 1}"):
            q, k, v = (to_heads(dense(x, width, part), length, heads) for part in ("query", "key", "value"))
            x = layer_norm(x + dense(attend(q, k, v, bias=bias), width, "output"), "attention_norm", 1e-12)
            y = dense(gelu(dense(x, 4 * width, "up")), width, "down")
            x = layer_norm(x + y, "norm", 1e-12)
    with v1.variable_scope("masked_words"):
        places = v1.placeholder(tf.int32, [batch * predictions], name="places")
        y = layer_norm(gelu(dense(tf.gather(x, places), width, "transform")), "norm", 1e-12)
        logits = tf.nn.bias_add(tf.matmul(y, table, transpose_b=True), zeros("bias", vocabulary))
        loss = mean_loss(logits, v1.placeholder(tf.int32, [batch * predictions], name="labels"))
    with v1.variable_scope("next_sentence"):
        first = tf.reshape(x, [batch, length, width])[:, 0]
        logits = dense(tf.tanh(dense(first, width, "pooler")), 2, "logits")
        return loss + mean_loss(logits, v1.placeholder(tf.int32, [batch], name="labels"))


@model
def gpt3(
    batch: int = 1536, length: int = 2048, layers: int = 96, width: int = 12288, heads: int = 96, vocabulary: int = 50257
) -> tf.Tensor:
    """GPT-3's shape, 174.6 billion parameters; all layers attend densely. The batch has 3.1 million words, as published."""
    table = weights("embedding", [vocabulary, width])
    x = tf.gather(table, words("words", batch, length)) + weights("positions", [length, width])
    x, mask = tf.reshape(x, [batch * length, width]), causal_mask(length)
    for number in range(layers):
        with v1.variable_scope(f"layer_{number + 1}"):
            normal = layer_norm(x, "attention_norm")
            q, k, v = (to_heads(dense(normal, width, part), length, heads) for part in ("query", "key", "value"))
            x += dense(attend(q, k, v, mask), width, "output")
            x += dense(gelu(dense(layer_norm(x, "norm"), 4 * width, "up")), width, "down")
    logits = tf.matmul(layer_norm(x, "last_norm"), table, transpose_b=True)
    return mean_loss(logits, words("next_words", batch, length))


@model
def llama3_8b(
    batch: int = 64,
    length: int = 8192,
    layers: int = 32,
    width: int = 4096,
    heads: int = 32,
    key_heads: int = 8,
    inner: int = 14336,
    vocabulary: int = 128256,
) -> tf.Tensor:
    """LLaMA-3-8B's shape, 8.03 billion parameters: rotary positions, grouped queries, gated SiLU. The batch is open."""
    x = tf.gather(weights("embedding", [vocabulary, width]), words("words", batch, length))
    x, mask = tf.reshape(x, [batch * length, width]), causal_mask(length)
    depth = width // heads
    rotation = tuple(tf.constant(table[:, None], DTYPE) for table in _rotations(length, depth))
    for number in range(layers):
        with v1.variable_scope(f"layer_{number + 1}"):
            normal = _rms_norm(x, "attention_norm")
            q = to_heads(dense(normal, width, "query", use_bias=False), length, heads)
            k, v = (
                to_heads(dense(normal, key_heads * depth, part, use_bias=False), length, key_heads)
                for part in ("key", "value")
            )
            mixed = _attend_grouped(_rotated(q, rotation), _rotated(k, rotation), v, mask)
            x += dense(mixed, width, "output", use_bias=False)
            normal = _rms_norm(x, "norm")
            gate = dense(normal, inner, "gate", use_bias=False)
            up = dense(normal, inner, "up", use_bias=False)
            x += dense(gate * tf.sigmoid(gate) * up, width, "down", use_bias=False)
    logits = dense(_rms_norm(x, "last_norm"), vocabulary, "logits", use_bias=False)
    return mean_loss(logits, words("next_words", batch, length))


def _rms_norm(x: tf.Tensor, name: str) -> tf.Tensor:
    with v1.variable_scope(name):
        scale = tf.math.rsqrt(tf.reduce_mean(tf.square(x), -1, keepdims=True) + 1e-5)
        return x * scale * ones("gamma", x.shape[-1])


def _rotations(length: int, depth: int) -> tuple[np.ndarray, np.ndarray]:
    """Return cosine and sine of each position's angles, [length, depth], both halves of the depth alike."""
    angles = np.arange(length)[:, None] * 500000.0 ** -(np.arange(0, depth, 2) / depth)
    doubled = np.concatenate([angles, angles], axis=1)
    return np.cos(doubled), np.sin(doubled)


def _rotated(x: tf.Tensor, rotation: tuple[tf.Tensor, ...]) -> tf.Tensor:
    """Return the rotary position embedding of [batch, length, heads, depth]."""
    with v1.name_scope("rotary"):
        first, second = tf.split(x, 2, axis=-1)
        return x * rotation[0] + tf.concat([-second, first], -1) * rotation[1]


def _attend_grouped(q: tf.Tensor, k: tf.Tensor, v: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """Return attention in which groups of queries share a key and a value."""
    batch, length, heads, depth = q.shape
    groups = k.shape[2]
    q = tf.reshape(q * depth**-0.5, [batch, length, groups, heads // groups, depth])
    scores = tf.where(mask, tf.einsum("bqghd,bkgd->bghqk", q, k), -1e9)
    mixed = tf.einsum("bghqk,bkgd->bqghd", tf.nn.softmax(scores), v)
    return tf.reshape(mixed, [batch * length, heads * depth])
