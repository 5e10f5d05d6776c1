"""Localise shapes and constants: make them those of one rank's shards.

The graphs of all ranks have the same structure. Static shapes are therefore the same on all ranks: an extent that differs
between ranks is unknown, and a constant whose value depends on the rank is *opaque*, so that TensorFlow derives no shape
from it and emits the same gradients on every rank.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from ..ir.graph import Operator
from ..reschedule.layout import Layout, Shape
from ..rules.rule import Interface
from ..sharding.local_shapes import SHAPED_BY, shard_slices, static_values


def uniform_shape(layout: Layout, shape: Shape) -> tf.TensorShape:
    """Return the static shape of a tensor's shards; an extent that isn't the same on all ranks is unknown."""
    blocks = (layout.mesh.size_of(axes) for axes in layout.splits)
    return tf.TensorShape([extent // n if extent % n == 0 else None for extent, n in zip(shape, blocks, strict=True)])


def opaque(value: np.ndarray | list[int] | int | bool, dtype: tf.DType) -> tf.Tensor:
    """Return a constant that TensorFlow can't look into while it builds the graph."""
    constant = tf.constant(value, dtype)
    return tf.compat.v1.placeholder_with_default(constant, constant.shape)


def local_constant(value: np.ndarray, layout: Layout, shape: Shape, rank: int, dtype: tf.DType) -> tf.Tensor:
    """Return a rank's shard of a constant, whose value on all ranks together is ``value``."""
    if not layout.split_axes:
        return tf.constant(value, dtype)
    shard = tf.constant(value[shard_slices(layout, shape, rank)], dtype)
    return tf.compat.v1.placeholder_with_default(shard, uniform_shape(layout, shape))


def local_block(value: tf.Tensor, layout: Layout, shape: Shape, rank: int) -> tf.Tensor:
    """Return a rank's shard of a tensor of which the rank has the global value."""
    bounds = layout.bounds(shape, rank)
    extents = [end - start for start, end in bounds]
    return tf.slice(value, opaque([start for start, _ in bounds], tf.int32), opaque(extents, tf.int32))


def local_shape(layout: Layout, shape: Shape, rank: int) -> np.ndarray | tf.Tensor:
    """Return the shape of a rank's shard, for use as an operand; it is opaque where it isn't the same on all ranks."""
    local = list(layout.local_shape(shape, rank))
    return np.asarray(local, np.int32) if layout.is_even(shape) else opaque(local, tf.int32)


def local_statics(op: Operator, interface: Interface, rank: int) -> dict[int, np.ndarray | tf.Tensor]:
    """Return an operator's static inputs, by input position, as this rank needs them; opaque where ranks differ."""
    statics: dict[int, np.ndarray | tf.Tensor] = dict(static_values(op, interface, rank))
    if op.type in SHAPED_BY:
        statics[SHAPED_BY[op.type]] = local_shape(interface.results[0], op.result.shape, rank)
    return statics
