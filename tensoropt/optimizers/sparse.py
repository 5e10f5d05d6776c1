"""Gradients of variables that are only looked up: rows, as TensorFlow has them, and not whole tables.

TensorFlow's gradient of a lookup is ``IndexedSlices``: the gradients of what was found, in the batch's order, beside the
rows that they belong to. Its momentum leaves rows alone that weren't found; Keras's optimizers see a row that was found
twice as two rows, and square before they add. So the gradient is taken at what the lookups found, brought to every device,
and each keeps what falls into its piece of the table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

import tensorflow as tf

from ..lowering.local import opaque
from ..lowering.operators import Values
from ..lowering.table_lookups import Lookup
from ..reschedule.layout import Layout, Shape

if TYPE_CHECKING:
    from .runtime import Emission, Shards

Gradient: TypeAlias = tf.Tensor | tf.IndexedSlices


def places_of(emission: Emission) -> list[list[Values]]:
    """Per parameter where its gradient is taken: at its value, or at what was found in it."""
    return [
        [lookup.found for lookup in lookups] or [values]
        for values, lookups in zip(emission.reads, emission.lookups, strict=True)
    ]


def row_gradients(
    lookups: Sequence[Lookup], found: Sequence[Values | None], emission: Emission, shards: Shards, number: int
) -> list[tf.IndexedSlices] | None:
    """Per rank the gradient of a parameter that was looked up; None if no loss depends on what was found.

    Args:
        found: the gradients of what the lookups found.
        number: of the parameter among the shards.
    """
    pairs = [
        (emission.reshard(lookup.resharding, gradients), lookup.indices)
        for lookup, gradients in zip(lookups, found, strict=True)
        if gradients is not None
    ]
    if not pairs:
        return None
    layout, shape = shards.layouts[number], shards.tensors[number].shape
    return [
        slices_of([(gradients[i], indices[i]) for gradients, indices in pairs], layout, shape, rank)
        for i, rank in enumerate(shards.ranks)
    ]


def added_up(slices: tf.IndexedSlices) -> tf.IndexedSlices:
    """Rows that occur once each, as TensorFlow's optimizers add them up."""
    indices, places = tf.unique(slices.indices)
    return tf.IndexedSlices(
        tf.math.unsorted_segment_sum(slices.values, places, tf.size(indices)), indices, slices.dense_shape
    )


def slices_of(lookups: Sequence[tuple[tf.Tensor, tf.Tensor]], layout: Layout, shape: Shape, rank: int) -> tf.IndexedSlices:
    """A rank's gradient: of all (gradient of what was found, indices), what falls into its piece of the table."""
    values = tf.concat([tf.reshape(gradient, [-1, *shape[1:]]) for gradient, _ in lookups], 0)
    # As TensorFlow has it, where some are int32 and others int64.
    kinds = {each.dtype for _, each in lookups}
    kind = tf.int64 if len(kinds) > 1 else next(iter(kinds))
    indices = tf.concat([tf.cast(tf.reshape(each, [-1]), kind) for _, each in lookups], 0)
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
    """A function of single elements, of a gradient or of the rows that it consists of."""
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(function(gradient.values), gradient.indices, gradient.dense_shape)
    return function(gradient)


def values_of(gradient: Gradient) -> tf.Tensor:
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient

