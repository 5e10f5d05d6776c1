"""Residual networks: ResNet-101 and the wide network of TensorOpt's Table 1."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from .layers import batch_norm, convolution, dense, images, mean_loss, model, normalised_convolution, v1


@model
def resnet101(
    batch: int = 256, image: int = 224, blocks: Sequence[int] = (3, 4, 23, 3), width: int = 64, classes: int = 1000
) -> tf.Tensor:
    """ResNet-101, 44.5 million parameters; the stride of a block is in its 3 x 3 convolution."""
    x, labels = images(batch, image)
    x = tf.nn.max_pool2d(normalised_convolution(x, 7, width, "stem", 2), 3, 2, "SAME")
    for stage, n_blocks in enumerate(blocks):
        for block in range(n_blocks):
            stride = 2 if stage and not block else 1
            x = _bottleneck(x, width << stage, stride, f"block_{stage + 1}_{block + 1}")
    return mean_loss(dense(tf.reduce_mean(x, [1, 2]), classes, "logits"), labels)


def _bottleneck(x: tf.Tensor, width: int, stride: int, name: str) -> tf.Tensor:
    """Return 1 x 1, 3 x 3, 1 x 1 to four times the width, and a shortcut that is convolved where shapes differ."""
    with v1.variable_scope(name):
        y = normalised_convolution(x, 1, width, "first")
        y = normalised_convolution(y, 3, width, "second", stride)
        y = batch_norm(convolution(y, 1, 4 * width, "third"), "third_norm")
        if x.shape != y.shape:
            x = batch_norm(convolution(x, 1, 4 * width, "shortcut", stride), "shortcut_norm")
        return tf.nn.relu(x + y)


@model
def wide_resnet(
    batch: int = 256, image: int = 32, depth: int = 28, widening: int = 71, width: int = 16, classes: int = 10
) -> tf.Tensor:
    """WRN-28-71, 7.3 GB: Zagoruyko and Komodakis's network for images of 32 x 32 (WRN-28-10 is their best known).

    TensorOpt's Table 1 gives the parameters, 7.3 GB, and 83 GB of peak memory at a batch of 256, and leaves depth and
    widening open: 28 is the authors' own depth, and 71 the widening with that many bytes. Wide networks on images of
    224 x 224 with these parameters would keep several times as much.

    Args:
        depth: 6 n + 4, with n blocks of two convolutions in each of three stages.
        width: of the first convolution; the stages have widening times 1, 2 and 4 of it.
    """
    x, labels = images(batch, image)
    x = convolution(x, 3, width, "stem")
    for stage in range(3):
        for block in range((depth - 4) // 6):
            stride = 2 if stage and not block else 1
            x = _basic(x, width * widening << stage, stride, f"block_{stage + 1}_{block + 1}")
    x = tf.reduce_mean(tf.nn.relu(batch_norm(x, "last_norm")), [1, 2])
    return mean_loss(dense(x, classes, "logits"), labels)


def _basic(x: tf.Tensor, width: int, stride: int, name: str) -> tf.Tensor:
    """Return a basic block: normalisation and ReLU come before each of two convolutions, and before a convolved shortcut."""
    with v1.variable_scope(name):
        active = tf.nn.relu(batch_norm(x, "norm"))
        y = normalised_convolution(active, 3, width, "first", stride)
        y = convolution(y, 3, width, "second")
        shortcut = x if x.shape == y.shape else convolution(active, 1, width, "shortcut", stride)
        return shortcut + y
