"""Turn a Keras model or a captured function into a trainer: capture it, plan it, build its execution."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import keras
import numpy as np

from ..common.errors import InputError, short
from ..common.progress import Display
from ..common.source_lines import running_line
from ..optimizers.keras_optimizer import KerasOptimizer
from ..plan.options import OPTIONS, find, request_of
from ..plan.plan import Plan
from ..profiling.hardware import Hardware
from ..runtime.context import Context
from ..runtime.execute import checked_collectives, execute, loaded_plan
from ..runtime.prepare import model_of
from ..runtime.ranks import current_processes, display_here, install_error_handling
from ..sharding.constraints import Force
from ..sharding.model import Model
from ..tuning.profile_guided import find_measured
from .accepting import check_eager, check_model
from .compiling import check_compilation
from .function import CapturedFunction, FunctionTrainer
from .objective import Compilation, OwnCompilation
from .programs import TRAIN, Captured, capture_program
from .runs import Run, Runs
from .signature import Signature, checked_batch_size, signature_of
from .step_function import StepFunction, StepObjective
from .trainer import Trainer
from .watched import own_values, tell_of_reads

RUNNING_OPTIONS = tuple(option for option in OPTIONS if option != "profiling")


@dataclass(frozen=True)
class Wishes:
    """The options for planning and running a model: see :func:`tensoropt.parallelize`."""

    option: str = "mini_time"
    memory: int | str | None = None
    parallelism: int | Sequence[int] | None = None
    cluster: Hardware | str | None = None
    force: Force | None = None
    plan: Plan | str | None = None
    collectives: str | None = None
    profile_budget: float | str | None = None
    without: Collection[str] = ()
    micro_batches: int | None = None
    verbose: int | str | bool = 1


def start(trainer: Trainer | FunctionTrainer, optimizer: Any, signature: Signature, wishes: Wishes) -> None:
    """Plan a trainer's training step, and make the trainer ready to run.

    Raises:
        InputError: something can't be captured, no plan fits, or an option isn't available.
    """
    display = display_here(wishes.verbose)
    with display.phase("start"):
        _start(trainer, optimizer, signature, wishes, display)
    display.say(trainer.plan.brief())


def _start(
    trainer: Trainer | FunctionTrainer, optimizer: Any, signature: Signature, wishes: Wishes, display: Display
) -> None:
    collectives = checked_collectives(wishes.collectives)
    if wishes.option not in RUNNING_OPTIONS:
        raise InputError(
            f"unknown option {short(wishes.option)}; expected one of {', '.join(map(repr, RUNNING_OPTIONS))}, since the "
            "model is built to run"
        )
    context = Context(wishes.cluster, None, display)
    chosen = _optimizer(optimizer)
    if isinstance(trainer, Trainer) and isinstance(trainer.compilation, Compilation):
        chosen = _scaling(chosen, trainer.inner)
    objective = trainer.captured if isinstance(trainer, FunctionTrainer) else trainer

    def capture(kind: str, at: Signature) -> Captured:
        def optimizer_of(applied: Any, variables: Sequence[Any]) -> KerasOptimizer:
            return KerasOptimizer.of(chosen if applied is None else applied, variables)

        with display.phase("capture of the model"):
            return capture_program(kind, objective, at, optimizer_of)

    def first_values(captured: Captured) -> _FirstValues:
        return _FirstValues(captured, context)

    captured = capture(TRAIN, signature)
    with display.phase("gradients of the model"):
        model = model_of(captured.graph, context)
    if wishes.plan is not None:
        plan = _given(wishes.plan, context)
    else:
        with display.phase("search for a plan"):
            plan = _found(model, context, wishes, lambda: first_values(captured), collectives)
    execution = execute(plan, model, first_values(captured), context.processes, collectives, display)
    applied = {step.name: step.optimizer for step in captured.graph.train_steps.values() if not step.of}
    optimizers = {name: each.source for name, each in applied.items() if isinstance(each, KerasOptimizer)}
    trainer.start(execution, Runs(Run(captured, execution), signature, capture, first_values), optimizers)


def _given(wanted: Plan | str, context: Context) -> Plan:
    plan = loaded_plan(wanted)
    other = context.processes.first_that_differs(json.dumps(plan.to_json(), sort_keys=True))
    if other is not None:
        raise InputError(f"ranks 0 and {other} were given different plans; give all ranks the same plan=")
    return plan


def _found(
    model: Model,
    context: Context,
    wishes: Wishes,
    first_values: Callable[[], Callable[[str], np.ndarray]],
    collectives: str,
) -> Plan:
    request = request_of(
        model, context.hardware, wishes.memory, wishes.force, wishes.without, wishes.micro_batches
    )
    request = replace(request, progress=context.display.update)
    if wishes.profile_budget is not None:
        return find_measured(
            wishes.option,
            request,
            wishes.parallelism,
            wishes.profile_budget,
            context.processes,
            context.on_first_rank,
            first_values,
            collectives,
        )
    plan = context.on_first_rank(lambda: find(wishes.option, request, wishes.parallelism))
    assert isinstance(plan, Plan)
    return plan


def _optimizer(given: Any) -> keras.optimizers.Optimizer:
    try:
        return keras.optimizers.get(given)
    except (ValueError, TypeError) as error:
        raise InputError(
            f"optimizer takes a Keras optimizer or the name of one, got {short(given)}; such as keras.optimizers.AdamW(1e-3)"
        ) from error


def _scaling(optimizer: keras.optimizers.Optimizer, model: keras.Model) -> keras.optimizers.Optimizer:
    """Return the optimizer, with loss scaling if the model's policy is mixed_float16, as ``keras.Model.compile`` does.

    Small gradients would vanish in float16, so the loss is scaled.
    """
    if model.dtype_policy.name != "mixed_float16" or isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return optimizer
    return keras.optimizers.LossScaleOptimizer(optimizer, name="loss_scale_optimizer")


@dataclass(frozen=True)
class _FirstValues:
    """The initial values of the user's variables, broadcast from rank 0, since each process has drawn its own."""

    captured: Captured
    context: Context

    def __call__(self, name: str) -> np.ndarray:
        variable = self.captured.capture.variables[name]
        value = variable.numpy() if self.context.processes.rank == 0 else None
        return np.asarray(self.context.processes.broadcast(value))


