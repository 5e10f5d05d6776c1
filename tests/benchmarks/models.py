"""The models of the benchmarks, written once: ``tf`` is TensorFlow or TensorOpt, ``variable`` makes parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class BenchmarkModel:
    """``build(tf, variable, images, labels)`` returns the mean loss."""

    name: str
    image: tuple[int, int, int]
    classes: int
    build: Callable[..., Any]

    def batch(self, size: int) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(0)
        images = rng.normal(size=(size, *self.image)).astype(np.float32)
        return images, rng.integers(0, self.classes, size)


def _convolution(tf: Any, variable: Any, x: Any, name: str, width: int) -> Any:
    kernel = variable(f"{name}/kernel", [3, 3, int(x.shape[-1]), width])
    bias = variable(f"{name}/bias", [width])
    return tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(x, kernel, 1, "SAME"), bias))


def _dense(tf: Any, variable: Any, x: Any, name: str, width: int) -> Any:
    return tf.matmul(x, variable(f"{name}/weights", [int(x.shape[-1]), width])) + variable(f"{name}/bias", [width])


def _mean_cross_entropy(tf: Any, labels: Any, logits: Any) -> Any:
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))


def _digits(tf: Any, variable: Any, images: Any, labels: Any) -> Any:
    x = _convolution(tf, variable, images, "conv1", 32)
    x = _convolution(tf, variable, x, "conv2", 64)
    x = tf.nn.max_pool2d(x, 2, 2, "VALID")
    x = tf.reshape(x, [x.shape[0], 4 * 4 * 64])
    x = tf.nn.relu(_dense(tf, variable, x, "dense1", 256))
    return _mean_cross_entropy(tf, labels, _dense(tf, variable, x, "dense2", 10))


def _small_vgg(tf: Any, variable: Any, images: Any, labels: Any) -> Any:
    x = images
    for stage, width in enumerate((32, 64, 128)):
        x = _convolution(tf, variable, x, f"conv{stage}a", width)
        x = _convolution(tf, variable, x, f"conv{stage}b", width)
        x = tf.nn.max_pool2d(x, 2, 2, "VALID")
    x = tf.reshape(x, [x.shape[0], 4 * 4 * 128])
    x = tf.nn.relu(_dense(tf, variable, x, "dense1", 512))
    x = tf.nn.relu(_dense(tf, variable, x, "dense2", 512))
    return _mean_cross_entropy(tf, labels, _dense(tf, variable, x, "dense3", 100))


DIGITS = BenchmarkModel("digits CNN", (8, 8, 1), 10, _digits)
SMALL_VGG = BenchmarkModel("small VGG", (32, 32, 3), 100, _small_vgg)
MODELS = (DIGITS, SMALL_VGG)
