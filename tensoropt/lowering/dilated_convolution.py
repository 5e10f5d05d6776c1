"""Lower dilated convolutions where TensorFlow's CPU kernels have no gradients of them.

It is done as in ``tf.nn.convolution``: every d-th row and column becomes a batch of its own, over which plain windows slide.
Rows are filled in until d divides their number, and the results that stem from them are cut off. How many these are depends
on the rank's shard, so that it is computed where the graph runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ..ir.graph import Operator
from .own_gradient import Gradients, with_own_gradient

_TYPES = {"Conv2D": "NHWC", "DepthwiseConv2dNative": "NHWC", "Conv3D": "NDHWC"}


def is_dilated(op: Operator) -> bool:
    """Return whether an operator is a dilated convolution of a kind that :func:`convolved` supports."""
    if op.type not in _TYPES or op.attrs["data_format"] != _TYPES[op.type]:
        return False
    return set(op.attrs["strides"]) == {1} and set(op.attrs["dilations"]) != {1}


def convolved(op: Operator, image: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
    """Emit the convolution. The backward pass makes the batches from the image again, so that no copy of it is saved."""

    def gradient(tensors: Sequence[tf.Tensor], result_gradients: Gradients) -> Gradients:
        """Emit the gradients of image and kernel, from batches that are made again."""
        _, image, kernel = tensors
        return [None, *tf.gradients(_over_batches(op, image, kernel), [image, kernel], result_gradients[0])]

    return with_own_gradient([_over_batches(op, image, kernel), image, kernel], gradient, op.name)[0]


def _over_batches(op: Operator, image: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
    """Emit the convolution as a plain one over batches of every d-th row and column."""
    rates: Sequence[int] = op.attrs["dilations"][1:-1]
    before, after = (tf.constant(rows, tf.int32) for rows in zip(*_paddings(op, rates), strict=True))
    filler = tf.math.floormod(-(tf.shape(image)[1:-1] + before + after), rates)
    batches = tf.space_to_batch(image, rates, tf.stack([before, after + filler], axis=1))
    options: dict[str, Any] = {"strides": op.attrs["strides"], "padding": "VALID", "data_format": op.attrs["data_format"]}
    result = getattr(tf.raw_ops, op.type)(input=batches, filter=kernel, **options)
    return tf.batch_to_space(result, rates, tf.stack([tf.zeros_like(filler), filler], axis=1))


def _paddings(op: Operator, rates: Sequence[int]) -> list[tuple[int, int]]:
    """Return, for each spatial dimension, the number of rows of padding before and after."""
    explicit = op.attrs.get("explicit_paddings") or []
    if op.attrs["padding"] == "EXPLICIT":
        return list(zip(explicit[2:-2:2], explicit[3:-2:2], strict=True))
    _, (_, kernel) = op.operands
    spans = [(size - 1) * rate * (op.attrs["padding"] == "SAME") for size, rate in zip(kernel.shape, rates, strict=False)]
    return [(span // 2, span - span // 2) for span in spans]
