"""Lower random operators: each rank draws the part of one device's numbers that covers its block.

TensorFlow's stateless operators are counters. They draw the elements of the flattened result in groups, and each group from
a counter of its own, whatever else is drawn. A draw that begins ``k`` groups on gives the same elements from there:

| operators | elements of a group | counters from one group to the next |
|---|---|---|
| uniform, normal and whole numbers of 16 and 32 bits | 4 | 1 |
| the same of 64 bits | 2 | 1 |
| truncated normal of 16 and 32 bits | 4 | 256 |
| truncated normal of 64 bits | 2 | 128 |

So a rank draws a run of groups and cuts its elements out. Micro-batches are blocks too. This was tried on CPUs, for each
operator and type; in TensorFlow's sources the GPU kernels count in the same groups.

An operator that keeps its state to itself is drawn whole on every rank, so that states stay equal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import tensorflow as tf

from ...ir.graph import Operator
from ...rules.random import FROM_KEY, FROM_SEED, rows_drawn
from ..localise import local_block, opaque
from ..operators import Job, Values, emit_plain, lowering, raw_operator

_COUNTER = 2
Bounds = Sequence[tuple[int, int]]


@lowering(*FROM_SEED, always=True)
def draw_whole(job: Job, operands: Sequence[Values]) -> list[Values]:
    """Draw what one device draws, and cut out the blocks."""
    layout, which = job.interface.results[0], job.micro_batch
    if which is None:
        (whole,) = emit_plain(job, operands)
    else:
        op, dimension = which.full_batch(job.op), which.micro_batching.forms[job.op.result.name]
        (whole,) = emit_plain(replace(job, op=op), operands)
        whole = [tf.gather(value, which.indices(op.result.shape[dimension]), axis=dimension) for value in whole]
    if not layout.split_axes:
        return [whole]
    blocks = zip(job.ranks, whole, strict=True)
    return [[local_block(value, layout, job.op.result.shape, rank) for rank, value in blocks]]


@lowering(*FROM_KEY, always=True)
def draw_blocks(job: Job, operands: Sequence[Values]) -> list[Values]:
    """Draw the rows of one device's numbers that cover each rank's block, and cut it out."""
    layout, which = job.interface.results[0], job.micro_batch
    if not layout.split_axes and which is None:
        return emit_plain(job, operands)
    op = job.op if which is None else which.full_batch(job.op)
    rows = rows_drawn(layout.largest_local_shape(job.op.result.shape), op.result.shape)
    dimension = 0 if which is None else which.micro_batching.forms[op.result.name]
    drawn = []
    for i, rank in enumerate(job.ranks):
        remaining = iter([values[i] for values in operands])
        inputs = [op.statics[k] if tensor is None else next(remaining) for k, tensor in enumerate(op.inputs)]
        parts = [_block(op, inputs, bounds, rows) for bounds in _parts(job, rank, dimension)]
        drawn.append(parts[0] if len(parts) == 1 else tf.concat(parts, dimension))
    return [drawn]


def _parts(job: Job, rank: int, dimension: int) -> list[Bounds]:
    """Return the bounds of a rank's block in one device's tensor: several if a micro-batch's samples aren't consecutive."""
    bounds, which = list(job.interface.results[0].bounds(job.op.result.shape, rank)), job.micro_batch
    if which is None:
        return [bounds]
    indices = which.indices(which.full_batch(job.op).result.shape[dimension])[slice(*bounds[dimension])]
    parts = np.split(indices, np.flatnonzero(np.diff(indices) != 1) + 1)
    return [[*bounds[:dimension], (int(p[0]), int(p[-1]) + 1), *bounds[dimension + 1 :]] for p in parts]


def _block(op: Operator, inputs: list[object], bounds: Bounds, rows: int) -> tf.Tensor:
    """Draw a block: for each index before dimension ``rows``, whole rows of it, in one run of consecutive elements."""
    shape, extents = op.result.shape, [end - start for start, end in bounds]
    inner = shape[rows + 1 :]
    steps = [math.prod(shape[i + 1 :]) for i in range(rows + 1)]
    first = bounds[rows][0] * steps[rows]
    before = [range(bounds[i][0] * steps[i], bounds[i][1] * steps[i], steps[i]) for i in range(rows)]
    runs = [_run(op, inputs, first + sum(starts), extents[rows] * steps[rows]) for starts in product(*before)]
    drawn = tf.reshape(runs[0] if len(runs) == 1 else tf.concat(runs, 0), opaque([*extents[: rows + 1], *inner], tf.int32))
    if tuple(extents[rows + 1 :]) == inner:
        return drawn
    starts = [0] * (rows + 1) + [start for start, _ in bounds[rows + 1 :]]
    return tf.slice(drawn, opaque(starts, tf.int32), opaque(extents, tf.int32))


def _run(op: Operator, inputs: list[object], start: int, n: int) -> tf.Tensor:
    """Draw ``n`` elements of the flattened result from ``start`` on."""
    group = 2 if tf.as_dtype(op.result.dtype).size == 8 else 4
    n_groups, n_before = divmod(start, group)
    counters = n_groups * (64 * group if op.type == "StatelessTruncatedNormalV2" else 1)
    counter = _advanced(inputs[_COUNTER], counters) if counters else inputs[_COUNTER]
    (drawn,) = raw_operator(op, [opaque([n_before + n], tf.int32), *inputs[1:_COUNTER], counter, *inputs[_COUNTER + 1 :]])
    return drawn[n_before:] if n_before else drawn


def _advanced(counter: tf.Tensor, n: int) -> tf.Tensor:
    """Return the counter ``n`` further: a number of 128 bits, its lower half first."""
    low = counter[0] + tf.constant(n, tf.uint64)
    carry = tf.cast(low < tf.constant(n, tf.uint64), tf.uint64)
    return tf.stack([low, counter[1] + carry])
