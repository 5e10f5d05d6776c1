"""Lower means and extremes over split dimensions, batch normalisation in training where the batch is split, and softmax and
cross-entropies over split classes: a maximum and a sum are completed over all classes midway.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import tensorflow as tf

from ...ir.graph import Operator
from ...rules.reduction import reduced_dimensions
from ...sharding.micro_batches import N_MICRO_BATCHES
from ..localise import opaque
from ..operators import Job, Values, emit_plain, lowering
from .lookups import in_range


@lowering("Mean", always=True)
def mean(job: Job, operands: Sequence[Values]) -> list[Values]:
    """Emit the local sum over the global count: the mean of blocks' means would be wrong where blocks differ in size."""
    dimensions = reduced_dimensions(job.op)
    operand = job.op.operand(0)
    n_micro_batches = int(job.op.attrs.get(N_MICRO_BATCHES, 1))
    count = n_micro_batches * math.prod(operand.shape[dimension] for dimension in dimensions)
    if n_micro_batches == 1 and not any(job.layout(0).splits[dimension] for dimension in dimensions):
        return emit_plain(job, operands)
    keep_dims = bool(job.op.attrs["keep_dims"])
    return [[tf.reduce_sum(x, dimensions, keep_dims) / tf.cast(count, x.dtype) for x in operands[0]]]


@lowering("Max", "Min")
def extremum(job: Job, operands: Sequence[Values]) -> list[Values]:
    """Emit a maximum or minimum as a partial sum, so that equal elements share the gradient as they do on one device."""
    sign = -1 if job.op.type == "Min" else 1
    dimensions = reduced_dimensions(job.op)
    keep_dims = bool(job.op.attrs["keep_dims"])
    signed = [x if sign > 0 else -x for x in operands[0]]
    peaks = job.complete(0, [tf.stop_gradient(tf.reduce_max(x, dimensions, keepdims=True)) for x in signed])
    # Not a number isn't less than anything, and is the result then, as on one device.
    hits = [tf.logical_not(x < peak) for x, peak in zip(signed, peaks, strict=True)]
    local_counts = [tf.reduce_sum(tf.cast(hit, x.dtype), dimensions, True) for hit, x in zip(hits, signed, strict=True)]
    counts = job.complete(1, local_counts)
    return [
        [
            tf.reduce_sum(tf.where(hit, x / count, tf.zeros_like(x)), dimensions, keep_dims)
            for hit, x, count in zip(hits, operands[0], counts, strict=True)
        ]
    ]


@lowering("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3")
def fused_batch_norm(job: Job, operands: Sequence[Values]) -> list[Values]:
    """Emit batch normalisation in training with the statistics of the global batch."""
    op = job.op
    image = op.operand(0)
    channel = 1 if op.attrs["data_format"] == "NCHW" else 3
    reduced = [i for i in range(4) if i != channel]
    count = image.mem_bytes // image.item_bytes // image.shape[channel]
    images, scales, offsets = operands[0], operands[1], operands[2]
    broadcast = [1, 1, 1, 1]
    broadcast[channel] = -1
    precise = [tf.cast(x, scales[0].dtype) for x in images]

    def statistic(k: int, values: Values) -> Values:
        """Return the mean of values over the global batch, per channel; the k-th resharding completes the sum."""
        return [total / count for total in job.complete(k, [tf.reduce_sum(x, reduced) for x in values])]

    means = statistic(0, precise)
    means_of_channels = [tf.reshape(mean, broadcast) for mean in means]
    with job.rematerialized_with(0):
        centred = [x - mean for x, mean in zip(precise, means_of_channels, strict=True)]
    variances = statistic(1, [tf.square(x) for x in centred])
    results: list[Values] = [[] for _ in op.outputs]
    for x, scale, offset, mean, variance, original, old_mean, old_variance in zip(
        centred, scales, offsets, means, variances, images, operands[3], operands[4], strict=True
    ):
        factor = tf.math.rsqrt(variance + op.attrs["epsilon"]) * scale
        normal = x * tf.reshape(factor, broadcast) + tf.reshape(offset, broadcast)
        unbiased = variance * (count / max(count - 1, 1))
        averages = [_averaged(op, old_mean, mean), _averaged(op, old_variance, unbiased), mean, variance]
        # The sixth result is a buffer that a GPU kernel saves for its backward pass; nothing reads it here.
        averages += [tf.zeros([0], scale.dtype)] * (len(op.outputs) - 1 - len(averages))
        # TensorFlow's gradient of this operator is that of the first result alone.
        values = [tf.cast(normal, original.dtype), *map(tf.stop_gradient, averages)]
        for result, value in zip(results, values, strict=True):
            result.append(value)
    return results


