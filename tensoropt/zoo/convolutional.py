"""Plain convolutional networks: LeNet-5, AlexNet, VGG16."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from .layers import dense, images, mean_loss, model, v1, weights, zeros


def _convolved(x: tf.Tensor, kernel: int, width: int, name: str, stride: int = 1, padding: str = "SAME") -> tf.Tensor:
    with v1.variable_scope(name):
        filters = weights("weights", [kernel, kernel, x.shape[-1], width])
        return tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(x, filters, stride, padding), zeros("bias", width)))


def _classified(x: tf.Tensor, hidden: Sequence[int], classes: int, labels: tf.Tensor) -> tf.Tensor:
    x = tf.reshape(x, [x.shape[0], x.shape[1] * x.shape[2] * x.shape[3]])
    for number, width in enumerate(hidden, 1):
        x = tf.nn.relu(dense(x, width, f"dense_{number}"))
    return mean_loss(dense(x, classes, "logits"), labels)


@model
def lenet5(
    batch: int = 256, image: int = 28, widths: Sequence[int] = (6, 16), hidden: Sequence[int] = (120, 84), classes: int = 10
) -> tf.Tensor:
    """LeNet-5 for handwritten digits of 28 x 28, 61,706 parameters: the CNN that FlexFlow searches exhaustively."""
    x, labels = images(batch, image, 1)
    for number, (width, padding) in enumerate(zip(widths, ("SAME", "VALID"), strict=True), 1):
        x = tf.nn.max_pool2d(_convolved(x, 5, width, f"conv_{number}", padding=padding), 2, 2, "VALID")
    return _classified(x, hidden, classes, labels)


@model
def alexnet(
    batch: int = 256,
    image: int = 227,
    widths: Sequence[int] = (96, 256, 384, 384, 256),
    hidden: Sequence[int] = (4096, 4096),
    classes: int = 1000,
) -> tf.Tensor:
    """AlexNet in one tower, 62.4 million parameters; without the local response normalisation, as is usual since."""
    x, labels = images(batch, image)
    kernels, strides, pooled = (11, 5, 3, 3, 3), (4, 1, 1, 1, 1), (True, True, False, False, True)
    for number, (kernel, width, stride, pool) in enumerate(zip(kernels, widths, strides, pooled, strict=True), 1):
        x = _convolved(x, kernel, width, f"conv_{number}", stride, "VALID" if number == 1 else "SAME")
        if pool:
            x = tf.nn.max_pool2d(x, 3, 2, "VALID")
    return _classified(x, hidden, classes, labels)


@model
def vgg16(
    batch: int = 256,
    image: int = 224,
    widths: Sequence[int] = (64, 128, 256, 512, 512),
    hidden: Sequence[int] = (4096, 4096),
    classes: int = 1000,
) -> tf.Tensor:
    """VGG16, 138.4 million parameters: 0.553 GB, or the 0.52 GiB of TensorOpt's Table 1."""
    x, labels = images(batch, image)
    for block, (n_layers, width) in enumerate(zip((2, 2, 3, 3, 3), widths, strict=True), 1):
        for layer in range(1, n_layers + 1):
            x = _convolved(x, 3, width, f"conv_{block}_{layer}")
        x = tf.nn.max_pool2d(x, 2, 2, "VALID")
    return _classified(x, hidden, classes, labels)