# The arguments of keras.Model.compile that parallelize doesn't take, and what to do instead.
_COMPILED_OTHERWISE = {
    "steps_per_execution": "ranks run one step at a time, with the same numbers; leave it out",
    "jit_compile": "steps run as TensorFlow's graphs; leave it out",
    "run_eagerly": "steps run as TensorFlow's graphs; leave it out",
    "auto_scale_loss": "losses are scaled for mixed_float16 alone, by keras.optimizers.LossScaleOptimizer",
}


def refuse_others(others: Mapping[str, Any]) -> None:
    """Refuse arguments that :func:`tensoropt.parallelize` doesn't have.

    Raises:
        InputError: there is such an argument.
    """
    from .. import parallelize

    install_error_handling(current_processes())
    for name in others:
        taken = [each for each in inspect.signature(parallelize).parameters if each != "others"]
        said = _COMPILED_OTHERWISE.get(name, f"it takes {', '.join(taken)}")
        raise InputError(f"parallelize ({running_line()}) has no argument {name!r}: {said}")


def step_function(
    step: Any, model: Any, optimizer: Any, batch_size: int, data: Sequence[Any] | None, wishes: Wishes
) -> StepFunction:
    """Return a training step on all ranks; see :func:`tensoropt.training_step`."""
    install_error_handling(current_processes())
    check_eager("training_step")
    step = getattr(step, "python_function", step)
    models = list(model) if isinstance(model, (list, tuple)) else [model]
    optimizers = list(optimizer) if isinstance(optimizer, (list, tuple)) else [optimizer]
    if not callable(step):
        raise InputError(f"training_step takes a function that takes gradients and applies optimizers, got {short(step)}")
    for each in models:
        if not isinstance(each, keras.Model):
            raise InputError(f"model= of training_step takes a Keras model or a list of such, got {short(each)}")
    for each in optimizers:
        if not isinstance(each, keras.optimizers.Optimizer):
            raise InputError(f"optimizer= of training_step takes a Keras optimizer or a list of such, got {short(each)}")
    checked_batch_size(batch_size)

    def build(made: StepFunction, signature: Signature) -> None:
        with own_values():
            start(made, optimizers[0], signature, wishes)

    made = StepFunction(StepObjective(step, models), batch_size, build)
    if data is not None:
        made.prepare(*data)
    return made


def parallelized(
    model: Any,
    optimizer: Any,
    loss: Any,
    metrics: Any,
    batch_size: int | None,
    wishes: Wishes,
    *,
    loss_weights: Any = None,
    weighted_metrics: Any = None,
    labels: Any = None,
    sample_weight: bool = False,
    data: Any = None,
) -> Trainer | FunctionTrainer:
    """Return a trainer of a model or of a captured function; see :func:`tensoropt.parallelize`."""
    # Before all checks, so that rank 0 reports errors for all ranks.
    install_error_handling(current_processes())
    check_eager("parallelize")
    trainer: Trainer | FunctionTrainer
    if isinstance(model, CapturedFunction):
        if any(given is not None for given in (loss, metrics, batch_size, labels, data)):
            raise InputError(
                "a captured function returns its own loss for the batch of its signature; leave loss=, metrics=, "
                "batch_size=, labels= and data="
            )
        trainer, signature = FunctionTrainer(model), Signature(list(model.signature))
    else:
        given = (optimizer, loss, metrics, loss_weights, weighted_metrics)
        compiles = any(each is not None for each in given)
        check_model(model, compiles)
        check_compilation(loss, metrics, weighted_metrics)
        is_compiled = model.compiled and not compiles
        if batch_size is None:
            raise InputError("parallelize takes batch_size=, the samples per step over all devices; a plan is made for it")
        if is_compiled:
            optimizer, loss = model.optimizer, getattr(model, "loss", None)
        signature = signature_of(model, loss, batch_size, labels, sample_weight, data)
        compilation = Compilation(loss, loss_weights, metrics, weighted_metrics)
        trainer = Trainer(model, OwnCompilation(model) if is_compiled else compilation)
        tell_of_reads(model.variables)
    with own_values():  # of a model, optimizer and metrics that other trainers may have
        start(trainer, "rmsprop" if optimizer is None else optimizer, signature, wishes)
    return trainer
