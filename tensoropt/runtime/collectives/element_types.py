"""Bring elements into types that collective operators can move and sum, for those that run as operators of the graph."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import tensorflow as tf

from ...common.errors import InputError, describe


def packed(value: tf.Tensor, movable: Collection[tf.DType], moved_as: Mapping[int, tf.DType], owner: str) -> tf.Tensor:
    """Return a tensor in a type that operators can move, of as many bytes; raise InputError if there is none."""
    if value.dtype.is_complex:
        return pairs(value)
    try:
        return value if value.dtype in movable else tf.bitcast(value, moved_as[value.dtype.size])
    except (KeyError, TypeError) as error:
        advice = "take collectives='mpi', which can"
        raise InputError(describe(f"{owner} can't move these elements", got=value.dtype.name, advice=advice)) from error


def unpacked(value: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Return what was moved in the type of what was packed."""
    if dtype.is_complex:
        return of_pairs(value)
    return value if value.dtype == dtype else tf.bitcast(value, dtype)


def summable(value: tf.Tensor) -> tf.Tensor:
    """Return a tensor in a type in which its elements are summed."""
    return pairs(value) if value.dtype.is_complex else tf.cast(value, sum_type(value.dtype))


def summed(total: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    return of_pairs(total) if dtype.is_complex else tf.cast(total, dtype)


def pairs(value: tf.Tensor) -> tf.Tensor:
    """Return complex numbers as pairs of real ones, along a last dimension."""
    return tf.stack([tf.math.real(value), tf.math.imag(value)], axis=-1)


def of_pairs(numbers: tf.Tensor) -> tf.Tensor:
    """Return pairs of real numbers as complex ones."""
    return tf.complex(numbers[..., 0], numbers[..., 1])


def sum_type(dtype: tf.DType) -> tf.DType:
    """Return the type in which elements of a (real) type are summed: wider for types of 16 bits and less, as in NumPy sums.

    Sums that exceed an integer's range wrap around likewise.
    """
    if dtype.is_floating:
        return tf.float32 if dtype.size <= 2 else dtype
    if dtype.is_bool or dtype.size <= 2:
        return tf.int32
    return tf.int64 if dtype.is_unsigned else dtype
