"""Hand what a script asks of its Keras models to trainers, so that the model is the trainer.

| the script calls | what happens |
|---|---|
| ``fit``, ``train_on_batch`` of a compiled model | a trainer is captured for the first batch, and trains |
| the same again | the same trainer, unless the model was compiled again or a step has another number of samples |
| the same of a model of which nothing is trainable | Keras, on each rank |
| ``evaluate``, ``predict``, ``test_on_batch``, ``predict_on_batch`` | the trainer; Keras on each rank before there is one |
| ``save``, ``save_weights``, ``export`` | rank 0 writes, and the other ranks join in gathering the values |
| ``summary`` | Keras, with the optimizer's variables that are on the ranks |
| ``load_weights`` | rank 0 reads for all, the state of the optimizer too; before there is a trainer, each rank reads |

The trainer is kept in the model's ``train_function``, which Keras forgets where a new capture is due: in ``compile``. The
model's variables are live (:mod:`..trainer.variables.live`): whoever reads one gets the trained value. So is the optimizer's
state, which a trainer takes over from the one before it as long as the optimizer is the same.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, wraps
from types import SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

import keras
import tensorflow as tf
from keras.src.backend.tensorflow.trainer import TensorFlowTrainer

from ..common.errors import InputError
from ..common.source_lines import running_line
from ..runtime.execute import loaded_plan
from ..runtime.failures.notes import SEED
from ..runtime.ranks import current_processes
from ..trainer.batch import Batch
from ..trainer.callbacks import DECISIONS
from ..trainer.capture.objective import KerasObjective, has_own_step
from ..trainer.capture.programs import TRAIN
from ..trainer.parallelize import Training, TrainingOptions, parallelized
from ..trainer.trainer import Trainer
from ..trainer.variables.leading import LedRanks
from ..trainer.variables.live import Live, held_state, settle
from .batch_sizes import batch_size_of
from .effects import say_once, say_unsaved
from .steps import IS_HANDED, hand_over_steps, is_set

TRAINING = ("fit", "train_on_batch")
OTHERS = ("evaluate", "predict", "test_on_batch", "predict_on_batch")
WRITING = ("save", "save_weights", "export")
READING = "load_weights"
_FROZEN = "_tensoropt_frozen"

_is_in_file: ContextVar[bool] = ContextVar("tensoropt_is_in_file", default=False)
_updated: WeakKeyDictionary[Any, frozenset[int]] = WeakKeyDictionary()
"""The variables that each optimizer first updated, by id."""


class Everyone(LedRanks):
    """All ranks of the run, of which rank 0 may do something for all."""

    def settle_for_all(self) -> None:
        """Send all ranks what rank 0 has assigned."""
        settle(self)


@cache
def everyone() -> Everyone:
    """Return all ranks of the run."""
    return Everyone(current_processes())


def _of_model(name: str) -> Any:
    """Return a property that is an attribute of the user's model."""

    def assign(self: Any, value: Any) -> None:
        if "inner" in vars(self):  # not so while Keras makes the trainer itself
            setattr(self.inner, name, value)

    return property(lambda self: getattr(self.inner, name, None), assign)


class ScriptTrainer(Trainer):
    """The trainer of a model that the script itself trains."""

    trains_planned_size = False
    history, stop_training, stop_evaluating, stop_predicting, _initial_epoch = map(_of_model, ("history", *DECISIONS))

    def shown_to(self, callback: keras.callbacks.Callback) -> keras.Model:
        """Return the model that a callback sees: the user's, or for Keras's own callbacks the trainer, which knows them."""
        return self if type(callback).__module__.startswith("keras.") else self.inner

    def in_file(self, method: Callable[..., Any], arguments: Sequence[Any], keywords: Mapping[str, Any]) -> None:
        """Have rank 0 write the trained values to a file, or read them from it, by a method of Keras's models."""
        path = str(arguments[0] if arguments else keywords.get("filepath"))
        act = self._saving.read if method.__name__ == READING else self._saving.write
        act(path, lambda model: method(model, *arguments, **keywords))

    def check_trained(self) -> None:
        """Go on training what was trainable when the model was captured, as Keras does without another ``compile``."""
        self._has_others = self.is_live and {id(variable) for variable in self.trained} != set(self._trained_before)

    def _check_size(self, batch: Batch) -> None:
        """Take batches of any size; each size has a program of its own."""

    def _train(self, batch: Batch) -> Any:
        """Train on a batch; raise InputError if its size needs a program, which would train other variables than before."""
        if self._has_others and not self.ranks.runs.has(TRAIN, batch):
            raise InputError(
                f"other variables of model '{self.inner.name}' are trainable than when it was compiled ({running_line()}), "
                "so a program for batches of this size would train them; call model.compile(...) again"
            )
        return super()._train(batch)


