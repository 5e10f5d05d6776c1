"""Compute a rank's shard of a tensor, and its values of an operator's static inputs, without TensorFlow."""

from __future__ import annotations

from types import MappingProxyType

import numpy as np

from ..ir.graph import Operator
from ..reschedule.layout import Layout, Shape
from ..rules.rule import Interface

SHAPED_BY = MappingProxyType({"Reshape": 1, "BroadcastTo": 1, "Conv2DBackpropInput": 0, "Fill": 0})
"""The position of the static input that is the result's shape, by operator type."""


def shard_slices(layout: Layout, shape: Shape, rank: int) -> tuple[slice, ...]:
    """Return the slices that cut the rank's shard out of a global array."""
    return tuple(slice(start, end) for start, end in layout.bounds(shape, rank))


def static_values(op: Operator, interface: Interface, rank: int) -> dict[int, np.ndarray]:
    """Return the static inputs by position, as a rank needs them: target shapes are those of its shard."""
    statics: dict[int, np.ndarray] = dict(op.statics)
    if op.type in SHAPED_BY:
        statics[SHAPED_BY[op.type]] = np.asarray(interface.results[0].local_shape(op.result.shape, rank), np.int32)
    elif op.type == "Slice":
        operand = op.operand(0)
        replicated = [a == b for a, b in zip(operand.shape, op.result.shape, strict=True)]
        statics[2] = np.where(replicated, -1, op.statics[2])
    return statics
