"""Lower sums of rows into a split result: each rank adds the rows that fall into its own block."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from ..localise import local_shape, opaque
from ..operators import Job, Values, emit_plain, lowering, raw_operator
from .lookups import in_range, over, within


@lowering("ScatterNd", always=True)
def scatter_nd(job: Job, operands: Sequence[Values]) -> list[Values]:
    """Emit a scatter into zeros: each rank adds the updates that fall into its shard."""
    layout, shape, depth = job.interface.results[0], job.op.result.shape, job.op.operand(0).shape[-1]
    results = []
    for rank, index, update in zip(job.ranks, *operands, strict=True):
        index, starts = in_range(job, index, list(shape[:depth])), [start for start, _ in layout.bounds(shape, rank)[:depth]]
        extents = tf.cast(local_shape(layout, shape, rank), index.dtype)
        local, is_own = within(index, starts, extents[:depth])
        mask = over(is_own, len(shape) - depth)
        results.append(tf.scatter_nd(local, tf.where(mask, update, tf.zeros_like(update)), extents))
    return [results]


@lowering("TensorScatterAdd", "TensorScatterSub", always=True)
def tensor_scatter(job: Job, operands: Sequence[Values]) -> list[Values]:
    """Emit a scatter into a tensor: each rank adds or subtracts the updates that fall into its shard."""
    layout, shape, depth = job.interface.results[0], job.op.result.shape, job.op.operand(1).shape[-1]
    if not any(layout.splits[:depth]):
        return emit_plain(job, operands)
    results = []
    for rank, tensor, index, update in zip(job.ranks, *operands, strict=True):
        index, starts = in_range(job, index, list(shape[:depth])), [start for start, _ in layout.bounds(shape, rank)[:depth]]
        local, is_own = within(index, starts, tf.shape(tensor, index.dtype)[:depth])
        update = tf.where(over(is_own, len(shape) - depth), update, tf.zeros_like(update))
        results += raw_operator(job.op, [tensor, local, update])
    return [results]


@lowering("UnsortedSegmentSum", "UnsortedSegmentMax", "UnsortedSegmentMin", "UnsortedSegmentProd", always=True)
def unsorted_segments(job: Job, operands: Sequence[Values]) -> list[Values]:
    """Emit a reduction over segments; other ranks' segments get negative numbers, which TensorFlow leaves out."""
    layout, shape = job.interface.results[0], job.op.result.shape
    if not layout.splits[0]:
        return emit_plain(job, operands)
    results = []
    for rank, data, segments in zip(job.ranks, *operands, strict=True):
        start, end = layout.bounds(shape, rank)[0]
        local = in_range(job, segments, shape[0], least=None) - opaque(start, segments.dtype)
        count = opaque(end - start, segments.dtype)
        is_own = tf.logical_and(local >= 0, local < count)
        results += raw_operator(job.op, [data, tf.where(is_own, local, -tf.ones_like(local)), count])
    return [results]