@dataclass(frozen=True, slots=True, eq=False)
class Trained:
    """The ``train_function`` of a model that a trainer trains."""

    trainer: ScriptTrainer
    optimizer: Any


def trainer_of(model: keras.Model) -> ScriptTrainer | None:
    """Return the trainer of a model; None if it has none, or its optimizer is another one by now."""
    function = getattr(model, "train_function", None)
    return function.trainer if isinstance(function, Trained) and function.optimizer is model.optimizer else None


def hand_over(options: Mapping[str, Any]) -> None:
    """Have Keras's models trained by trainers with these options of :func:`tensoropt.parallelize`, which may change."""

    def options_now() -> TrainingOptions:
        goes_alone = options.get("plan") is None and options.get("cluster") is None
        training_options, n_ranks = TrainingOptions(**options, goes_alone=goes_alone), current_processes().size
        n_devices = n_ranks if training_options.plan is None else loaded_plan(training_options.plan).parallelism
        if n_devices != n_ranks:
            raise InputError(f"the plan is for {n_devices} devices, and {n_ranks} ranks were started; give -n {n_devices}")
        return training_options

    options_now()
    for name in (*TRAINING, *OTHERS):
        setattr(TensorFlowTrainer, name, _handing(getattr(TensorFlowTrainer, name), options_now))
    for name in (*WRITING, READING):
        setattr(keras.Model, name, _in_files(getattr(keras.Model, name)))
    for package in ("keras", "keras._tf_keras.keras"):
        for module in ("models", "saving"):
            importlib.import_module(f"{package}.{module}").save_model = _save_model  # type: ignore[attr-defined]
    keras.Model.summary = _counting(keras.Model.summary)
    hand_over_steps(options_now, lambda: everyone().leads)
    for kind, name in ((tf.train.Checkpoint, "write"), (tf.train.Checkpoint, "save"), (tf.train.CheckpointManager, "save")):
        setattr(kind, name, _refused_on_ranks(getattr(kind, name)))


def _handing(original: Callable[..., Any], options: Callable[[], TrainingOptions]) -> Callable[..., Any]:
    name = original.__name__

    @wraps(original)
    def method(self: Any, *arguments: Any, **keywords: Any) -> Any:
        if isinstance(self, KerasObjective) or not self.compiled or _is_by_xla(self):
            return original(self, *arguments, **keywords)
        trainer = trainer_of(self)
        if name in TRAINING and trainer is None and _is_frozen(self):
            result = original(self, *arguments, **keywords)
            vars(self)[_FROZEN] = self.train_function
            return result
        if name in TRAINING:
            if name == "train_on_batch":
                say_unsaved(name)
            trainer = _fitting(self, trainer, original, arguments, keywords, options)
        if trainer is None or (trainer.deferred is not None and name not in TRAINING):
            return original(self, *arguments, **keywords)
        with is_set(IS_HANDED):
            result = getattr(trainer, name)(*arguments, **keywords)
        if isinstance(result, keras.callbacks.History):
            result.set_model(self)
        return result

    # Messages of ranks that wait show this name.
    method.__code__ = method.__code__.replace(co_name=name)  # type: ignore[attr-defined]
    return method


def _is_by_xla(model: keras.Model) -> bool:
    """Return whether Keras trains a model itself: on one rank that isn't saved, where the script asks for XLA."""
    config = getattr(model, "_compile_config", None)
    if config is None or config.config["jit_compile"] is not True:
        return False
    is_alone = current_processes().size == 1 and SEED not in os.environ
    effect = "Keras trains the model itself" if is_alone else "steps on ranks run without XLA"
    say_once(f"the script compiles a model with jit_compile=True: {effect}")
    return is_alone


