"""Run the user's callbacks on rank 0, where they may do whatever they do on one device.

The other ranks wait meanwhile. They join in whatever a callback asks of the trainer that needs all ranks: weights, saving,
evaluating, setting the learning rate. What a callback decides for Keras's loops (to stop, where to begin) reaches all ranks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import keras
from keras.callbacks import TensorBoard

from ..common.errors import InputError, short
from ..plan.plan import Plan
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
    all_callbacks = keras.tree.flatten(callbacks)
    for callback in all_callbacks:
        if not isinstance(callback, keras.callbacks.Callback):
            raise InputError(f"callbacks takes objects of keras.callbacks.Callback, got {short(callback)}")
    customs = [callback for callback in all_callbacks if not isinstance(callback, OF_KERAS)]
    # Rank 0's callbacks count, since a script may create them only there.
    hooks = trainer.ranks.lead(lambda: tuple(hook for hook in HOOKS if any(_has_hook(own, hook) for own in customs)))
    keras_callbacks = [callback for callback in all_callbacks if isinstance(callback, OF_KERAS)]
    return [_FollowingCallback(customs if trainer.ranks.rank == 0 else [], hooks, trainer), *keras_callbacks]


def _has_hook(callback: keras.callbacks.Callback, hook: str) -> bool:
    if "train_batch" in hook and getattr(callback, "save_freq", None) == "epoch":
        return False
    old_name = hook.replace("train_batch", "batch")
    methods = {name: getattr(callback, name) for name in (hook, old_name)}
    own = keras.callbacks.Callback
    return any(getattr(method, "__func__", method) is not getattr(own, name) for name, method in methods.items())


class _StepClock:
    """A clock of the steps of an epoch, on rank 0, for what ``TensorBoard`` writes about a plan as further metrics."""

    def __init__(self) -> None:
        self._ends: tuple[float, float, int] | None = None

    def note(self, hook: str) -> None:
        if hook == "on_epoch_begin":
            self._ends = None
        elif hook == "on_train_batch_end":
            now_s = time.perf_counter()
            first, _, count = self._ends or (now_s, now_s, 0)
            self._ends = first, now_s, count + 1

    def scalars(self, plan: Plan, batch_size: int) -> dict[str, float]:
        """Return what is predicted and, after two steps of the epoch, measured: when the first one began isn't known."""
        values = {"predicted_step_ms": plan.time_us / 1e3, "memory_bytes_per_device": float(plan.sum_bytes)}
        if plan.peak_bytes is not None:
            values["peak_bytes_per_device"] = float(plan.peak_bytes)
        if self._ends is not None and self._ends[2] >= 2:
            first, last, count = self._ends
            seconds = (last - first) / (count - 1)
            values |= {"measured_step_ms": 1e3 * seconds, "samples_per_s": batch_size / seconds}
        return {f"tensoropt/{name}": value for name, value in values.items()}


class _FollowingCallback(keras.callbacks.Callback):
    """A callback that runs rank 0's callbacks, while the other ranks follow at the same point of their loops."""

    def __init__(self, callbacks: list[keras.callbacks.Callback], hooks: Iterable[str], trainer: Led) -> None:
        super().__init__()
        self._callbacks, self._trainer, self._clock = callbacks, trainer, _StepClock()
        for hook in hooks:
            setattr(self, hook, self._led(hook))

    def _led(self, hook: str) -> Callable[..., None]:
        is_drawn = hook == "on_epoch_end" and any(getattr(callback, "histogram_freq", 0) for callback in self._callbacks)

        def call(logs: dict[str, Any], /, *arguments: Any, **keywords: Any) -> tuple[dict[str, Any], dict[str, Any]]:
            self._clock.note(hook)
            are_written = hook == "on_epoch_end" and any(isinstance(callback, TensorBoard) for callback in self._callbacks)
            scalars = self._clock.scalars(self._trainer.plan, self._trainer.batch_size) if are_written else {}
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
        self._trainer.ranks.lead(self._show)

    def _show(self) -> None:
        for callback in self._callbacks:
            callback.set_model(self._trainer.shown_to(callback))
