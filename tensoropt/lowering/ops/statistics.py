"""Lower means and extremes over split dimensions, and batch normalisation in training where the batch is split."""

from __future__ import annotations

import math
from collections.abc import Sequence

import tensorflow as tf

from ...ir.graph import Operator
from ...rules.reduction import reduced_dimensions
from ...sharding.micro_batches import N_MICRO_BATCHES
from ..operators import Job, Values, emit_plain, lowering


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
