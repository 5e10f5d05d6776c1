"""Turn a Keras model or a captured function into a trainer: capture it, plan it, build its execution."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import keras
import numpy as np

from ..common.errors import InputError, short
from ..common.process.progress import Display
from ..common.source_lines import running_line
from ..frontend.recording import checked_batch_size
from ..frontend.tracing.capture import VariableNames
from ..optimizers.keras_optimizer import KerasOptimizer
from ..plan.plan import Plan
from ..runtime.alone import could_go_alone, go_alone
from ..runtime.context import Context, model_of
from ..runtime.execute import checked_collectives, loaded_plan
from ..runtime.execution import execute
from ..runtime.gpus import computes_on_gpu
from ..runtime.ranks import current_processes, display_here, install_error_handling
from ..search.options import OPTIONS
from ..sharding.model import Model
from ..tuning.asked_plan import PlanningOptions
from .capture.accepting import check_eager, check_model
from .capture.compiling import check_compilation
from .capture.objective import Compilation, OwnCompilation, that_takes_labels
from .capture.optimizer_reads import check_reads
from .capture.programs import TRAIN, Captured, capture_program
from .capture.signature import Signature, Structure, inputs_of, left_open_by, opened, signature_of
from .deferred import Deferred, build_layers
from .functions.function import CapturedFunction, FunctionTrainer
from .functions.step_function import StepFunction, StepObjective
from .runs import Limit, Run, Runs
from .trainer import Trainer
from .variables.live import Live

RUNNING_OPTIONS = tuple(option for option in OPTIONS if option != "profiling")


@dataclass(frozen=True, kw_only=True)
class TrainingOptions(PlanningOptions):
    """The options for planning and running a model: see :func:`tensoropt.parallelize`."""

    plan: Plan | str | None = None
    collectives: str | None = None
    goes_alone: bool = False  # rank 0, where the plan for the first model splits nothing


@dataclass(frozen=True)
class Training:
    """How a model is trained, and what its batches are: see :func:`tensoropt.parallelize`."""

    optimizer: Any = None
    loss: Any = None
    metrics: Any = None
    loss_weights: Any = None
    weighted_metrics: Any = None
    labels: Any = None
    sample_weight: bool = False
    data: Any = None


@dataclass(frozen=True)
class _Start:
    """The capture and planning of a trainer's training step, which make the trainer ready to run.

    Attributes:
        optimizer: the user's optimizer, with loss scaling where that is needed.
        specs: the specs of inputs that a Keras model tells; None if it tells none.
        has_open_labels: whether a Keras model's loss, or its own training step, takes labels of any shape.
    """

    trainer: Trainer | FunctionTrainer
    optimizer: keras.optimizers.Optimizer
    specs: Structure
    has_open_labels: bool
    options: TrainingOptions
    context: Context
    collectives: str
    display: Display

    def __call__(self, signature: Signature) -> None:
        """Capture and plan the step, and start the trainer; raise InputError if it can't be captured, or no plan fits."""
        trainer, context, display = self.trainer, self.context, self.display
        objective = trainer.captured if isinstance(trainer, FunctionTrainer) else trainer

        def optimizer_of(keras_optimizer: Any, variables: Sequence[Any]) -> KerasOptimizer:
            return KerasOptimizer.of(self.optimizer if keras_optimizer is None else keras_optimizer, variables)

        names = VariableNames(objective.names_of)
        if isinstance(objective, Trainer):
            objective._optimizer_to_count = self.optimizer

        def capture(kind: str, batch_signature: Signature) -> Captured:
            with display.phase("capture of the model"):
                captured = capture_program(kind, objective, batch_signature, optimizer_of, names)
            check_reads(captured, self.optimizer)
            return captured

        def first_value(captured: Captured, name: str) -> np.ndarray:
            """Return a variable's first value, rank 0's for all, since each process may have drawn its own."""
            variable = captured.capture.variables[name]
            own_value = variable.numpy()  # on all ranks, which may have to gather it
            value = np.asarray(context.processes.broadcast(own_value if context.processes.rank == 0 else None))
            if context.processes.rank:
                variable.assign(value)
            return value

        def first_values(captured: Captured) -> Callable[[str], np.ndarray]:
            return partial(first_value, captured)

        with display.phase("start"):
            captured = capture(TRAIN, signature)
            with display.phase("gradients of the model"):
                model = model_of(captured.graph, context)
            if self.options.plan is not None:
                plan = _given(self.options.plan, context)
            else:
                with display.phase("search for a plan"):
                    plan = self._found(self.options, model, partial(first_values, captured))
                    # What was trained before may be in shards of all ranks.
                    goes_alone = self.options.goes_alone and not Live.count and could_go_alone(context.processes)
                    if goes_alone and plan.splits_nothing:
                        plan = self._found(replace(self.options, parallelism=1), model, partial(first_values, captured))
                        display.say("one device is as fast: rank 0 goes on alone")
                        go_alone(context.processes)
            values = first_values(captured)
            execution = execute(plan, model, values, context.processes, self.collectives, display, values_are_exchanged=True)
            expected = opened(signature, self.specs, self.has_open_labels) if isinstance(trainer, Trainer) else signature
            limit = Limit(self.options.memory, context)
            runs = Runs(Run(captured, execution), signature, expected, limit, capture, first_values, names)
            by_step = {step.name: step.optimizer for step in captured.graph.train_steps.values() if not step.of}
            optimizers = {name: value.source for name, value in by_step.items() if isinstance(value, KerasOptimizer)}
            display.say(plan.brief())
            if context.processes.local_size > 1 and plan.splits_nothing and not computes_on_gpu():
                display.say("note: a single rank (-n 1) has all of a machine's cores, of which each of these has its part")
            context.report(plan, display)
            trainer.start(execution, runs, optimizers)

    def _found(self, options: TrainingOptions, model: Model, own_values: Callable[[], Callable[[str], np.ndarray]]) -> Plan:
        arguments = model, self.context.hardware, self.context, self.display, own_values, self.collectives
        return options.find(*arguments, wants_frontier=False)


