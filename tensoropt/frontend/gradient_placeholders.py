"""Record gradients as placeholders, and updates as assignments: TensorFlow derives the gradients from local graphs later."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import tensorflow as tf

from ..common.errors import InputError
from ..common.reach import reached
from ..common.source_lines import running_line
from ..ir.graph import Differentiated

GRADIENT_ATTRIBUTE = "_tensoropt_gradient"
"""The attribute of a placeholder that stands for a gradient."""
SPARE_ATTRIBUTE = "_tensoropt_spare"
"""The attribute of operators of TensorFlow's own gradients, which count only where something needs them."""
UPDATE_ATTRIBUTE = "_tensoropt_update"
"""The attribute of an assignment that stands for an optimizer's update: the index of the application, as text."""
Gradient: TypeAlias = tf.Tensor | tf.IndexedSlices | None


@dataclass(frozen=True, eq=False)
class LossGradients:
    """The gradients of a loss.

    Attributes:
        loss: a scalar.
        variables: the variables with respect to which there is a gradient.
        dense: for each of them the placeholder of its gradient.
        rows: for each of them the gradient as rows (``IndexedSlices``), if only lookups use the variable; else None.
        line: the line of the user's code.
        own: for each variable TensorFlow's own gradient, if that was made, too; else None.
    """

    loss: tf.Tensor
    variables: tuple[tf.Variable, ...]
    dense: tuple[tf.Tensor, ...]
    rows: tuple[tf.IndexedSlices | None, ...]
    line: str
    own: tuple[tf.Tensor | tf.IndexedSlices, ...] | None = None

    def has(self, op: tf.Operation) -> bool:
        rows = [tensor for slices in self.rows if slices is not None for tensor in (slices.values, slices.indices)]
        return any(tensor.op is op for tensor in (*self.dense, *rows))

    def use_own(self) -> None:
        """Have what uses the placeholders use TensorFlow's own gradients."""
        assert self.own is not None
        for dense, rows, own in zip(self.dense, self.rows, self.own, strict=True):
            pairs = [(dense, own)] if rows is None else [(rows.values, own.values), (rows.indices, own.indices)]
            for placeholder, tensor in pairs:
                for op in placeholder.consumers():
                    for place, operand in enumerate(op.inputs):
                        if operand is placeholder:
                            op._update_input(place, tensor)

    def gradients_of(self, variables: Iterable[tf.Variable]) -> list[Gradient]:
        """Return the gradients with respect to variables, as TensorFlow gives them: None for one without."""
        triples = zip(self.variables, self.dense, self.rows, strict=True)
        gradients = {id(variable): dense if rows is None else rows for variable, dense, rows in triples}
        return [gradients.get(id(variable)) for variable in variables]

    def check_rows(self) -> None:
        """Raise InputError if the graph computes with gradients that are rows, which only an optimizer can take."""
        for variable, rows in zip(self.variables, self.rows, strict=True):
            if rows is not None and any(tensor.consumers() for tensor in (rows.values, rows.indices)):
                raise _refused_rows(variable, self.line)


def placeholders(
    loss: tf.Tensor,
    variables: Sequence[tf.Variable],
    handles: Sequence[tf.Tensor | None],
    reach: Differentiated,
    has_own: bool = False,
) -> LossGradients:
    """Return placeholders for the gradients of a loss.

    Args:
        handles: for each variable its handle in the graph; None if the graph doesn't use it.
        reach: where the gradients go.
        has_own: whether TensorFlow's own gradients are made, too.
    """
    ways = [_way(handle, reach) for handle in handles]
    pairs = {id(variable): (variable, way) for variable, way in zip(variables, ways, strict=True) if way}
    used = tuple(variable for variable, _ in pairs.values())
    own = _own(loss, used) if has_own else None
    dense = [_placeholder(variable.dtype, variable.shape) for variable in used]
    kinds = [tf.int32] * len(used) if own is None else [getattr(gradient, "indices", gradient).dtype for gradient in own]
    rows = [
        _rows(variable, kind) if way == "rows" else None for (variable, way), kind in zip(pairs.values(), kinds, strict=True)
    ]
    return LossGradients(loss, used, tuple(dense), tuple(rows), running_line(), own)


