"""Lower random operators where their results are split.

Each rank draws its own block from a stream of its own: the block's index in the result's layout is folded into the key, or
into the second seed of an operator that keeps its state to itself. The first block, and a result that isn't split, are drawn
from the stream that one device would use. Ranks with the same block fold the same index, so replicas are equal to the bit.
Micro-batches are blocks too, major to those of devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import tensorflow as tf

from ...common.settings import RandomMode
from ...ir.graph import Operator
from ...reschedule.layout import Layout
from ...rules.random import FROM_KEY, FROM_SEED
from ..localise import local_block, local_shape, opaque
from ..operators import Job, Values, emit_plain, lowering, raw_operator

# 2^64 over the golden ratio, an odd number: different block indices give different keys, which differ in many bits.
_STRIDE = 0x9E3779B97F4A7C15
_KEY = 1


def block_index(layout: Layout, rank: int) -> int:
    """Return the index of the rank's block among all blocks of a layout."""
    index = 0
    for axes in layout.splits:
        index = index * layout.mesh.size_of(axes) + layout.mesh.index_along(axes, rank)
    return index


@lowering(*FROM_KEY, *FROM_SEED, always=True)
def draw(job: Job, operands: Sequence[Values]) -> list[Values]:
    """Draw blocks of random numbers; in the mode ``RandomMode.ONE_DEVICE`` blocks of what one device draws."""
    layout, shape, which = job.interface.results[0], job.op.result.shape, job.micro_batch
    if not layout.split_axes and which is None:
        return emit_plain(job, operands)
    if job.random is RandomMode.ONE_DEVICE:
        if which is None:
            (full,) = emit_plain(job, operands)
        else:
            op, dimension = which.full_batch(job.op), which.micro_batching.forms[job.op.result.name]
            (full,) = emit_plain(replace(job, op=op), operands)
            full = [tf.gather(value, which.indices(op.result.shape[dimension]), axis=dimension) for value in full]
        return [[local_block(value, layout, shape, rank) for rank, value in zip(job.ranks, full, strict=True)]]
    drawn = []
    n_before = 0 if which is None else which.index * layout.mesh.size_of(layout.split_axes)
    for i, rank in enumerate(job.ranks):
        fold = (n_before + block_index(layout, rank)) * _STRIDE % 2**64
        op, remaining = job.op, iter([values[i] for values in operands])
        inputs = [job.op.statics[k] if tensor is None else next(remaining) for k, tensor in enumerate(op.inputs)]
        inputs[0] = local_shape(layout, shape, rank)
        if op.type in FROM_KEY:
            # By way of signed integers, whose bitwise operators have kernels on every device.
            key = tf.bitcast(inputs[_KEY], tf.int64)
            folded = tf.bitwise.bitwise_xor(key, opaque(np.uint64(fold).astype(np.int64), tf.int64))
            inputs[_KEY] = tf.bitcast(folded, tf.uint64)
        else:
            op = _seeded_apart(op, fold)
        drawn += raw_operator(op, inputs)
    return [drawn]


def _seeded_apart(op: Operator, fold: int) -> Operator:
    """Return the operator with ``fold`` combined into its second seed, a signed number of 64 bits."""
    seed = int(op.attrs["seed2"]) % 2**64 ^ fold
    return replace(op, attrs=dict(op.attrs, seed2=seed - 2**64 if seed >= 2**63 else seed))
