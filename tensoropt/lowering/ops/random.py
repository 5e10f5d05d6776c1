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

An operator with a seed counts for itself: its key is the first number of its seed, the second one is the upper half of its
counter, and each run sets 256 counters aside for each element. So the n-th run is drawn by the stateless operator of that
distribution, whatever else a function runs; within loops it is drawn whole, by the operator itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import tensorflow as tf

from ...ir.graph import ARGUMENTS, Operator, Tensor
from ...rules.random import FROM_KEY, FROM_SEED, rows_drawn
from ..localise import local_block, opaque
from ..operators import Job, Values, emit_plain, lowering, raw_operator

_COUNTER = 2
_STATELESS = {
    "RandomUniform": "StatelessRandomUniformV2",
    "RandomStandardNormal": "StatelessRandomNormalV2",
    "TruncatedNormal": "StatelessTruncatedNormalV2",
    "RandomUniformInt": "StatelessRandomUniformIntV2",
}
_SET_ASIDE, _PHILOX, _UINT64 = 256, 1, 2**64


@lowering(*FROM_SEED, always=True)
def draw_run(job: Job, operands: Sequence[Values]) -> list[Values]:
    """Draw what one device draws in this run of an operator with a seed, by the stateless operator."""
    if job.runs is None:
        (values,) = emit_plain(job, operands)
        layout = job.interface.results[0]
        if not layout.split_axes:
            return [values]
        blocks = zip(job.ranks, values, strict=True)
        return [[local_block(value, layout, job.op.result.shape, rank) for rank, value in blocks]]
    one_device = job.op if job.micro_batch is None else job.micro_batch.full_batch(job.op)
    low, high = (tf.constant(job.op.attrs[name] % _UINT64, tf.uint64) for name in ("seed", "seed2"))
    n_counters = tf.constant(_SET_ASIDE * math.prod(one_device.result.shape), tf.uint64)
    counters = [tf.stack([tf.cast(n, tf.uint64) * n_counters, high]) for n in job.runs()]
    keys = [low[None]] * len(counters)
    return _draw(job, stateless(job.op), stateless(one_device), [keys, counters, *operands])


def stateless(op: Operator) -> Operator:
    """Return the operator that draws as an operator with a seed does, from a key and a counter."""
    names = ("shape", "key", "counter", "alg", *(name for name, _ in op.attrs[ARGUMENTS][1:]))
    attributes = {key: value for key, value in op.attrs.items() if key not in ("seed", "seed2")}
    key, counter = (Tensor(f"{op.name}/{name}", shape, "uint64") for name, shape in (("key", (1,)), ("counter", (2,))))
    return replace(
        op,
        type=_STATELESS[op.type],
        inputs=(None, key, counter, None, *op.inputs[1:]),
        statics={0: op.statics[0], 3: np.array(_PHILOX, np.int32)} | {i + 3: op.statics[i] for i in op.statics if i},
        attrs=attributes | {ARGUMENTS: tuple((name, None) for name in names)},
    )


@lowering(*FROM_KEY, always=True)
def draw_blocks(job: Job, operands: Sequence[Values]) -> list[Values]:
    """Draw the rows of one device's numbers that cover each rank's block, and cut it out."""
    return _draw(job, job.op, job.op if job.micro_batch is None else job.micro_batch.full_batch(job.op), operands)