def _own(loss: tf.Tensor, variables: Sequence[tf.Variable]) -> tuple[tf.Tensor | tf.IndexedSlices, ...]:
    graph = loss.graph
    start = len(graph.get_operations())
    gradients = tf.gradients(loss, list(variables))
    for op in graph.get_operations()[start:]:
        op._set_attr(SPARE_ATTRIBUTE, tf.compat.v1.AttrValue(b=True))
    return tuple(gradients)


def _way(handle: tf.Tensor | None, reach: Differentiated) -> str:
    """Return how a gradient comes to a variable: "" for not at all, "rows" from lookups alone, else "dense"."""
    if handle is None or handle.name not in reach.tensors:
        return ""
    readers = [op for op in handle.consumers() if op.name in reach.operands]
    users = [user for op in readers for user in ([op] if op.type == "ResourceGather" else op.outputs[0].consumers())]
    users = [op for op in users if op.name in reach.operands]
    return "rows" if users and all(op.type in ("ResourceGather", "GatherV2") for op in users) else "dense"


def _rows(variable: tf.Variable, kind: tf.DType) -> tf.IndexedSlices:
    values, indices = _placeholder(variable.dtype, [None, *variable.shape[1:]]), _placeholder(kind, [None])
    return tf.IndexedSlices(values, indices, tf.constant(variable.shape.as_list()))


def _placeholder(dtype: tf.DType, shape: Any) -> tf.Tensor:
    placeholder = tf.compat.v1.placeholder(dtype, shape, name="gradient")
    placeholder.op._set_attr(GRADIENT_ATTRIBUTE, tf.compat.v1.AttrValue(b=True))
    return placeholder


def assign_gradients(
    pairs: Sequence[tuple[Any, Any]], all_gradients: Sequence[LossGradients], number: int, line: str
) -> tuple[tf.Operation, ...]:
    """Return assignments of gradients to variables, which stand for an optimizer's updates.

    Args:
        pairs: pairs of a gradient and a variable, the user's or Keras's.
        all_gradients: those of the graph.
        number: the index of the application of an optimizer.

    Raises:
        InputError: a gradient is rows that the graph has computed.
    """
    twins = {id(rows): dense for of_loss in all_gradients for rows, dense in zip(of_loss.rows, of_loss.dense, strict=True)}
    assigns = []
    for gradient, source in pairs:
        variable = variable_of(source)
        tensor = twins.get(id(gradient), gradient)
        if variable is None or isinstance(tensor, tf.IndexedSlices):
            raise _refused_rows(source, line)
        assignment = tf.raw_ops.AssignVariableOp(resource=variable.handle, value=tensor)
        mark_update(assignment, number)
        assigns.append(assignment)
    return tuple(assigns)


def mark_update(assignment: tf.Operation, number: int) -> None:
    """Have an assignment stand for an optimizer's update: that of the application of this number."""
    assignment._set_attr(UPDATE_ATTRIBUTE, tf.compat.v1.AttrValue(s=str(number).encode()))


def update_of(assignment: tf.Operation) -> int:
    """Return the number that :func:`mark_update` gave."""
    return int(assignment.get_attr(UPDATE_ATTRIBUTE))


def variable_of(source: Any) -> tf.Variable | None:
    """Return the TensorFlow variable that is meant by one of TensorFlow's or Keras's; None if it is no variable."""
    variable = source if isinstance(source, tf.Variable) else getattr(source, "_value", None)
    return variable if isinstance(variable, tf.Variable) else None


def _refused_rows(variable: Any, line: str) -> InputError:
    return InputError(
        f"the gradient with respect to '{variable.name.partition(':')[0]}' ({line}) is computed with: it is rows "
        "(tf.IndexedSlices), since lookups alone use the variable, and rows can only be given to the optimizer as they are; "
        "clip by the optimizer's clipnorm= or global_clipnorm=, or look up in tf.convert_to_tensor(variable) * 1.0"
    )


def pending_on(op: tf.Operation) -> tf.Operation | None:
    """Return a placeholder of a gradient that an operator is or needs; None if there is none."""
    behind = reached([op], lambda at: [tensor.op for tensor in at.inputs])
    return next((source for source in behind if GRADIENT_ATTRIBUTE in source.node_def.attr), None)
