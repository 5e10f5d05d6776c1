"""Keep track of how far ``fit`` has come in its epochs and in its data."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import keras

from .batch_shares import BatchShares
from .saving import RunPosition

Logs = dict[str, Any]


@dataclass
class FitProgress:
    """The progress of ``fit`` in its epochs and in its data.

    Attributes:
        epoch: the running epoch, from 0.
        step: the number of batches of the epoch that were taken.
        before: the number of samples in the previous batch of the epoch; None if this ``fit`` took none of the epoch yet.
        resumes: the position at which the next ``fit`` begins, after a checkpoint was loaded; else None.
        opens: the position at which ``fit`` is about to open its data; None once the data is open.
        shares: the data that ``fit`` iterates over.
        lasts: whether one opening of the data serves several epochs.
        is_open: whether the data that was opened last leaves open how many samples a batch has.
        results: the metrics' results after the last step; None before the first step.
    """

    epoch: int = 0
    step: int = 0
    before: int | None = None
    resumes: RunPosition | None = None
    opens: RunPosition | None = None
    shares: BatchShares | None = None
    lasts: bool = False
    is_open: bool = True
    results: Logs | None = None

    @property
    def position(self) -> RunPosition:
        """The position that a checkpoint saved now records."""
        if self.shares is None:
            return self.resumes or RunPosition(self.epoch, self.step)
        if self.step or self.lasts:
            return RunPosition(self.epoch, self.step, self.shares.opened - 1, self.shares.taken)
        return RunPosition(self.epoch, 0, self.shares.opened, 0)


class PositionRecorder(keras.callbacks.Callback):
    """A callback that records the epoch and the step, on every rank and before the user's callbacks run."""

    def __init__(self, progress: FitProgress, begin: RunPosition) -> None:
        super().__init__()
        self._progress, self._begin = progress, begin

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._progress.epoch, self._progress.before = epoch, None
        self._progress.step = self._begin.step if epoch == self._begin.epoch else 0

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._progress.epoch, self._progress.step = epoch + 1, 0


def skip_steps(iterator: Any, n_steps: int) -> None:
    """Make a loop's first epoch start at step ``n_steps``, numbered as if the steps before had run."""

    def steps_left() -> Iterator[Any]:
        # An iterator that refers to itself would live on after its loop, with the data that it reads ahead.
        del iterator._enumerate_iterator
        return itertools.islice(iterator._enumerate_iterator(), n_steps, None)

    if n_steps:
        iterator._enumerate_iterator = steps_left


def as_python(logs: Mapping[str, Any]) -> Logs:
    """Return a step's results with scalars as Python's numbers; the result of a metric may be a dictionary itself."""
    return {name: as_python(value) if isinstance(value, Mapping) else _number(value) for name, value in logs.items()}


def _number(value: Any) -> Any:
    return value.item() if value.ndim == 0 else value
