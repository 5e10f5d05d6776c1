"""What a trainer runs: a training step, an evaluation and a prediction, captured side by side for one batch size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import tensorflow as tf

from ..errors import InputError
from ..importer import RecordedStep, import_graph
from ..ir import Graph, Operator, Tensor
from ..optimizers.protocol import Optimizer
from ..tracing.function import Capture, Program
from .signature import Signature

TRAIN, EVALUATE, PREDICT = "train", "evaluate", "predict"


class Objective(Protocol):
    """What is trained: functions over batches, and the variables behind them."""

    @property
    def trained(self) -> Sequence[Any]:
        """The user's trainable variables, Keras's or TensorFlow's."""
        ...

    def name_of(self, variable: tf.Variable) -> str: ...

    def functions(self, signature: Signature) -> dict[str, tuple[Callable[..., Any], Sequence[Any]]]:
        """By program, its function and the signature of its arguments; the training step's returns the loss."""
        ...


@dataclass(frozen=True)
class Programs:
    """Attributes:
    graph: all programs, imported.
    captured: each program in the flat graph, by name.
    capture: the flat graph, and the user's variables in it.
    """

    graph: Graph
    captured: dict[str, Program]
    capture: Capture

    def inputs(self, program: str) -> tuple[Tensor, ...]:
        """The tensors that a program is fed."""
        return tuple(self.graph.tensors[tensor.name] for tensor in self.captured[program].inputs)

    def results(self, program: str) -> tuple[Tensor, ...]:
        """What a program returns, leaf by leaf."""
        return tuple(self._tensor(tensor) for tensor in tf.nest.flatten(self.captured[program].results))

    def writes(self, program: str) -> tuple[str, ...]:
        """The operators by which a program updates variables."""
        return tuple(op.name for op in self.captured[program].writes)

    def variable(self, variable: tf.Variable) -> Operator | None:
        """The operator of one of the user's variables; None if no program uses it."""
        name = self.capture.name(variable)
        return None if name is None else self.graph.operators.get(name)

    def _tensor(self, tensor: tf.Tensor) -> Tensor:
        found = self.graph.resolve(tensor.name)
        assert found is not None, f"{tensor.name} wasn't imported"
        return found


def capture_programs(
    objective: Objective, signature: Signature, optimizer: Callable[[Sequence[Any]], Optimizer]
) -> Programs:
    """Capture all that a trainer runs on batches of one size.

    Args:
        optimizer: makes the training step's optimizer for those of the trainable variables that the loss uses.

    Raises:
        InputError: something can't be captured, or the loss isn't a scalar.
    """
    capture = Capture(objective.name_of)
    captured = {
        # The training step's operators come first, under the names that they have in the user's model.
        name: capture.add(function, arguments, scope="" if name == TRAIN else name)
        for name, (function, arguments) in objective.functions(signature).items()
    }
    step = _step(capture, captured[TRAIN], objective, optimizer)
    targets = [tensor.op for program in captured.values() for tensor in (*program.inputs, *tf.nest.flatten(program.results))]
    targets += [op for program in captured.values() for op in program.writes]
    graph = import_graph(capture.graph, [step], capture.lines, targets)
    return Programs(graph, captured, capture)


def _step(
    capture: Capture, program: Program, objective: Objective, optimizer: Callable[[Sequence[Any]], Optimizer]
) -> RecordedStep:
    loss = program.results
    if not isinstance(loss, tf.Tensor) or loss.shape.rank != 0 or not loss.dtype.is_floating:
        got = f"a tensor of shape {loss.shape} and type {loss.dtype.name}" if isinstance(loss, tf.Tensor) else repr(loss)
        raise InputError(
            f"the loss must be one floating-point number for the whole batch, got {got}; reduce it, as by tf.reduce_mean, "
            "or with a Keras loss whose reduction is 'sum_over_batch_size'"
        )
    trained = [variable for variable in objective.trained if capture.name(inner(variable)) is not None]
    if not trained:
        raise InputError("the loss depends on no trainable variable; build the model first, and leave its layers trainable")
    with capture.graph.as_default(), tf.control_dependencies(program.writes):
        op = tf.no_op(name=TRAIN)
    names = tuple(capture.name(inner(variable)) or "" for variable in trained)
    return RecordedStep(op, loss, names, optimizer(trained))


def inner(variable: Any) -> tf.Variable:
    """The TensorFlow variable in a Keras variable, or what is one itself."""
    return variable if isinstance(variable, tf.Variable) else variable.value
