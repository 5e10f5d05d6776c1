"""Capture a training step that the user wrote: what it does with gradients becomes training steps of the captured graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import keras
import tensorflow as tf
from keras.src.optimizers.base_optimizer import BaseOptimizer

from ...common.errors import InputError
from ...common.source_lines import running_line
from ...frontend.gradient_placeholders import UPDATE_ATTRIBUTE, update_of, variable_of
from ...frontend.recorded_graph import RecordedGradients, RecordedStep
from ...frontend.recorded_updates import computed_with, minimised
from ...frontend.tracing.capture import Capture, Program
from ...frontend.tracing.loops import behind_identities
from ...frontend.tracing.preprocessing import ancestors
from ...frontend.tracing.tapes import Applied, StepGradients
from ...optimizers.classic import Classic
from ...optimizers.keras_optimizer import KerasOptimizer

OptimizerOf = Callable[[Any, Sequence[Any]], KerasOptimizer]


def capturable(step: Callable[..., Any], trace: StepGradients) -> Callable[..., Any]:
    """Return a function to capture in place of a training step: its results are followed by losses and gradients."""

    @tf.autograph.experimental.do_not_convert
    def function(*arguments: Any) -> Any:
        trace.taken.clear()
        trace.applied.clear()
        trace.scaled.clear()
        with trace.watching(list(_stand_ins(trace))):
            results = step(*arguments)
        for record in trace.taken:
            record.check_rows()
        losses, gradients = [record.loss for record in trace.taken], [record.dense for record in trace.taken]
        return () if results is None else results, losses, gradients

    return function


def _stand_ins(trace: StepGradients) -> Iterator[tuple[type, str, Callable[..., Any]]]:
    """Yield a class, the name of its method, and what stands in for the method, for all optimizers."""

    def apply(optimizer: Any, grads: Any, trainable_variables: Any = None) -> None:
        gradients = list(grads)
        if not gradients:
            return
        if trainable_variables is None and not optimizer.built:
            raise InputError("apply has no variables, and its optimizer isn't built; give apply(gradients, variables)")
        variables = list(optimizer._trainable_variables if trainable_variables is None else trainable_variables)
        if len(gradients) != len(variables):
            raise InputError(f"apply got {len(gradients)} gradients for {len(variables)} variables; give one for each")
        gradients, variables = optimizer._filter_empty_gradients(gradients, variables)
        trace.apply(optimizer, list(zip(gradients, variables, strict=True)))

    def scale_loss(optimizer: Any, loss: Any) -> Any:
        trace.scaled.add(id(optimizer))
        return loss

    for kind in _subclasses(BaseOptimizer):
        for name, function in (("apply", apply), ("scale_loss", scale_loss)):
            if name in vars(kind):
                yield kind, name, function


@contextmanager
def without_updates() -> Iterator[None]:
    """Have optimizers do nothing where they are applied."""
    with ExitStack() as stack:
        for kind in _subclasses(BaseOptimizer):
            if "apply" in vars(kind):
                stack.enter_context(patch.object(kind, "apply", lambda *arguments, **keywords: None))
        yield


def _subclasses(kind: type) -> list[type]:
    children: list[type] = kind.__subclasses__()
    return [kind, *(subclass for child in children for subclass in _subclasses(child))]


def recorded_updates(
    capture: Capture, program: Program, trace: StepGradients, optimizer_of: OptimizerOf
) -> tuple[Program, list[RecordedStep], tuple[RecordedGradients, ...]]:
    """Return what a captured step does with gradients.

    Args:
        program: the captured function that :func:`capturable` returned.
        optimizer_of: makes the optimizer of the graph from the user's and the variables that it updates.

    Returns:
        The program without what stands for gradients and updates, the applications of optimizers, in order, and the
        gradients that the step computes with.

    Raises:
        InputError: the step does something with gradients that can't be run under a plan.
    """
    results, losses, dense = program.results
    _check_reads(capture, trace)
    records = []
    for k, (traced, loss, markers) in enumerate(zip(trace.taken, losses, dense, strict=True)):
        names = tuple(capture.name(variable) or "" for variable in traced.variables)
        records.append(RecordedGradients(f"gradients_{k}", loss, names, tuple(map(behind_identities, markers))))
    gradients = {tensor.name for record in records for tensor in record.results}

    def pass_on(tensor: tf.Tensor) -> tf.Tensor:
        """Return a tensor that the step gives out; a gradient behind an operator, so that the step computes with it."""
        with capture.graph.as_default():
            return tf.stop_gradient(tensor) if behind_identities(tensor).name in gradients else tensor

    results = tf.nest.map_structure(pass_on, results, expand_composites=True)
    effects = tuple(replace(effect, needs=tuple(map(pass_on, effect.needs))) for effect in program.effects)
    updates: dict[int, list[tf.Operation]] = {}
    writes = []
    for op in program.writes:
        if UPDATE_ATTRIBUTE in op.node_def.attr:
            updates.setdefault(update_of(op), []).append(op)
        else:
            writes.append(op)
    steps: list[RecordedStep] = []
    first: dict[int, int] = {}
    for number, update in enumerate(trace.applied):
        assigns = tuple(updates.get(number, ()))
        if not assigns:  # in a branch that is never taken
            continue
        with capture.graph.as_default(), tf.control_dependencies(writes if number == len(trace.applied) - 1 else []):
            op = tf.no_op(name="train")
        optimizer = optimizer_of(update.optimizer, update.variables)
        condition = capture.flattener.conditions.get(assigns[0].name)
        if condition is not None:
            optimizer = replace(optimizer, condition=condition)
        variables = tuple(op.inputs[0].op.name for op in assigns)
        earlier = trace.applied[first.setdefault(id(update.optimizer), number)]
        if [id(variable) for variable in earlier.variables] != [id(variable) for variable in update.variables]:
            raise InputError(
                f"{type(update.optimizer).__name__} is applied ({update.line}) to other variables than before "
                f"({earlier.line}); give it all variables each time, or use an optimizer for each set of variables"
            )
        first_name = "" if earlier is update else steps[first[id(update.optimizer)]].op.name
        step = RecordedStep(op, None, variables, optimizer, assigns=assigns, of=first_name)
        written = {op.inputs[0].op.name for op in writes}.union(*(recorded.variables for recorded in steps))
        was_updated = not written.isdisjoint(variables)
        # What was updated, or assigned by the model, is read again, and gradients are taken there.
        step = minimised(step, [] if was_updated else [grad for grad in records if not _reads_late(grad.loss, variables)])
        _check_scaling(update, trace, is_given=step.loss is None)
        steps.append(step)
    if not steps:  # it adds gradients up in variables, or updates by hand
        if not writes:
            raise InputError(
                f"a training step applies no optimizer and assigns to no variable ({running_line()}), so that nothing would "
                "be trained; expected optimizer.apply(gradients, variables) in it, or variables that add gradients up"
            )
        with capture.graph.as_default(), tf.control_dependencies(writes):
            steps.append(RecordedStep(tf.no_op(name="train"), None, (), Classic("sgd")))
    return replace(program, results=results, writes=tuple(writes), effects=effects), steps, computed_with(records, steps)


def _reads_late(loss: tf.Tensor, variables: Sequence[str]) -> bool:
    """Return whether a loss follows from values that variables have after the step has assigned to them."""
    ancestor_names = ancestors([loss.op])
    readers = (op for name in variables for op in loss.graph.get_operation_by_name(name).outputs[0].consumers())
    return any(op.control_inputs and op.name in ancestor_names for op in readers)


def _check_reads(capture: Capture, trace: StepGradients) -> None:
    """Raise InputError if the step reads a variable of an optimizer: those of the ranks' optimizers are others."""
    ids = {id(variable) for variable in capture.variables.values()}
    for update in trace.applied:
        for variable in update.optimizer.variables:
            if id(variable_of(variable)) in ids:
                raise InputError(
                    f"a training step reads '{variable.path}' of the optimizer that it applies ({update.line}), whose "
                    "variables are on the ranks; read it outside of the step: trainer.optimizer.learning_rate and "
                    "trainer.optimizer.iterations, as in a callback"
                )


def _check_scaling(update: Applied, trace: StepGradients, is_given: bool) -> None:
    """Raise InputError if an optimizer that scales the loss didn't scale it, or is given others than its gradients."""
    optimizer = update.optimizer
    is_scaling = isinstance(optimizer, keras.optimizers.LossScaleOptimizer) or optimizer.loss_scale_factor is not None
    if not is_scaling:
        return
    fault = f"{type(optimizer).__name__}, which divides gradients by the scale of the loss, is applied ({update.line})"
    if id(optimizer) not in trace.scaled:
        raise InputError(f"{fault} to gradients of a loss that wasn't scaled; take them of optimizer.scale_loss(loss)")
    if is_given:
        raise InputError(
            f"{fault} to gradients that the step computes with; give it the gradients of optimizer.scale_loss(loss) as they "
            "are, and clip by its inner optimizer's clipnorm= or global_clipnorm="
        )
