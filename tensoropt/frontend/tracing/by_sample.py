"""Tell whether operators that run on a batch before a step compute each sample by itself, so that each rank can run them."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Any

import tensorflow as tf

from ...rules.elementwise import LINEAR_UNARY, NONLINEAR_BINARY, NONLINEAR_UNARY
from ..stateful import TABLE_TYPES

_ELEMENTWISE = frozenset(
    [
        *LINEAR_UNARY,
        *NONLINEAR_UNARY,
        *NONLINEAR_BINARY,
        *TABLE_TYPES,
        *"Add AddV2 Sub Mul RealDiv Div SelectV2 ClipByValue".split(),
        *"AsString DecodeBase64 EncodeBase64 RegexFullMatch RegexReplace StaticRegexFullMatch StaticRegexReplace".split(),
        *"StringJoin StringLength StringLower StringStrip StringToHashBucket StringToHashBucketFast".split(),
        *"StringToHashBucketStrong StringToNumber StringUpper Substr UnicodeScript UnicodeTranscode".split(),
    ]
)
_RESHAPING = ("Reshape", "Squeeze", "ExpandDims")
_SAMPLES = ""  # the state of a tensor whose first dimension is that of the samples
BySample = Callable[[str], "str | None"]
"""A function from an operator's name to the scope of its layer, if that is known to compute each sample by itself."""


def first_that_mixes(
    ops: Sequence[tf.Operation],
    placeholders: Sequence[tf.Tensor],
    results: Sequence[tf.Tensor],
    live: Container[str],
    by_sample: BySample,
) -> tf.Operation | None:
    """Return the first operator that isn't known to compute each sample by itself; None if all are.

    A layer that is known to do so is judged by what it takes and gives: samples. Inside of it, anything may happen.

    Args:
        ops: the operators in order.
        placeholders: those of a batch.
        results: the tensors that must be led by the samples.
        live: the names of the operators that depend on the batch; all others give the same for any batch.
    """
    n_samples = next((tensor.shape[0] for tensor in placeholders if tensor.shape.rank), None)
    states = {tensor.name: _SAMPLES for tensor in placeholders if _leads(tensor, n_samples)}

    def state(tensor: tf.Tensor, scope: str | None) -> str | None:
        """Return the state in which an operator in a layer's scope sees a tensor; None if it may mix samples."""
        current = states.get(tensor.name)
        if current and current != scope:  # it has left its layer
            return _SAMPLES if (tensor.shape.rank or 0) > 1 and _leads(tensor, n_samples) else None
        return current

    for op in ops:
        if op.name not in live:
            continue
        scope = by_sample(op.name)
        operands = [tensor for tensor in op.inputs if tensor.op.name in live and tensor.dtype != tf.resource]
        operand_states = [state(tensor, scope) for tensor in operands]
        if all(one == _SAMPLES for one in operand_states) and _keeps_samples(op, operands, n_samples):
            result_state = _SAMPLES
        elif scope is not None and None not in operand_states:
            result_state = scope
        else:
            return op
        states.update({tensor.name: result_state for tensor in op.outputs})
    return next((tensor.op for tensor in results if state(tensor, None) != _SAMPLES), None)


def _leads(tensor: tf.Tensor, n_samples: Any) -> bool:
    return bool(tensor.shape.rank) and tensor.shape[0] == n_samples


def _keeps_samples(op: tf.Operation, operands: Sequence[tf.Tensor], n_samples: Any) -> bool:
    """Return whether row i of an operator's result follows from row i of its ``operands``, which samples lead."""
    result = op.outputs[0]
    if len(op.outputs) > 1 or not operands or not all(_leads(tensor, n_samples) for tensor in [result, *operands]):
        return False
    if op.type in _ELEMENTWISE:
        rank = result.shape.rank
        others = [tensor for tensor in op.inputs if not any(tensor is operand for operand in operands)]
        broadcast = all((tensor.shape.rank or 0) < rank or tensor.shape[0] == 1 for tensor in others)
        return broadcast and all(tensor.shape.rank == rank for tensor in operands)
    if op.type in _RESHAPING:
        return len(operands) == 1  # equally many rows, in the same order
    if op.type in ("ConcatV2", "Pack"):
        axis = tf.get_static_value(op.inputs[-1]) if op.type == "ConcatV2" else op.get_attr("axis")
        n_tensors = len(op.inputs) - (op.type == "ConcatV2")
        return axis is not None and int(axis) % result.shape.rank != 0 and len(operands) == n_tensors
    return op.type == "StridedSlice" and _takes_all_rows(op)


def _takes_all_rows(op: tf.Operation) -> bool:
    masks = {name: bool(op.get_attr(f"{name}_mask") & 1) for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")}
    strides = tf.get_static_value(op.inputs[3])
    every = masks.pop("begin") and masks.pop("end")
    return every and not any(masks.values()) and strides is not None and strides[0] == 1
