"""Lower operators on matrices whose result depends on a block's position in the matrix."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from ..localise import opaque
from ..operators import Job, Values, emit_plain, lowering


@lowering("MatrixBandPart", always=True)
def band_part(job: Job, operands: Sequence[Values]) -> list[Values]:
    """Emit the band of matrices; over split rows or columns it is a mask.

    A negative number of diagonals means all of them.
    """
    layout, shape = job.layout(0), job.op.operand(0).shape
    if not any(layout.splits[-2:]):
        return emit_plain(job, operands)
    below, above = (int(job.op.statics[k]) for k in (1, 2))
    results = []
    for rank, x in zip(job.ranks, operands[0], strict=True):
        row, column = (start for start, _ in layout.bounds(shape, rank)[-2:])
        n_rows, n_columns = tf.unstack(tf.shape(x)[-2:])
        rows = opaque(row, tf.int32) + tf.expand_dims(tf.range(n_rows), 1)
        columns = opaque(column, tf.int32) + tf.expand_dims(tf.range(n_columns), 0)
        mask = tf.ones_like(rows - columns, tf.bool)
        if below >= 0:
            mask = tf.logical_and(mask, rows - columns <= below)
        if above >= 0:
            mask = tf.logical_and(mask, columns - rows <= above)
        results.append(tf.where(mask, x, tf.zeros_like(x)))
    return [results]
