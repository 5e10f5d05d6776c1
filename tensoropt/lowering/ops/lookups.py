"""Lower lookups in split rows: each rank returns the rows that it has and zeros for the rest, a partial result.

One-hot vectors that are split have on each rank the elements of its block. To a split sum of rows each rank adds the rows
that fall into its own block.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from ...rules.indexing import batch_dimensions
from ..localise import local_shape, opaque
from ..operators import Job, Values, emit_plain, lowering, raw_operator


def in_range(job: Job, index: tf.Tensor, extents: Sequence[int] | int, least: int | None = 0) -> tf.Tensor:
    """Return indices behind a check that fails the step if one is out of range, as TensorFlow's kernel does.

    Each rank takes an index that isn't among its own for another rank's, so that without the check nobody would notice.

    Args:
        least: the least index; None where negative ones stand for none.
    """
    is_below = index < tf.constant(extents, index.dtype)
    is_there = tf.reduce_all(is_below if least is None else tf.logical_and(index >= least, is_below))
    message = f"got an index outside of 0 to one less than {extents}"
    check = tf.raw_ops.Assert(condition=is_there, data=[tf.constant(message)], name=f"{job.op.name}/in_range")
    with tf.control_dependencies([check]):
        return tf.identity(index)


def in_table(value: tf.Tensor, indices: tf.Tensor, name: str) -> tf.Tensor:
    """Return the rows of a variable, of which the value is given, without reading that.

    TensorFlow copies a variable that is updated by rows whenever its value is read. A step on a table of 256 MB took 163 ms
    so, and 3 ms by reading 1000 rows in the variable.
    """
    return tf.raw_ops.ResourceGather(resource=value.op.inputs[0], indices=indices, dtype=value.dtype, name=name)


@lowering("GatherV2", always=True)
def gather(job: Job, operands: Sequence[Values]) -> list[Values]:
    """Emit a gather; where the gathered dimension is split, each rank gathers its own rows."""
    params, indices = operands
    layout, shape = job.layout(0), job.op.operand(0).shape
    axis = int(job.op.statics[2]) % len(shape)
    batch = batch_dimensions(job.op)
    is_in_variable = job.reads_table and axis == batch == 0 and all(table.op.type == "ReadVariableOp" for table in params)
    if not layout.splits[axis]:
        if is_in_variable:
            return [[in_table(*pair, job.op.name) for pair in zip(params, indices, strict=True)]]
        return emit_plain(job, operands)
    values = []
    for rank, table, index in zip(job.ranks, params, indices, strict=True):
        index = in_range(job, index, shape[axis])
        start, end = layout.bounds(shape, rank)[axis]
        local = index - opaque(start, index.dtype)
        is_own = tf.logical_and(local >= 0, local < opaque(end - start, index.dtype))
        local = tf.where(is_own, local, tf.zeros_like(local))
        if is_in_variable:
            rows = in_table(table, local, f"{job.op.name}/rows")
        else:
            rows = tf.gather(table, local, axis=axis, batch_dims=batch)
        ones_between, ones_behind = tf.ones([axis - batch], tf.int32), tf.ones([len(shape) - axis - 1], tf.int32)
        extents = tf.shape(is_own)
        mask = tf.reshape(is_own, tf.concat([extents[:batch], ones_between, extents[batch:], ones_behind], 0))
        values.append(tf.where(mask, rows, tf.zeros_like(rows)))
    return [values]


@lowering("GatherNd", always=True)
def gather_nd(job: Job, operands: Sequence[Values]) -> list[Values]:
    """Emit a gather by index vectors; where an indexed dimension is split, each rank gathers from its own block."""
    params, indices = operands
    layout, shape = job.layout(0), job.op.operand(0).shape
    depth = job.op.operand(1).shape[-1]
    if not any(layout.splits[:depth]):
        return emit_plain(job, operands)
    values = []
    for rank, table, index in zip(job.ranks, params, indices, strict=True):
        index = in_range(job, index, list(shape[:depth]))
        starts = [start for start, _ in layout.bounds(shape, rank)[:depth]]
        local, is_own = within(index, starts, tf.shape(table, index.dtype)[:depth])
        rows = tf.gather_nd(table, local)
        values.append(tf.where(over(is_own, len(shape) - depth), rows, tf.zeros_like(rows)))
    return [values]


def within(index: tf.Tensor, starts: list[int], extents: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return indices [..., depth] relative to a block, and whether they point into it [...]; those that don't are 0."""
    local = index - opaque(starts, index.dtype)
    is_own = tf.reduce_all(tf.logical_and(local >= 0, local < extents), -1)
    return tf.where(tf.expand_dims(is_own, -1), local, tf.zeros_like(local)), is_own


def over(mask: tf.Tensor, n_trailing: int) -> tf.Tensor:
    """Return a mask with ``n_trailing`` new dimensions of extent 1 at its end."""
    return tf.reshape(mask, tf.concat([tf.shape(mask), tf.ones([n_trailing], tf.int32)], 0))


@lowering("OneHot", always=True)
def one_hot(job: Job, operands: Sequence[Values]) -> list[Values]:
    """Emit one-hot vectors; where these are split, each rank counts from the first element of its block.

    An index outside of the block gives no element on, as one outside of all blocks does.
    """
    layout, shape = job.interface.results[0], job.op.result.shape
    axis = job.op.attrs["axis"] % len(shape)
    if not layout.splits[axis]:
        return emit_plain(job, operands)
    on, off = (tf.constant(job.op.statics[k]) for k in (2, 3))
    blocks = []
    for rank, index in zip(job.ranks, operands[0], strict=True):
        start, end = layout.bounds(shape, rank)[axis]
        local = tf.cast(index, tf.int64) - opaque(start, tf.int64)
        blocks.append(tf.one_hot(local, opaque(end - start, tf.int32), on, off, axis, name=job.op.name))
    return [blocks]


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
