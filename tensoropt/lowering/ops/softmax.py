"""Lower softmax and cross-entropies over split classes: a maximum and a sum are completed over all classes midway."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from ..localise import opaque
from ..operators import Job, Values, lowering
from .lookups import in_range


def _exponentials(job: Job, logits: Values) -> tuple[Values, Values, Values]:
    """Return the shifted logits, their exponentials, and the sum of the exponentials over all classes, which are split."""
    peaks = job.complete(0, [tf.stop_gradient(tf.reduce_max(x, -1, keepdims=True)) for x in logits])
    shifted = [x - tf.stop_gradient(peak) for x, peak in zip(logits, peaks, strict=True)]
    exponentials = [tf.exp(x) for x in shifted]
    totals = job.complete(1, [tf.reduce_sum(e, -1, keepdims=True) for e in exponentials])
    return shifted, exponentials, totals


@lowering("Softmax")
def softmax(job: Job, operands: Sequence[Values]) -> list[Values]:
    """Emit a softmax over split classes."""
    _, exponentials, totals = _exponentials(job, operands[0])
    return [[e / total for e, total in zip(exponentials, totals, strict=True)]]


@lowering("LogSoftmax")
def log_softmax(job: Job, operands: Sequence[Values]) -> list[Values]:
    """Emit the logarithm of a softmax over split classes."""
    shifted, _, totals = _exponentials(job, operands[0])
    return [[x - tf.math.log(total) for x, total in zip(shifted, totals, strict=True)]]


@lowering("SoftmaxCrossEntropyWithLogits")
def cross_entropy(job: Job, operands: Sequence[Values]) -> list[Values]:
    """Emit cross-entropies and their gradients over split classes.

    The loss's gradient equals that of TensorFlow's operator, which assumes that labels add up to 1, whether they do or not.
    The sum of all exponentials therefore enters with weight 1 instead of the labels' sum: as a zero that has a gradient, on
    the first of the ranks that split the classes.
    """
    logits, labels = operands
    shifted, exponentials, totals = _exponentials(job, logits)
    axes = job.config.axes_of("c")
    losses, gradients = [], []
    for rank, x, e, total, label in zip(job.ranks, shifted, exponentials, totals, labels, strict=True):
        log_total = tf.math.log(total)
        is_first = opaque(int(job.config.mesh.index_along(axes, rank) == 0), x.dtype)
        zero = tf.squeeze(log_total - tf.stop_gradient(log_total), -1) * is_first
        losses.append(tf.reduce_sum(label * (tf.stop_gradient(log_total) - x), -1) + zero)
        gradients.append(e / total - tf.stop_gradient(label))
    return [losses, gradients]


@lowering("SparseSoftmaxCrossEntropyWithLogits")
def sparse_cross_entropy(job: Job, operands: Sequence[Values]) -> list[Values]:
    """Emit cross-entropies and their gradients over split classes, for labels that are class indices.

    Each rank computes the loss of the labels that are among its own classes: a partial result. As few tensors as possible of
    the logits' size are made: they take most of a language model's memory.
    """
    logits, labels = operands
    shifted, exponentials, totals = _exponentials(job, logits)
    layout, shape = job.layout(0), job.op.operand(0).shape
    losses, gradients = [], []
    for rank, x, e, total, label in zip(job.ranks, shifted, exponentials, totals, labels, strict=True):
        label = in_range(job, label, shape[-1])
        first = opaque(layout.bounds(shape, rank)[-1][0], label.dtype)
        is_own = tf.equal(tf.expand_dims(label - first, -1), tf.range(tf.shape(x, label.dtype)[-1], dtype=label.dtype))
        # By selection and not by multiplication: infinity times zero is not a number.
        logit = tf.reduce_sum(tf.where(is_own, x, tf.zeros((), x.dtype)), -1)
        loss = tf.math.log(tf.squeeze(total, -1)) - logit
        losses.append(tf.where(tf.reduce_any(is_own, -1), loss, tf.zeros((), x.dtype)))
        gradients.append(e / total - tf.cast(is_own, e.dtype))
    return [losses, gradients]