def _averaged(op: Operator, old: tf.Tensor, new: tf.Tensor) -> tf.Tensor:
    """Return the running average of a statistic if the operator is configured to compute one, else the new value."""
    weight = op.attrs["exponential_avg_factor"]
    return new if weight == 1 else (1 - weight) * old + weight * new


def _exponentials(job: Job, logits: Values) -> tuple[Values, Values, Values]:
    """Return the shifted logits, their exponentials, and the sum of the exponentials over all classes, which are split."""
    peaks = job.complete(0, [tf.stop_gradient(tf.reduce_max(x, -1, keepdims=True)) for x in logits])
    shifted = [x - tf.stop_gradient(peak) for x, peak in zip(logits, peaks, strict=True)]
    exponentials = [tf.exp(x) for x in shifted]
    totals = job.complete(1, [tf.reduce_sum(e, -1, keepdims=True) for e in exponentials])
    return shifted, exponentials, totals


@lowering("Softmax")
def softmax(job: Job, operands: Sequence[Values]) -> list[Values]:
    """Emit a softmax over split classes."""
    _, exponentials, totals = _exponentials(job, operands[0])
    return [[e / total for e, total in zip(exponentials, totals, strict=True)]]


@lowering("LogSoftmax")
def log_softmax(job: Job, operands: Sequence[Values]) -> list[Values]:
    """Emit the logarithm of a softmax over split classes."""
    shifted, _, totals = _exponentials(job, operands[0])
    return [[x - tf.math.log(total) for x, total in zip(shifted, totals, strict=True)]]


@lowering("SoftmaxCrossEntropyWithLogits")
def cross_entropy(job: Job, operands: Sequence[Values]) -> list[Values]:
    """Emit cross-entropies and their gradients over split classes.

    The loss's gradient equals that of TensorFlow's operator, which assumes that labels add up to 1, whether they do or not.
    The sum of all exponentials therefore enters with weight 1 instead of the labels' sum: as a zero that has a gradient, on
    the first of the ranks that split the classes.
    """
    logits, labels = operands
    shifted, exponentials, totals = _exponentials(job, logits)
    axes = job.config.axes_of("c")
    losses, gradients = [], []
    for rank, x, e, total, label in zip(job.ranks, shifted, exponentials, totals, labels, strict=True):
        log_total = tf.math.log(total)
        is_first = opaque(int(job.config.mesh.index_along(axes, rank) == 0), x.dtype)
        zero = tf.squeeze(log_total - tf.stop_gradient(log_total), -1) * is_first
        losses.append(tf.reduce_sum(label * (tf.stop_gradient(log_total) - x), -1) + zero)
        gradients.append(e / total - tf.stop_gradient(label))
    return [losses, gradients]


@lowering("SparseSoftmaxCrossEntropyWithLogits")
def sparse_cross_entropy(job: Job, operands: Sequence[Values]) -> list[Values]:
    """Emit cross-entropies and their gradients over split classes, for labels that are class indices.

    Each rank computes the loss of the labels that are among its own classes: a partial result. As few tensors as possible of
    the logits' size are made: they take most of a language model's memory.
    """
    logits, labels = operands
    shifted, exponentials, totals = _exponentials(job, logits)
    layout, shape = job.layout(0), job.op.operand(0).shape
    losses, gradients = [], []
    for rank, x, e, total, label in zip(job.ranks, shifted, exponentials, totals, labels, strict=True):
        label = in_range(job, label, shape[-1])
        first = opaque(layout.bounds(shape, rank)[-1][0], label.dtype)
        is_own = tf.equal(tf.expand_dims(label - first, -1), tf.range(tf.shape(x, label.dtype)[-1], dtype=label.dtype))
        # By selection and not by multiplication: infinity times zero is not a number.
        logit = tf.reduce_sum(tf.where(is_own, x, tf.zeros((), x.dtype)), -1)
        loss = tf.math.log(tf.squeeze(total, -1)) - logit
        losses.append(tf.where(tf.reduce_any(is_own, -1), loss, tf.zeros((), x.dtype)))
        gradients.append(e / total - tf.cast(is_own, e.dtype))
    return [losses, gradients]
