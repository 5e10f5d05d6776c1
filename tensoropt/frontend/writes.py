"""Turn reads and writes of variables in place into operators on their values: what was read, and what is held afterwards.

``ResourceScatterAdd(v, i, x)`` becomes ``v = TensorScatterAdd(v, i, x)``, which rules and lowering know like any other
operator. Rows that are written twice are written in their order, as one device does it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from .stateful import Treatment, treatment_of

ASSIGNMENTS = ("AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp")
"""The writes that are recorded as they are."""
_MASKS = ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask")
_SCATTERS = {
    "Update": tf.tensor_scatter_nd_update,
    "Add": tf.tensor_scatter_nd_add,
    "Sub": tf.tensor_scatter_nd_sub,
    "Min": tf.tensor_scatter_nd_min,
    "Max": tf.tensor_scatter_nd_max,
}


def value_read(op_type: str, value: tf.Tensor, inputs: Sequence[tf.Tensor], attributes: Mapping[str, Any]) -> tf.Tensor:
    """Return what an operator of this type reads of a variable.

    Args:
        inputs: the operator's inputs after the variable.
    """
    if op_type == "ReadVariableOp":
        return value
    if op_type == "VariableShape":
        return tf.raw_ops.Shape(input=value, out_type=attributes["out_type"].type)
    if op_type == "ResourceGatherNd":
        return tf.raw_ops.GatherNd(params=value, indices=inputs[0])
    dims = attributes["batch_dims"].i
    return tf.raw_ops.GatherV2(params=value, indices=inputs[0], axis=dims, batch_dims=dims)


def value_written(op_type: str, value: tf.Tensor, inputs: Sequence[tf.Tensor], attributes: Mapping[str, Any]) -> tf.Tensor:
    """Return what a variable holds after an operator of this type has written to it.

    Args:
        value: what it held before.
        inputs: the operator's inputs after the variable.
    """
    if op_type == "AssignVariableOp":
        return inputs[0]
    if op_type in ASSIGNMENTS:
        return value + inputs[0] if op_type == "AssignAddVariableOp" else value - inputs[0]
    if op_type == "ResourceApplyGradientDescent":
        return value - inputs[0] * inputs[1]
    if op_type == "ResourceStridedSliceAssign":
        begin, end, strides, part = inputs
        masks = {name: attributes[name].i for name in _MASKS}
        return tf.raw_ops.TensorStridedSliceUpdate(input=value, begin=begin, end=end, strides=strides, value=part, **masks)
    indices, updates = inputs
    if op_type.startswith("ResourceScatterNd"):
        return _SCATTERS[op_type.removeprefix("ResourceScatterNd")](value, indices, updates)
    kind = op_type.removeprefix("ResourceScatter")
    if updates.shape.rank == 0:
        updates = tf.broadcast_to(updates, tf.concat([tf.shape(indices), tf.shape(value)[1:]], 0))
    if kind in _SCATTERS:
        return _SCATTERS[kind](value, tf.expand_dims(indices, -1), updates)
    # Of a row that is multiplied several times, the factors are multiplied first. A negative index is one too large here, so
    # that it is an error as for TensorFlow.
    n_rows = tf.shape(value, indices.dtype)[0]
    factors = tf.math.unsorted_segment_prod(updates, tf.where(indices < 0, n_rows, indices), n_rows)
    return value * factors if kind == "Mul" else tf.raw_ops.Div(x=value, y=factors)


class RecordingGraph(tf.Graph):
    """A graph in which variables are assigned and read as a whole, and everything else works on values."""

    def _create_op_internal(self, op_type: str, inputs: Sequence[Any], *arguments: Any, **named: Any) -> tf.Operation:
        treatment, waits = treatment_of(op_type), self._current_control_dependencies()
        if op_type == "Const" and waits:  # its value is computed while the graph is imported, before anything runs
            with self.control_dependencies(None):
                return super()._create_op_internal(op_type, inputs, *arguments, **named)
        writes = treatment is Treatment.WRITE and op_type not in ASSIGNMENTS
        reads = treatment is Treatment.READ and op_type not in ("VarHandleOp", "ReadVariableOp")
        if not writes and (not reads or (op_type == "ResourceGather" and not waits)):
            return super()._create_op_internal(op_type, inputs, *arguments, **named)
        attributes, (handle, *others) = named.get("attrs") or {}, inputs
        with self.name_scope(named.get("name") or op_type):
            value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=handle.op.get_attr("dtype"))
            with tf.control_dependencies(None):
                value = (value_written if writes else value_read)(op_type, value, others, attributes)
            return tf.raw_ops.AssignVariableOp(resource=handle, value=value) if writes else value.op
