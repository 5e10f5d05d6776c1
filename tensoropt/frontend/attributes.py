"""Read TensorFlow's attributes of an operator, as far as they say something that the operands don't, and its shapes."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from ..ir.graph import ARGUMENTS, LOADED

LOADED_ATTRIBUTE = "_tensoropt_loaded"
"""The attribute that marks a placeholder of a batch of which every rank loads its share."""
SHAPE_READERS = ("Shape", "ShapeN", "Size", "Rank")
"""Operators that read nothing of a tensor but its shape, which is known when a graph is built."""


def attributes_of(op: tf.Operation) -> dict[str, Any]:
    """Return an operator's attributes, without those that follow from its operands, and without annotations."""
    inferred: set[str] = set()
    for argument in op.op_def.input_arg:
        inferred.update((argument.type_attr, argument.number_attr, argument.type_list_attr))
    attributes = {attr.name: _as_text(op.get_attr(attr.name)) for attr in op.op_def.attr if attr.name not in inferred}
    if LOADED_ATTRIBUTE in op.node_def.attr:
        attributes[LOADED] = True
    if attributes.get("seed", 1) == 0 == attributes.get("seed2", 1):
        # TensorFlow would seed it by chance, differently on each rank; the operator's name is the same on all ranks.
        attributes["seed"] = zlib.crc32(op.name.encode()) or 1
    return attributes | {ARGUMENTS: tuple(_argument(op, argument) for argument in op.op_def.input_arg)}


def reads_known_shapes(op: tf.Operation) -> bool:
    return op.type in SHAPE_READERS and all(tensor.shape.is_fully_defined() for tensor in op.inputs)


def shape_values(ops: Iterable[tf.Operation]) -> dict[str, np.ndarray]:
    """Return the results of those operators for which :func:`reads_known_shapes` holds, by name."""
    values: dict[str, np.ndarray] = {}
    for op in filter(reads_known_shapes, ops):
        for tensor, result in zip(op.inputs, op.outputs, strict=True):
            shape = tensor.shape.as_list()
            value: Any = {"Size": int(np.prod(shape)), "Rank": len(shape)}.get(op.type, shape)
            values[result.name] = np.asarray(value, result.dtype.as_numpy_dtype)
    return values


def _argument(op: tf.Operation, argument: Any) -> tuple[str, int | None]:
    """Return an argument's name and, where the argument is a list, the list's length."""
    if argument.number_attr:
        return argument.name, op.get_attr(argument.number_attr)
    return argument.name, len(op.get_attr(argument.type_list_attr)) if argument.type_list_attr else None


def _as_text(value: Any) -> Any:
    if isinstance(value, list):
        return [_as_text(item) for item in value]
    return value.decode() if isinstance(value, bytes) else value
