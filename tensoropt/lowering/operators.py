"""One operator on local operands: the same TensorFlow operator, its attributes localised, or a special lowering.

Everything is written over a list of ranks: one under MPI, all of them in the emulated engine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import tensorflow as tf
from tensorflow.python.framework import op_def_library

from ..ir import ARGUMENTS, CONSTANT, Operator
from ..rules.reduction import reduced_dimensions
from ..rules.rule import Config, Interface, Rule
from .local import local_constant, local_statics, opaque, uniform_shape

Values = list[tf.Tensor]  # one per rank that is built here
Complete = Callable[[int, Values], Values]


@dataclass(frozen=True, slots=True)
class Job:
    """An operator with its config, as the lowering of one operator sees it.

    ``complete(k, values)`` runs the k-th delivery inside of the operator.
    """

    op: Operator
    rule: Rule
    config: Config
    interface: Interface
    ranks: tuple[int, ...]
    complete: Complete


def emit(job: Job, operands: Sequence[Values]) -> list[Values]:
    """Emit an operator on every rank that is built here; per result its values, with their static shapes set.

    Args:
        operands: per tensor operand, in order, its local values.
    """
    special = _SPECIAL.get(job.op.type)
    splits_inner = any(job.config.degree(name) > 1 for name in job.rule.inner)
    if special is not None and (splits_inner or job.op.type in _ALWAYS_SPECIAL):
        results = special(job, operands)
    else:
        per_rank = [_emit_raw(job, rank, [values[i] for values in operands]) for i, rank in enumerate(job.ranks)]
        results = [list(values) for values in zip(*per_rank, strict=True)]
    for tensor, layout, values in zip(job.op.outputs, job.interface.results, results, strict=True):
        for value in values:
            value.set_shape(uniform_shape(layout, tensor.shape))
    return results


def _emit_raw(job: Job, rank: int, operands: list[tf.Tensor]) -> list[tf.Tensor]:
    op = job.op
    if op.type == CONSTANT:
        layout = job.interface.results[0]
        return [local_constant(op.statics[0], layout, op.result.shape, rank, tf.as_dtype(op.result.dtype))]
    statics = local_statics(op, job.interface, rank)
    remaining = iter(operands)
    inputs = [statics[i] if tensor is None else next(remaining) for i, tensor in enumerate(op.inputs)]
    if op.type == "Squeeze":
        # Squeeze without dimensions would also take away a block of extent 1.
        shape = op.result.shape
        layout = job.interface.results[0]
        local = list(layout.local_shape(shape, rank))
        return [tf.reshape(inputs[0], local if layout.is_even(shape) else opaque(local, tf.int32))]
    return raw_operator(op, inputs)


def raw_operator(op: Operator, inputs: Sequence[object]) -> list[tf.Tensor]:
    """The TensorFlow operator itself."""
    arguments: dict[str, object] = {}
    remaining = iter(inputs)
    for name, length in op.attrs[ARGUMENTS]:
        arguments[name] = next(remaining) if length is None else [next(remaining) for _ in range(length)]
    attributes = {key: value for key, value in op.attrs.items() if not key.startswith("_")}
    # tf.raw_ops would rename some arguments; this is what it calls, with the names of the operator's definition.
    made = op_def_library.apply_op(op.type, name=op.name, **arguments, **attributes)
    return tf.nest.flatten(made) if not isinstance(made, tf.Operation) else []


def _mean(job: Job, operands: Sequence[Values]) -> list[Values]:
    """The local sum over the global count: the mean of blocks would be wrong where they differ in size."""
    dimensions = reduced_dimensions(job.op)
    operand = job.op.inputs[0]
    assert operand is not None
    count = 1
    for dimension in dimensions:
        count *= operand.shape[dimension]
    if job.interface.operands[0] is None or not any(
        job.interface.operands[0].layout.splits[dimension] for dimension in dimensions
    ):
        return [[_emit_raw(job, rank, [x])[0] for rank, x in zip(job.ranks, operands[0], strict=True)]]
    keep = bool(job.op.attrs["keep_dims"])
    return [[tf.reduce_sum(x, dimensions, keep) / tf.cast(count, x.dtype) for x in operands[0]]]


def _exponentials(job: Job, logits: Values) -> tuple[Values, Values, Values]:
    """Over split classes: the shifted logits, their exponentials, and the sum of these over all classes."""
    peaks = job.complete(0, [tf.stop_gradient(tf.reduce_max(x, -1, keepdims=True)) for x in logits])
    shifted = [x - tf.stop_gradient(peak) for x, peak in zip(logits, peaks, strict=True)]
    exponentials = [tf.exp(x) for x in shifted]
    totals = job.complete(1, [tf.reduce_sum(e, -1, keepdims=True) for e in exponentials])
    return shifted, exponentials, totals


def _softmax(job: Job, operands: Sequence[Values]) -> list[Values]:
    _, exponentials, totals = _exponentials(job, operands[0])
    return [[e / total for e, total in zip(exponentials, totals, strict=True)]]


def _log_softmax(job: Job, operands: Sequence[Values]) -> list[Values]:
    shifted, _, totals = _exponentials(job, operands[0])
    return [[x - tf.math.log(total) for x, total in zip(shifted, totals, strict=True)]]


def _cross_entropy(job: Job, operands: Sequence[Values]) -> list[Values]:
    """The loss's gradient is the operator's own, which takes labels to add up to 1, whether they do or not.

    The sum of all exponentials therefore enters with weight 1 instead of the labels' sum: as a zero with a gradient, on
    the one rank of those that split the classes that is first.
    """
    logits, labels = operands
    shifted, exponentials, totals = _exponentials(job, logits)
    over = job.config.axes_of("c")
    losses, gradients = [], []
    for rank, x, e, total, label in zip(job.ranks, shifted, exponentials, totals, labels, strict=True):
        log_total = tf.math.log(total)
        is_first = opaque(int(job.config.mesh.index_along(over, rank) == 0), x.dtype)
        zero = tf.squeeze(log_total - tf.stop_gradient(log_total), -1) * is_first
        losses.append(tf.reduce_sum(label * (tf.stop_gradient(log_total) - x), -1) + zero)
        gradients.append(e / total - tf.stop_gradient(label))
    return [losses, gradients]


def _sparse_cross_entropy(job: Job, operands: Sequence[Values]) -> list[Values]:
    """Each rank has the loss of the labels that are among its own classes: a partial result."""
    logits, labels = operands
    shifted, exponentials, totals = _exponentials(job, logits)
    assert job.interface.operands[0] is not None and job.op.inputs[0] is not None
    layout, shape = job.interface.operands[0].layout, job.op.inputs[0].shape
    losses, gradients = [], []
    for rank, x, e, total, label in zip(job.ranks, shifted, exponentials, totals, labels, strict=True):
        first = opaque(layout.bounds(shape, rank)[-1][0], label.dtype)
        own = tf.equal(tf.expand_dims(label - first, -1), tf.range(tf.shape(x, label.dtype)[-1], dtype=label.dtype))
        losses.append(tf.reduce_sum(tf.where(own, tf.math.log(total) - x, tf.zeros_like(x)), -1))
        gradients.append(e / total - tf.cast(own, e.dtype))
    return [losses, gradients]


def _extremum(job: Job, operands: Sequence[Values]) -> list[Values]:
    """The maximum over split dimensions as a partial sum, so that the gradient is shared among equals as on one device."""
    sign = -1 if job.op.type == "Min" else 1
    dimensions = reduced_dimensions(job.op)
    keep = bool(job.op.attrs["keep_dims"])
    signed = [x if sign > 0 else -x for x in operands[0]]
    peaks = job.complete(0, [tf.stop_gradient(tf.reduce_max(x, dimensions, keepdims=True)) for x in signed])
    at_peak = [tf.equal(x, peak) for x, peak in zip(signed, peaks, strict=True)]
    local_counts = [tf.reduce_sum(tf.cast(hit, x.dtype), dimensions, True) for hit, x in zip(at_peak, signed, strict=True)]
    counts = job.complete(1, local_counts)
    return [
        [
            tf.reduce_sum(tf.where(hit, x / count, tf.zeros_like(x)), dimensions, keep)
            for hit, x, count in zip(at_peak, operands[0], counts, strict=True)
        ]
    ]


def _gather(job: Job, operands: Sequence[Values]) -> list[Values]:
    """Over split rows each rank finds the rows that it has, zeros for the others: a partial result."""
    params, indices = operands
    assert job.interface.operands[0] is not None and job.op.inputs[0] is not None
    layout, shape = job.interface.operands[0].layout, job.op.inputs[0].shape
    axis = int(job.op.statics[2]) % len(shape)
    if not layout.splits[axis]:
        pairs = zip(job.ranks, params, indices, strict=True)
        return [[_emit_raw(job, rank, [table, index])[0] for rank, table, index in pairs]]
    results = []
    for rank, table, index in zip(job.ranks, params, indices, strict=True):
        local = index - opaque(layout.bounds(shape, rank)[axis][0], index.dtype)
        own = tf.logical_and(local >= 0, local < tf.shape(table, index.dtype)[axis])
        found = tf.gather(table, tf.where(own, local, tf.zeros_like(local)), axis=axis)
        trailing = len(shape) - axis - 1
        mask = tf.reshape(own, tf.concat([tf.shape(own), tf.ones([trailing], tf.int32)], 0))
        results.append(tf.where(mask, found, tf.zeros_like(found)))
    return [results]


def _fused_batch_norm(job: Job, operands: Sequence[Values]) -> list[Values]:
    """Batch normalisation in training with the statistics of the global batch."""
    op = job.op
    image = op.inputs[0]
    assert image is not None
    channel = 1 if op.attrs["data_format"] == "NCHW" else 3
    reduced = [i for i in range(4) if i != channel]
    count = image.mem_bytes // image.item_bytes // image.shape[channel]
    images, scales, offsets = operands[0], operands[1], operands[2]
    broadcast = [1, 1, 1, 1]
    broadcast[channel] = -1
    precise = [tf.cast(x, scales[0].dtype) for x in images]

    def statistic(k: int, values: Values) -> Values:
        return [total / count for total in job.complete(k, [tf.reduce_sum(x, reduced) for x in values])]

    means = statistic(0, precise)
    centred = [x - tf.reshape(mean, broadcast) for x, mean in zip(precise, means, strict=True)]
    variances = statistic(1, [tf.square(x) for x in centred])
    results: list[Values] = [[] for _ in op.outputs]
    for x, scale, offset, mean, variance, original, old_mean, old_variance in zip(
        centred, scales, offsets, means, variances, images, operands[3], operands[4], strict=True
    ):
        factor = tf.math.rsqrt(variance + op.attrs["epsilon"]) * scale
        normal = x * tf.reshape(factor, broadcast) + tf.reshape(offset, broadcast)
        unbiased = variance * (count / max(count - 1, 1))
        averages = [_averaged(op, old_mean, mean), _averaged(op, old_variance, unbiased), mean, variance]
        # The sixth result is room that a GPU kernel keeps for its backward pass; nobody reads it here.
        averages += [tf.zeros([0], scale.dtype)] * (len(op.outputs) - 1 - len(averages))
        # The operator's own gradient is that of the first result alone.
        values = [tf.cast(normal, original.dtype), *map(tf.stop_gradient, averages)]
        for result, value in zip(results, values, strict=True):
            result.append(value)
    return results


def _averaged(op: Operator, old: tf.Tensor, new: tf.Tensor) -> tf.Tensor:
    """The running average of a statistic, where the operator is told to make one."""
    weight = op.attrs["exponential_avg_factor"]
    return new if weight == 1 else (1 - weight) * old + weight * new


_ALWAYS_SPECIAL = ("Mean", "GatherV2")
_SPECIAL: dict[str, Callable[[Job, Sequence[Values]], list[Values]]] = {
    "Mean": _mean,
    "Softmax": _softmax,
    "LogSoftmax": _log_softmax,
    "SoftmaxCrossEntropyWithLogits": _cross_entropy,
    "SparseSoftmaxCrossEntropyWithLogits": _sparse_cross_entropy,
    "Max": _extremum,
    "Min": _extremum,
    "GatherV2": _gather,
    "FusedBatchNorm": _fused_batch_norm,
    "FusedBatchNormV2": _fused_batch_norm,
    "FusedBatchNormV3": _fused_batch_norm,
}