def _draw(job: Job, drawing: Operator, op: Operator, operands: Sequence[Values]) -> list[Values]:
    """Draw each rank's block by an operator; ``op`` is this operator on one device."""
    layout, micro_batch = job.interface.results[0], job.micro_batch
    if not layout.split_axes and micro_batch is None:
        return emit_plain(replace(job, op=drawing), operands)
    rows = rows_drawn(layout.largest_local_shape(job.op.result.shape), op.result.shape)
    runs = [_runs(job, op, rank, rows) for rank in range(layout.mesh.n_devices)]
    # All ranks' graphs have equally many runs, some of them empty, and cut the first elements off if one of them has to.
    n_runs, is_cut = max(map(len, runs)), any(start % _group(op) for rank_runs in runs for start, _ in rank_runs)
    blocks = []
    for i, rank in enumerate(job.ranks):
        remaining = iter([values[i] for values in operands])
        inputs = [op.statics[k] if tensor is None else next(remaining) for k, tensor in enumerate(op.inputs)]
        parts = [_run(op, inputs, *run, is_cut) for run in [*runs[rank], *[(0, 0)] * (n_runs - len(runs[rank]))]]
        blocks.append(_cut(job, op, rank, rows, parts[0] if n_runs == 1 else tf.concat(parts, 0)))
    return [blocks]


def _runs(job: Job, op: Operator, rank: int, rows: int) -> list[tuple[int, int]]:
    """Return start and length of the runs of elements that a rank draws; ``rows`` is as by :func:`.rows_drawn`."""
    shape, micro_batch, bounds = op.result.shape, job.micro_batch, job.interface.results[0].bounds(job.op.result.shape, rank)
    indices = [np.arange(*span) for span in bounds]
    if micro_batch is not None:
        split = micro_batch.micro_batching.forms[op.result.name]
        indices[split] = micro_batch.indices(shape[split])[slice(*bounds[split])]
    steps = [math.prod(shape[i + 1 :]) for i in range(rows + 1)]
    parts = np.split(indices[rows], np.flatnonzero(np.diff(indices[rows]) != 1) + 1)
    return [
        (int(np.dot((*outer_indices, part[0]), steps)), len(part) * steps[rows])
        for outer_indices in product(*indices[:rows])
        for part in parts
    ]


def _run(op: Operator, inputs: list[Any], start: int, n: int, is_cut: bool) -> tf.Tensor:
    """Draw ``n`` elements of the flattened result from ``start`` on."""
    n_groups, n_before = divmod(start, _group(op))
    counter = _advanced(inputs[_COUNTER], n_groups * (64 * _group(op) if op.type == "StatelessTruncatedNormalV2" else 1))
    (elements,) = raw_operator(op, [opaque([n_before + n], tf.int32), *inputs[1:_COUNTER], counter, *inputs[_COUNTER + 1 :]])
    return tf.slice(elements, opaque([n_before], tf.int32), opaque([n], tf.int32)) if is_cut else elements


def _group(op: Operator) -> int:
    return 2 if tf.as_dtype(op.result.dtype).size == 8 else 4


def _advanced(counter: tf.Tensor, n: int) -> tf.Tensor:
    """Return the counter ``n`` further: a number of 128 bits, its lower half first."""
    advanced = counter + tf.constant([n, 0], tf.uint64)
    has_carry = tf.reverse(advanced < counter, [0])  # of such numbers themselves, no GPU has a reversal
    return advanced + tf.cast(has_carry, tf.uint64)


def _cut(job: Job, op: Operator, rank: int, rows: int, block: tf.Tensor) -> tf.Tensor:
    """Cut a rank's block out of the whole rows that it has drawn."""
    layout, micro_batch, inner_extents = job.interface.results[0], job.micro_batch, op.result.shape[rows + 1 :]
    bounds = layout.bounds(job.op.result.shape, rank)
    extents = [end - start for start, end in bounds]
    block = tf.reshape(block, opaque([*extents[: rows + 1], *inner_extents], tf.int32))
    if micro_batch is not None and (split := micro_batch.micro_batching.forms[op.result.name]) > rows:
        block = tf.gather(block, micro_batch.indices(op.result.shape[split]), axis=split)
    if not any(layout.splits[rows + 1 :]):
        return block
    starts = [0] * (rows + 1) + [start for start, _ in bounds[rows + 1 :]]
    return tf.slice(block, opaque(starts, tf.int32), opaque(extents, tf.int32))
