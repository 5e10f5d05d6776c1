"""Handle gradients of variables that are only looked up: rows, as in TensorFlow, and not dense tables.

TensorFlow's gradient of a lookup is ``IndexedSlices``: the gradients of the rows that were found, in the batch's order, with
their indices. Its momentum leaves rows alone that weren't looked up. Keras's optimizers see a row that was found twice as
two rows, and square before they add. So the gradient is taken at the rows that the lookups found and brought to every
device, and each device keeps the part that falls into its shard of the table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

import tensorflow as tf

from ..lowering.localise import opaque
from ..reschedule.layout import Layout, Shape

if TYPE_CHECKING:
    from .running_optimizer import Emission, Shards

Gradient: TypeAlias = tf.Tensor | tf.IndexedSlices


def row_gradients(emission: Emission, shards: Shards, number: int) -> list[tf.IndexedSlices] | None:
    """Return, for each rank, the gradient of a parameter that was looked up; None if no loss depends on what was found.

    Args:
        number: the index of the parameter among the shards.
    """
    of_lookups = zip(emission.gradients[number], emission.indices[number], strict=True)
    pairs = [(gradients, indices) for gradients, indices in of_lookups if gradients is not None]
    if not pairs:
        return None
    layout, shape = shards.layouts[number], shards.tensors[number].shape
    return [
        slices_of([(gradients[i], indices[i]) for gradients, indices in pairs], layout, shape, rank)
        for i, rank in enumerate(shards.ranks)
    ]


def added_up(slices: tf.IndexedSlices) -> tf.IndexedSlices:
    """Return a gradient in which each row occurs once.

    Rows that occur more often are summed, as in TensorFlow's optimizers.
    """
    indices, places = tf.unique(slices.indices)
    return tf.IndexedSlices(
        tf.math.unsorted_segment_sum(slices.values, places, tf.size(indices)), indices, slices.dense_shape
    )


def slices_of(lookups: Sequence[tuple[tf.Tensor, tf.Tensor]], layout: Layout, shape: Shape, rank: int) -> tf.IndexedSlices:
    """Return a rank's gradient: the part that falls into its shard of the table.

    Args:
        lookups: for each lookup, the gradient of the rows that it found, and the rows' indices.
        shape: the table's global shape.
    """
    values = tf.concat([tf.reshape(gradient, [-1, *shape[1:]]) for gradient, _ in lookups], 0)
    # As in TensorFlow, indices are int64 where some are int32 and others int64.
    kinds = {part.dtype for _, part in lookups}
    kind = tf.int64 if len(kinds) > 1 else next(iter(kinds))
    indices = tf.concat([tf.cast(tf.reshape(part, [-1]), kind) for _, part in lookups], 0)
    bounds = layout.bounds(shape, rank)
    if any(layout.splits[1:]):
        extents = opaque([-1, *(end - start for start, end in bounds[1:])], tf.int32)
        values = tf.slice(values, opaque([0, *(start for start, _ in bounds[1:])], tf.int32), extents)
    if layout.splits[0]:
        start, end = bounds[0]
        own = tf.logical_and(indices >= opaque(start, indices.dtype), indices < opaque(end, indices.dtype))
        values, indices = tf.boolean_mask(values, own), tf.boolean_mask(indices, own) - opaque(start, indices.dtype)
    local = list(layout.local_shape(shape, rank))
    dense_shape = tf.constant(local, indices.dtype) if layout.is_even(shape) else opaque(local, indices.dtype)
    return tf.IndexedSlices(values, indices, dense_shape)


def over_values(function: Callable[[tf.Tensor], tf.Tensor], gradient: Gradient) -> Gradient:
    """Return a gradient with an elementwise function applied to its values, which are all elements or those of its rows."""
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(function(gradient.values), gradient.indices, gradient.dense_shape)
    return function(gradient)


def values_of(gradient: Gradient) -> tf.Tensor:
    """Return the values of a gradient: all elements, or those of its rows."""
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
