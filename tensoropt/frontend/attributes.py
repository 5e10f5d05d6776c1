"""Read TensorFlow's attributes of an operator, as far as they say something that the operands don't."""

from __future__ import annotations

import zlib
from typing import Any

import tensorflow as tf

from ..ir.graph import ARGUMENTS, LOADED

LOADED_ATTRIBUTE = "_tensoropt_loaded"
"""The attribute that marks a placeholder of a batch of which every rank loads its share."""


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


def _argument(op: tf.Operation, argument: Any) -> tuple[str, int | None]:
    """Return an argument's name and, where the argument is a list, the list's length."""
    if argument.number_attr:
        return argument.name, op.get_attr(argument.number_attr)
    return argument.name, len(op.get_attr(argument.type_list_attr)) if argument.type_list_attr else None


def _as_text(value: Any) -> Any:
    if isinstance(value, list):
        return [_as_text(item) for item in value]
    return value.decode() if isinstance(value, bytes) else value