def _start_of(
    trainer: Trainer | FunctionTrainer,
    optimizer: Any,
    options: TrainingOptions,
    input_specs: Structure = None,
    has_open_labels: bool = False,
) -> _Start:
    """Return how a trainer is started; raise InputError if there is no such option, optimizer or hardware."""
    collectives = checked_collectives(options.collectives)
    if options.option not in RUNNING_OPTIONS:
        raise InputError(
            f"unknown option {short(options.option)}; expected one of {', '.join(map(repr, RUNNING_OPTIONS))}, since the "
            "model is built to run"
        )
    display = display_here(options.verbose)
    with display.phase("start"):
        context = Context(options.cluster, None, display, measures_now=options.plan is None)
    keras_optimizer = _optimizer("rmsprop" if optimizer is None else optimizer)
    if isinstance(trainer, Trainer) and isinstance(trainer.compilation, Compilation):
        keras_optimizer = _scaling(keras_optimizer, trainer.inner)
    return _Start(trainer, keras_optimizer, input_specs, has_open_labels, options, context, collectives, display)


def _given(plan_option: Plan | str, context: Context) -> Plan:
    plan = loaded_plan(plan_option)
    rank = context.processes.first_that_differs(json.dumps(plan.to_json(), sort_keys=True))
    if rank is not None:
        raise InputError(f"ranks 0 and {rank} were given different plans; give all ranks the same plan=")
    return plan


def _optimizer(value: Any) -> keras.optimizers.Optimizer:
    try:
        return keras.optimizers.get(value)
    except (ValueError, TypeError) as error:
        raise InputError(
            f"optimizer takes a Keras optimizer or the name of one, got {short(value)}; such as keras.optimizers.AdamW(1e-3)"
        ) from error


def _scaling(optimizer: keras.optimizers.Optimizer, model: keras.Model) -> keras.optimizers.Optimizer:
    """Return the optimizer, with loss scaling if the model's policy is mixed_float16, as ``keras.Model.compile`` does.

    Small gradients would vanish in float16, so the loss is scaled.
    """
    if model.dtype_policy.name != "mixed_float16" or isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return optimizer
    return keras.optimizers.LossScaleOptimizer(optimizer, name="loss_scale_optimizer")


# The arguments of keras.Model.compile and of find_strategy that parallelize doesn't take, and what to do instead.
_TAKEN_ELSEWHERE = {
    "steps_per_execution": "ranks run one step at a time, with the same numbers; leave it out",
    "jit_compile": "steps run as TensorFlow's graphs; leave it out",
    "run_eagerly": "steps run as TensorFlow's graphs; leave it out",
    "auto_scale_loss": "losses are scaled for mixed_float16 alone, by keras.optimizers.LossScaleOptimizer",
}


