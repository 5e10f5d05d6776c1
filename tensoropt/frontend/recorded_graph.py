"""Read from a recorded ``tf.Graph`` what the import needs beside its operators: training steps, initializers and shapes."""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow as tf

from ..common.errors import InputError
from ..ir.optimizer import Optimizer
from ..reschedule.layout import Shape

# (type, result) of unknown shape: memory that a kernel for GPUs keeps for its backward pass, empty on CPUs.
_ROOM = (("FusedBatchNormV3", 5),)


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


def known_shape(tensor: tf.Tensor, op: tf.Operation, line: str) -> Shape:
    """Return the shape of an operator's result.

    Raises:
        InputError: some extent isn't known.
    """
    if tensor.shape.is_fully_defined():
        return tuple(tensor.shape.as_list())
    if (op.type, tensor.value_index) in _ROOM:
        return (0,)
    if op.type != "Placeholder" and all(each.shape.is_fully_defined() for each in op.inputs):
        raise InputError(
            f"the result of {op.type} '{op.name}' ({line}) has shape {tensor.shape}: how much there is depends on the "
            "values that the model computes, and a plan is made for known shapes; keep all, and choose by "
            "tf.where(condition, x, y) or a mask that is multiplied in"
            + ("; of sequences' losses keras.losses.CTC() does so" if op.name.startswith("compile_loss") else "")
        )
    what = "placeholder" if op.type == "Placeholder" else f"the result of {op.type}"
    raise InputError(
        f"{what} '{op.name}' ({line}) has shape {tensor.shape}; expected every extent to be known, since a plan "
        "is made for one batch: write the batch size where the shape says None"
    )
