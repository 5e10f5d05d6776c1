"""Lower means and extremes over split dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import tensorflow as tf

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
