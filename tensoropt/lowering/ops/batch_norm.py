"""Lower batch normalisation in training where the batch is split."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from ...ir.graph import Operator
from ..operators import Job, Values, lowering


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
