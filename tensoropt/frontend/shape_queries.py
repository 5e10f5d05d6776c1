"""Operators that read nothing of a tensor but its shape, which is known when a graph is built."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

SHAPE_READERS = ("Shape", "ShapeN", "Size", "Rank")


def reads_known_shapes(op: tf.Operation) -> bool:
    return op.type in SHAPE_READERS and all(tensor.shape.is_fully_defined() for tensor in op.inputs)


def shape_value(op: tf.Operation, index: int) -> np.ndarray:
    """Return result number ``index`` of an operator for which :func:`reads_known_shapes` holds."""
    shape = op.inputs[index].shape.as_list()
    value: Any = {"Size": int(np.prod(shape)), "Rank": len(shape)}.get(op.type, shape)
    return np.asarray(value, op.outputs[index].dtype.as_numpy_dtype)