def refuse_others(others: Mapping[str, Any], parallelize: Callable[..., Any]) -> None:
    """Raise InputError if there are arguments that :func:`tensoropt.parallelize`, which is given, doesn't have."""
    install_error_handling(current_processes())
    for name in others:
        parameters = [parameter for parameter in inspect.signature(parallelize).parameters if parameter != "others"]
        advice = _TAKEN_ELSEWHERE.get(name, f"it takes {', '.join(parameters)}")
        raise InputError(f"parallelize ({running_line()}) has no argument {name!r}: {advice}")


def step_function(
    step: Any, model: Any, optimizer: Any, batch_size: int, data: Sequence[Any] | None, options: TrainingOptions
) -> StepFunction:
    """Return a training step on all ranks; see :func:`tensoropt.training_step`."""
    install_error_handling(current_processes())
    check_eager("training_step")
    step = getattr(step, "python_function", step)
    models = list(model) if isinstance(model, (list, tuple)) else [model]
    optimizers = list(optimizer) if isinstance(optimizer, (list, tuple)) else [optimizer]
    if not callable(step):
        raise InputError(f"training_step takes a function that takes gradients and applies optimizers, got {short(step)}")
    kinds = ("model", keras.Model, models), ("optimizer", keras.optimizers.Optimizer, optimizers)
    for name, kind, values in kinds:
        for value in values:
            if not isinstance(value, kind):
                raise InputError(f"{name}= of training_step takes a Keras {name} or a list of such, got {short(value)}")
    checked_batch_size(batch_size)
    function = started_step(StepObjective(step, models), optimizers[0], batch_size, options)
    if data is not None:
        function.prepare(*data)
    return function


def started_step(
    objective: StepObjective,
    optimizer: Any,
    batch_size: int,
    options: TrainingOptions,
    kind: type[StepFunction] = StepFunction,
) -> StepFunction:
    """Return a training step of a kind that is planned when it is first called."""
    function = kind(objective, batch_size)
    function.build = _start_of(function, optimizer, options)
    return function


def parallelized(
    model: Any,
    batch_size: int | None,
    options: TrainingOptions,
    training: Training,
    kind: type[Trainer] = Trainer,
) -> Trainer | FunctionTrainer:
    """Return a trainer of a model or of a captured function; see :func:`tensoropt.parallelize`.

    Args:
        kind: the class of a model's trainer. Only a :class:`Trainer` itself needs ``batch_size``; others are captured for
            their first batch without it.
    """
    # Before all checks, so that rank 0 reports errors for all ranks.
    install_error_handling(current_processes())
    check_eager("parallelize")
    trainer: Trainer | FunctionTrainer
    optimizer, loss, labels, data = training.optimizer, training.loss, training.labels, training.data
    if isinstance(model, CapturedFunction):
        if any(option is not None for option in (loss, training.metrics, batch_size, labels, data)):
            raise InputError(
                "a captured function returns its own loss for the batch of its signature; leave out loss=, metrics=, "
                "batch_size=, labels= and data="
            )
        trainer = FunctionTrainer(model)
        _start_of(trainer, optimizer, options)(Signature(list(model.signature)))
    else:
        metrics, weighted_metrics = training.metrics, training.weighted_metrics
        compiles = any(option is not None for option in (optimizer, loss, metrics, training.loss_weights, weighted_metrics))
        check_model(model, compiles)
        check_compilation(loss, metrics, weighted_metrics)
        if batch_size is None and kind is Trainer:
            raise InputError("parallelize takes batch_size=, the samples per step over all devices; a plan is made for it")
        if model.compiled and not compiles:
            compilation: Compilation | OwnCompilation = OwnCompilation(model)
            optimizer, loss = model.optimizer, getattr(model, "loss", None)
        else:
            compilation = Compilation(loss, training.loss_weights, metrics, weighted_metrics)
        step = that_takes_labels(model, loss)
        if step:
            loss = None
        expected = signature_of(model, loss, batch_size or 1, labels, training.sample_weight, data)
        if step and data is None and labels is None and not expected.waits_for:
            expected = replace(expected, waits_for=f"{step} of model '{model.name}' leaves open whether batches have labels")
        if kind is not Trainer and not expected.waits_for:
            expected = replace(expected, waits_for="its first batch shows what the data is")
        trainer = kind(model, compilation)
        start = _start_of(trainer, optimizer, options, inputs_of(model, batch_size or 1)[0], bool(left_open_by(loss)))
        if expected.waits_for:
            trainer.defer(Deferred(model, loss, expected, batch_size, start, running_line()), start.optimizer)
        else:
            build_layers(model, expected.inputs)
            start(expected)
    return trainer
