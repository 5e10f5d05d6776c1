"""Run the user's callbacks on rank 0, where they may do whatever they do on one device.

The other ranks wait meanwhile. They join in whatever a callback asks of the trainer that needs all ranks: weights, saving,
evaluating, setting the learning rate. What a callback decides for Keras's loops (to stop, where to begin) reaches all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import keras
from keras.callbacks import TensorBoard

from ..common.errors import InputError, short
from ..plan.plan import Plan
from .step_scalars import StepScalars
from .trainer_ranks import TrainerRanks

HOOKS = tuple(
    f"on_{what}_{when}"
    for what in ("train", "test", "predict", "epoch", "train_batch", "test_batch", "predict_batch")
    for when in ("begin", "end")
)
# The attributes that callbacks set on a model and that Keras's loops read.
DECISIONS = ("stop_training", "stop_evaluating", "stop_predicting", "_initial_epoch")
OF_KERAS = (keras.callbacks.History, keras.callbacks.ProgbarLogger)


class Led(Protocol):
    """A trainer, as callbacks see it (:class:`.trainer.Trainer`)."""

    ranks: TrainerRanks

    @property
    def plan(self) -> Plan: ...

    @property
    def batch_size(self) -> int: ...

    def shown_to(self, callback: keras.callbacks.Callback) -> keras.Model: ...

    def as_trained(self) -> AbstractContextManager[Any]: ...


def on_ranks(callbacks: Any, trainer: Led) -> Any:
    """Return the callbacks that this rank's loop gets in place of the user's.

    Keras's own, which write the history and the progress, run on every rank.

    Raises:
        InputError: something isn't a callback.
    """
    if callbacks is None:
        return None
    if isinstance(callbacks, keras.callbacks.CallbackList):
        callbacks = callbacks.callbacks
    all_callbacks = list(callbacks) if isinstance(callbacks, Iterable) else [callbacks]
    for callback in all_callbacks:
        if not isinstance(callback, keras.callbacks.Callback):
            raise InputError(f"callbacks takes objects of keras.callbacks.Callback, got {short(callback)}")
    customs = [callback for callback in all_callbacks if not isinstance(callback, OF_KERAS)]
    # Rank 0's callbacks count, since a script may create them only there.
    hooks = trainer.ranks.lead(lambda: tuple(hook for hook in HOOKS if any(_has(callback, hook) for callback in customs)))
    keras_callbacks = [callback for callback in all_callbacks if isinstance(callback, OF_KERAS)]
    return [_FollowingCallback(customs if trainer.ranks.rank == 0 else [], hooks, trainer), *keras_callbacks]


def _has(callback: keras.callbacks.Callback, hook: str) -> bool:
    """Return whether a callback does anything in a hook."""
    if "train_batch" in hook and getattr(callback, "save_freq", None) == "epoch":
        return False
    old_name = hook.replace("train_batch", "batch")
    return any(_own(callback, name) for name in {hook, old_name})


def _own(callback: keras.callbacks.Callback, name: str) -> bool:
    method = getattr(callback, name)
    return getattr(method, "__func__", method) is not getattr(keras.callbacks.Callback, name)


class _FollowingCallback(keras.callbacks.Callback):
    """A callback that runs rank 0's callbacks, while the other ranks follow at the same point of their loops."""

    def __init__(self, callbacks: list[keras.callbacks.Callback], hooks: Iterable[str], trainer: Led) -> None:
        super().__init__()
        self._callbacks, self._trainer, self._scalars = callbacks, trainer, StepScalars()
        for hook in hooks:
            setattr(self, hook, self._led(hook))

    def _led(self, hook: str) -> Callable[..., None]:
        is_drawn = hook == "on_epoch_end" and any(getattr(callback, "histogram_freq", 0) for callback in self._callbacks)

        def call(logs: dict[str, Any], /, *arguments: Any, **keywords: Any) -> tuple[dict[str, Any], dict[str, Any]]:
            self._scalars.note(hook)
            are_written = hook == "on_epoch_end" and any(isinstance(callback, TensorBoard) for callback in self._callbacks)
            scalars = self._scalars.of(self._trainer.plan, self._trainer.batch_size) if are_written else {}
            old_logs = dict(logs)
            for callback in self._callbacks:
                values = (arguments[0], {**logs, **scalars}) if scalars and isinstance(callback, TensorBoard) else arguments
                getattr(callback, hook)(*values, **keywords)
            changes = {name: value for name, value in logs.items() if name not in old_logs or value is not old_logs[name]}
            return {name: getattr(self._trainer, name, None) for name in DECISIONS}, changes

        def led(*arguments: Any, **keywords: Any) -> None:
            last = keywords.get("logs", arguments[-1] if arguments else None)
            logs = last if isinstance(last, dict) else {}

            def action() -> tuple[dict[str, Any], dict[str, Any]]:
                if not is_drawn:
                    return call(logs, *arguments, **keywords)
                with self._trainer.as_trained():
                    return call(logs, *arguments, **keywords)

            decisions, changes = self._trainer.ranks.lead(action)
            for name, value in decisions.items():
                setattr(self._trainer, name, value)
            logs.update(changes)  # as ReduceLROnPlateau writes the learning rate, for the history of all ranks

        return led

    def set_params(self, params: Any) -> None:
        super().set_params(params)
        for callback in self._callbacks:
            callback.set_params(params)

    def set_model(self, model: Any) -> None:
        super().set_model(model)
        self._trainer.ranks.lead(lambda: self._show())

    def _show(self) -> None:
        for callback in self._callbacks:
            callback.set_model(self._trainer.shown_to(callback))
