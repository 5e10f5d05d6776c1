"""Capture the programs that a trainer runs: a training step, an evaluation or a prediction, for one batch size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from ...common.errors import InputError
from ...frontend.connected import differentiated
from ...frontend.gradient_placeholders import placeholders
from ...frontend.importer import import_graph
from ...frontend.recorded_graph import RecordedGradients, RecordedStep
from ...frontend.tracing.capture import Capture, Program, VariableNames
from ...frontend.tracing.effects import Effect
from ...frontend.tracing.preprocessing import ancestors
from ...frontend.tracing.tapes import StepGradients
from ...ir.graph import CONSTANT, Graph, Operator, Tensor
from ...ir.optimizer import Optimizer
from ...runtime.failures.step_errors import checked_values
from .by_sample_layers import that_tell_samples
from .compiling import in_a_sentence
from .own_step import capturable, recorded_updates
from .signature import Signature

TRAIN, EVALUATE, PREDICT = "train", "evaluate", "predict"


class Objective(Protocol):
    """A trainable objective: functions over batches, and the variables that they use."""

    @property
    def trained(self) -> Sequence[Any]:
        """The user's trainable variables, Keras's or TensorFlow's."""

    @property
    def applies_optimizers(self) -> bool:
        """Return whether the training step takes gradients and applies optimizers itself; else it returns the loss first."""

    @property
    def counter(self) -> tf.Variable | None:
        """The variable by which a training step counts updates, for what it computes after them; None if it doesn't."""
        return None

    def names_of(self, variables: Sequence[tf.Variable]) -> Sequence[str]:
        """Return the names of the variables that a function uses."""

    def layer_of(self, name: str) -> str | None:
        """Return a description of the layer of an operator, given by name, for messages; None if it has no layer."""
        return None

    def by_sample(self, name: str) -> str | None:
        """Return the scope of an operator's layer, if the layer is known to compute each sample by itself; else None."""
        return None

    def functions(self, signature: Signature) -> dict[str, tuple[Callable[..., Any], Sequence[Any]]]:
        """Return each kind of program's function and its arguments' specs."""


@dataclass(frozen=True)
class Captured:
    """One program for one batch size.

    Attributes:
        graph: the imported graph (IR).
        program: the program's inputs, results and writes in the flat TensorFlow graph.
        capture: the flat TensorFlow graph, and the user's variables in it.
    """

    graph: Graph
    program: Program
    capture: Capture

    @cached_property
    def given(self) -> tuple[Tensor, ...]:
        """The tensors that the user gives, which may have to be preprocessed to what the program is fed."""
        return tuple(Tensor(given.name, tuple(given.shape.as_list()), given.dtype.name) for given in self.program.given)

    @cached_property
    def inputs(self) -> tuple[Tensor, ...]:
        """The tensors that the program is fed."""
        return tuple(self.graph.tensors[tensor.name] for tensor in self.program.inputs)

    @property
    def results(self) -> tuple[Tensor, ...]:
        """The tensors that the program returns, flattened."""
        return tuple(self._tensor(tensor) for tensor in tf.nest.flatten(self.program.results))

    @cached_property
    def needed(self) -> tuple[Tensor, ...]:
        """The tensors that the program's effects on the world need, each once."""
        return tuple(dict.fromkeys(self._tensor(tensor) for effect in self.program.effects for tensor in effect.needs))

    def act(self, values: Sequence[np.ndarray], rank: int) -> None:
        """Have the program's effects on the world: prints and the like on rank 0, checks of values on all ranks.

        Args:
            values: the global values of :attr:`needed`.

        Raises:
            InputError: a check fails.
        """
        value_of = dict(zip((tensor.name for tensor in self.needed), values, strict=True))
        for effect in self.program.effects:
            inputs = [value_of[self._tensor(tensor).name] for tensor in effect.needs]
            if (rank == 0 or effect.is_check) and not effect.is_out(inputs):
                with checked_values(effect.where) if effect.is_check else nullcontext():
                    effect(inputs)

    @property
    def writes(self) -> tuple[str, ...]:
        """The names of the operators by which the program updates variables."""
        return tuple(op.name for op in self.program.writes)

    def variable(self, variable: tf.Variable) -> Operator | None:
        """Return the operator of one of the user's variables; None if the program doesn't use the variable."""
        name = self.capture.name(variable)
        return None if name is None else self.graph.operators.get(name)

    def _tensor(self, tensor: tf.Tensor) -> Tensor:
        resolved = self.graph.resolve(tensor.name)
        assert resolved is not None, f"{tensor.name} wasn't imported"
        return resolved


