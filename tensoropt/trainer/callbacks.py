"""Which of a user's callbacks are called on which ranks.

Those that steer training by what all ranks know alike, or that save, are called on all ranks. Any other is called on
rank 0 alone; what it decides (to stop, another learning rate) reaches the other ranks at the end of each epoch, and of each
batch if it looks at batches. A callback of the user's own with the attribute ``on_all_ranks = True`` is called on all.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import keras

from ..errors import InputError, short

if TYPE_CHECKING:
    from .trainer import Trainer

ON_ALL_RANKS = (
    keras.callbacks.BackupAndRestore,
    keras.callbacks.EarlyStopping,
    keras.callbacks.LearningRateScheduler,
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.ReduceLROnPlateau,
    keras.callbacks.TerminateOnNaN,
)
HOOKS = tuple(
    f"on_{what}_{when}"
    for what in ("train", "test", "predict", "epoch", "train_batch", "test_batch", "predict_batch")
    for when in ("begin", "end")
)
BATCH_HOOKS = ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")


def on_ranks(callbacks: Any, trainer: Trainer) -> Any:
    """The callbacks that this rank calls; Keras's own list, which it hands on within ``fit``, stays as it is.

    Raises:
        InputError: something isn't a callback.
    """
    if callbacks is None or isinstance(callbacks, keras.callbacks.CallbackList):
        return callbacks
    given = list(callbacks) if isinstance(callbacks, Iterable) else [callbacks]
    for callback in given:
        if not isinstance(callback, keras.callbacks.Callback):
            raise InputError(f"callbacks takes objects of keras.callbacks.Callback, got {short(callback)}")
    first_only = [callback for callback in given if not _everywhere(callback)]
    called: list[keras.callbacks.Callback] = []
    if any(getattr(callback, "histogram_freq", 0) for callback in first_only):
        called.append(_Exporting(trainer))
    for callback in given:
        if _everywhere(callback):
            if trainer.rank and hasattr(callback, "verbose"):
                callback.verbose = 0
            called.append(callback)
        elif trainer.rank == 0:
            called.append(_FirstRank(callback, trainer))
    if first_only:
        sees_batches = any(_overrides(callback, hook) for callback in first_only for hook in BATCH_HOOKS)
        called.append(_Agreeing(trainer, sees_batches))
    return called


def _everywhere(callback: keras.callbacks.Callback) -> bool:
    return isinstance(callback, ON_ALL_RANKS) or getattr(callback, "on_all_ranks", False)


def _overrides(callback: keras.callbacks.Callback, hook: str) -> bool:
    return getattr(type(callback), hook, None) is not getattr(keras.callbacks.Callback, hook, None)


class _FirstRank(keras.callbacks.Callback):
    """Calls another callback, which must not start what all ranks have to take part in."""

    def __init__(self, callback: keras.callbacks.Callback, trainer: Trainer) -> None:
        super().__init__()
        self._callback, self._trainer = callback, trainer
        for hook in HOOKS:
            setattr(self, hook, self._guarded(getattr(callback, hook)))

    def _guarded(self, call: Any) -> Any:
        def guarded(*arguments: Any, **options: Any) -> None:
            with self._trainer.on_first_rank_alone(type(self._callback).__name__):
                call(*arguments, **options)

        return guarded

    def set_params(self, params: Any) -> None:
        self._callback.set_params(params)

    def set_model(self, model: Any) -> None:
        super().set_model(model)
        self._callback.set_model(model)


class _Agreeing(keras.callbacks.Callback):
    """Brings what rank 0's callbacks decided to all ranks."""

    def __init__(self, trainer: Trainer, sees_batches: bool) -> None:
        super().__init__()
        self._trainer, self._sees_batches = trainer, sees_batches

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._trainer.agree()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._sees_batches:
            self._trainer.agree()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._trainer.agree()


class _Exporting(keras.callbacks.Callback):
    """Gives the user's model the weights as they are, for a callback that draws them."""

    def __init__(self, trainer: Trainer) -> None:
        super().__init__()
        self._trainer = trainer

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._trainer.export_to(self._trainer.inner)
