"""Read from a recorded ``tf.Graph`` what the import needs beside its operators: training steps, initializers and shapes."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from ..common.errors import InputError
from ..ir.optimizer import Optimizer
from ..reschedule.layout import Shape
from .gradient_function import GradientFunction, is_custom_gradient, trace_gradient
from .gradient_placeholders import GRADIENT_ATTRIBUTE, SPARE_ATTRIBUTE

# (type, result) of unknown shape: memory that a kernel for GPUs keeps for its backward pass, empty on CPUs.
_ROOM = (("FusedBatchNormV3", 5),)
# Operators that only initialise variables, or that check values in the midst of the model, aren't part of the model.
_LEFT_OUT = ("VarIsInitializedOp", "Assert")


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """An application of an optimizer in terms of the recorded graph.

    :class:`tensoropt.ir.graph.TrainStep` is its counterpart in the imported graph. Variables are named by the operations
    that make their handles.

    Attributes:
        op: the operation that stands for the step; without inputs.
        loss: the loss that the step minimises; None where the gradients are given.
        gradients: where there is no loss, for each variable what it is updated by.
        assigns: assignments that stand for the updates: what waits for one of them waits for the step.
        of: the name of the first step that applies the same optimizer; empty for the first.
    """

    op: tf.Operation
    loss: tf.Tensor | None
    variables: tuple[str, ...]
    optimizer: Optimizer
    step_counter: str | None = None
    gradients: tuple[tf.Tensor, ...] = ()
    assigns: tuple[tf.Operation, ...] = ()
    of: str = ""


@dataclass(frozen=True, slots=True)
class RecordedGradients:
    """Gradients that the recorded graph computes with: :class:`tensoropt.ir.graph.Gradients` is their counterpart.

    Attributes:
        variables: the operations that make the variables' handles.
        results: for each variable the placeholder of its gradient.
    """

    name: str
    loss: tf.Tensor
    variables: tuple[str, ...]
    results: tuple[tf.Tensor, ...]


def initializer_names(recorded: tf.Graph) -> frozenset[str]:
    """Return the operators that give variables their initial values, and those that only group such operators."""
    variables = recorded.get_collection(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES)
    names = {variable.initializer.name for variable in variables}
    for op in recorded.get_operations():
        if op.type == "NoOp" and op.control_inputs and all(c.name in names for c in op.control_inputs):
            names.add(op.name)
    return frozenset(names)


def wanted_operators(
    recorded: tf.Graph,
    roots: Sequence[tf.Operation] | None,
    steps: Sequence[RecordedStep],
    gradients: Sequence[RecordedGradients],
    fed: Container[str],
) -> tuple[list[tf.Operation], dict[str, GradientFunction]]:
    """Return the operators that results need, in order of creation, and the gradient functions of custom gradients.

    Args:
        roots: the operators that give the results; None for all that don't only serve initialisation.
        steps, gradients: the training steps, and the gradients that the graph computes with, which need what they take.
        fed: the names of operators whose results are fed.
    """
    initializers = initializer_names(recorded)
    left_out = {op.name for op in recorded.get_operations() if op.name in initializers or op.type in _LEFT_OUT}
    # Gradients that a step takes as they are, and what stands for its updates.
    placeholders = {tensor.op.name for of_loss in gradients for tensor in of_loss.results}
    left_out |= {op.name for op in recorded.get_operations() if GRADIENT_ATTRIBUTE in op.node_def.attr} - placeholders
    left_out |= {op.name for step in steps for op in step.assigns}
    if roots is None:
        ends = (op for op in recorded.get_operations() if SPARE_ATTRIBUTE not in op.node_def.attr)
        roots = [op for op in ends if not any(tensor.consumers() for tensor in op.outputs)]
    pending, names, functions = list(roots), set[str](), dict[str, GradientFunction]()
    pending += [step.loss.op for step in steps if step.loss is not None] + [of_loss.loss.op for of_loss in gradients]
    pending += [tensor.op for step in steps for tensor in step.gradients] + [value.op for value in conditions_of(steps)]
    pending += [recorded.get_operation_by_name(name) for step in steps for name in step.variables]  # read or not
    while pending:
        op = pending.pop()
        if op.name in names or op.name in left_out:
            continue
        names.add(op.name)
        if op.name in fed:
            continue
        pending += [tensor.op for tensor in op.inputs] + list(op.control_inputs)
        if is_custom_gradient(op):
            functions[op.name] = trace_gradient(op)
            pending += [outer.op for outer, _ in functions[op.name].read]
    return [op for op in recorded.get_operations() if op.name in names], functions


def conditions_of(steps: Sequence[RecordedStep]) -> list[Any]:
    """Return the recorded truth values that say whether steps are made."""
    return [step.optimizer.condition for step in steps if step.optimizer.condition is not None]


def known_shape(tensor: tf.Tensor, line: str) -> Shape:
    """Return the shape of an operator's result; raise InputError if some extent isn't known."""
    op = tensor.op
    if tensor.shape.is_fully_defined():
        return tuple(tensor.shape.as_list())
    if (op.type, tensor.value_index) in _ROOM:
        return (0,)
    if op.type != "Placeholder":
        raise InputError(
            f"the result of {op.type} '{op.name}' ({line}) has shape {tensor.shape}: how much there is depends on the "
            "values that the model computes, and what such operators give in the end must have a known shape; reduce it, "
            "tell its shape by tf.ensure_shape, or keep all and choose by tf.where(condition, x, y) or a mask"
        )
    is_batch = tensor.shape.rank and tensor.shape[1:].is_fully_defined()
    advice = "say the batch size by tensoropt.init(batch_size=...), or write it" if is_batch else "write the extent"
    raise InputError(
        f"placeholder '{op.name}' ({line}) has shape {tensor.shape}; expected every extent to be known, since a plan "
        f"is made for one batch: {advice} where the shape says None"
    )