def capture_program(
    kind: str,
    objective: Objective,
    signature: Signature,
    optimizer_of: Callable[[Any, Sequence[Any]], Any],
    names: VariableNames | None = None,
) -> Captured:
    """Capture one program for batches of one size.

    Args:
        kind: TRAIN, EVALUATE or PREDICT.
        optimizer_of: makes the graph's optimizer from the user's, or from None where the step applies none itself, for the
            variables that it trains.
        names: names the variables alike in all programs; None where this is the only one.

    Raises:
        InputError: something can't be captured, the loss isn't a scalar, or it depends on no trainable variable.
    """
    function, arguments = objective.functions(signature)[kind]
    capture = Capture(names or objective.names_of, objective.layer_of, objective.by_sample)
    trace = StepGradients() if kind == TRAIN and objective.applies_optimizers else None
    try:
        with that_tell_samples():
            program = _captured(capture, function, arguments, trace)
    except Exception as error:
        explanation = in_a_sentence(error, signature)
        if explanation is error:
            raise
        raise explanation from error
    steps: Sequence[RecordedStep] = ()
    records: Sequence[RecordedGradients] = ()
    if trace is not None:
        program, steps, records = recorded_updates(capture, program, trace, optimizer_of)
    elif kind == TRAIN:
        program = _without_unread_count(program, capture, objective.counter)
        step, records = _step(capture, program, objective, partial(optimizer_of, None))
        steps = [step]
    effect_inputs = (tensor for effect in program.effects for tensor in effect.needs)
    targets = [tensor.op for tensor in (*program.inputs, *tf.nest.flatten(program.results), *effect_inputs)]
    feeds = [tensor for tensor in program.inputs if not any(tensor is source for source in program.given)]
    graph = import_graph(capture.graph, steps, capture.flattener.lines, [*targets, *program.writes], records, feeds)
    return Captured(graph, replace(program, effects=tuple(_possible_effects(program.effects, graph))), capture)


def _captured(
    capture: Capture, function: Callable[..., Any], arguments: Sequence[Any], trace: StepGradients | None
) -> Program:
    """Capture a function; of a step that applies optimizers by itself, its losses and gradients, too."""
    if trace is None:
        return capture.add(function, arguments)
    try:
        return capture.add(capturable(function, trace), arguments)
    except tf.errors.OperatorNotAllowedInGraphError:
        # Python decides by a tensor. Only such a step is converted, since generated code hides the user's lines.
        autograph = tf.__internal__.autograph
        converted = autograph.tf_convert(function, autograph.control_status_ctx())
        return capture.add(capturable(converted, trace), arguments)


def _possible_effects(effects: Iterable[Effect], graph: Graph) -> Iterator[Effect]:
    """Yield the effects that constants don't rule out, such as assertions about shapes."""
    for effect in effects:
        makers = [graph.producers[value.name] for value in map(graph.resolve, (leaf.name for leaf in effect.needs)) if value]
        if not effect.is_out([op.statics.get(0) if op.type == CONSTANT else None for op in makers]):
            yield effect


def _without_unread_count(program: Program, capture: Capture, counter: tf.Variable | None) -> Program:
    """Return a training step that counts updates only where something reads their number."""
    name = None if counter is None else capture.name(counter)
    if name is None or len(capture.graph.get_operation_by_name(name).outputs[0].consumers()) > 1:
        return program
    return replace(program, writes=tuple(op for op in program.writes if op.inputs[0].op.name != name))


def _step(
    capture: Capture, program: Program, objective: Objective, optimizer: Callable[[Sequence[Any]], Optimizer]
) -> tuple[RecordedStep, Sequence[RecordedGradients]]:
    """Return the training step that minimises the loss.

    If the model assigns to a variable that it trains, as spectral normalization does, its gradients are taken at the values
    that are read afterwards; they are returned, too.
    """
    loss = program.results[0] if isinstance(program.results, tuple) else program.results
    if not isinstance(loss, tf.Tensor) or loss.shape.rank != 0 or not loss.dtype.is_floating:
        text = f"a tensor of shape {loss.shape} and type {loss.dtype.name}" if isinstance(loss, tf.Tensor) else repr(loss)
        raise InputError(
            f"the loss must be one floating-point number for the whole batch, got {text}; reduce it, as by tf.reduce_mean, "
            "or with a Keras loss whose reduction is 'sum_over_batch_size'"
        )
    read = ancestors([loss.op])
    variables = [variable for variable in objective.trained if capture.name(inner(variable)) in read]
    if not variables:
        raise InputError("the loss depends on no trainable variable; build the model first, and leave its layers trainable")
    with capture.graph.as_default(), tf.control_dependencies(program.writes):
        op = tf.no_op(name=TRAIN)
    names = tuple(capture.name(inner(variable)) or "" for variable in variables)
    if not any(op.inputs[0].op.name in names for op in program.writes):
        return RecordedStep(op, loss, names, optimizer(variables)), ()
    with capture.graph.as_default():
        handles = [capture.graph.get_operation_by_name(name).outputs[0] for name in names]
        stand_ins = placeholders(loss, [inner(variable) for variable in variables], handles, differentiated(loss, names))
    by_id = {id(inner(variable)): variable for variable in variables}
    reached_variables = [by_id[id(variable)] for variable in stand_ins.variables]
    names = tuple(capture.name(variable) or "" for variable in stand_ins.variables)
    record = RecordedGradients("gradients", loss, names, stand_ins.dense)
    return RecordedStep(op, None, names, optimizer(reached_variables), gradients=stand_ins.dense), (record,)


def inner(variable: Any) -> tf.Variable:
    """Return the TensorFlow variable in a Keras variable; a TensorFlow variable is returned as it is."""
    # Not .value: a variable of a parallelized model asks its trainers for that, and may return the trained value.
    return variable if isinstance(variable, tf.Variable) else variable._value