def _is_frozen(model: keras.Model) -> bool:
    """Return whether no variable is trainable, so that Keras updates the metrics and moving averages on each rank.

    Keras goes on with the function that it has traced then until the model is compiled again.
    """
    traced = vars(model).get(_FROZEN)
    if traced is not None and traced is model.train_function:
        return True
    return model.built and not model.trainable_variables and not has_own_step(model)


def _fitting(
    model: keras.Model,
    trainer: ScriptTrainer | None,
    method: Callable[..., Any],
    arguments: Any,
    keywords: Mapping[str, Any],
    options: Callable[[], TrainingOptions],
) -> ScriptTrainer:
    """Return the trainer for a call that trains: the model's, or a new one if its plan is for another size of batches."""
    n_samples = batch_size_of(method, arguments, keywords)
    if trainer is not None:
        n_planned = trainer.batch_size
        is_last = method.__name__ == "train_on_batch" and n_samples is not None and n_samples < n_planned
        if trainer.deferred is None and (n_samples in (None, n_planned) or is_last or everyone().leads):
            return trainer
    if everyone().leads:
        raise InputError(
            f"model '{model.name}' is trained ({running_line()}) in a callback, which rank 0 alone runs; call fit "
            "for it outside of the callback"
        )
    # The optimizer is new or goes on with variables that it first updated, as in Keras.
    variables = frozenset(id(variable) for variable in model.trainable_variables)
    if model.built and not variables <= _updated.setdefault(model.optimizer, variables):
        raise InputError(
            f"model '{model.name}' is compiled with an optimizer that has trained other variables before "
            f"({running_line()}): give compile a new one, such as keras.optimizers.{type(model.optimizer).__name__}(...)"
        )
    new_trainer = parallelized(model, n_samples, options(), Training(), ScriptTrainer)
    assert isinstance(new_trainer, ScriptTrainer)
    model.train_function = Trained(new_trainer, model.optimizer)
    return new_trainer


def _in_files(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that writes or reads a model's files on rank 0, while the other ranks join in."""

    @wraps(original)
    def method(self: Any, *arguments: Any, **keywords: Any) -> Any:
        trainer = None if isinstance(self, KerasObjective) else trainer_of(self)
        has_trained = trainer is not None and trainer.deferred is None
        if isinstance(self, KerasObjective) or _is_in_file.get() or (original.__name__ == READING and not has_trained):
            return original(self, *arguments, **keywords)
        with is_set(_is_in_file):
            if trainer is not None and has_trained:
                return trainer.in_file(original, arguments, keywords)
            return everyone().lead(lambda: original(self, *arguments, **keywords))

    return method


def _counting(summary: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method that prints a model's table, with the variables that its optimizer has on the ranks."""

    @wraps(summary)
    def method(self: Any, *arguments: Any, **keywords: Any) -> Any:
        optimizer = None if isinstance(self, KerasObjective) else getattr(self, "optimizer", None)
        entries = [] if optimizer is None else held_state(optimizer)
        if not entries:
            return summary(self, *arguments, **keywords)
        vars(self)["optimizer"] = SimpleNamespace(built=True, variables=entries)
        try:
            return summary(self, *arguments, **keywords)
        finally:
            vars(self)["optimizer"] = optimizer

    return method


def _save_model(model: keras.Model, filepath: Any, *arguments: Any, **keywords: Any) -> None:
    """Save a model as its own method does. It is Keras's function ``save_model``."""
    model.save(filepath, *arguments, **keywords)


def _refused_on_ranks(write: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that writes a checkpoint where TensorFlow trains on one rank, and else raises InputError."""

    @wraps(write)
    def written(checkpoint: Any, *arguments: Any, **keywords: Any) -> Any:
        if current_processes().size == 1 and not Live.count:
            return write(checkpoint, *arguments, **keywords)
        raise InputError(
            f"tf.train.Checkpoint ({running_line()}) would write a file on each rank, without the optimizer's state, which "
            "is on the ranks; write the model by model.save(path), and read it by keras.models.load_model(path)"
        )

    return written
