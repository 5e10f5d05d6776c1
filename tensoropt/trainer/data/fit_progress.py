"""Keep track of how far ``fit`` has come in its epochs and in its data, and check its batches against the plan."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import keras

from ...common.errors import InputError
from ...common.source_lines import running_line
from ..batch import Batch
from ..capture.objective import that_takes_labels
from ..capture.signature import Signature
from ..saving import RunPosition
from .batch_shares import BatchShares
from .keeping import RunKeeper

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
        spans_epochs: whether one opening of the data serves several epochs.
        is_open: whether the data that was opened last leaves open how many samples a batch has.
        results: the metrics' results after the last step; None before the first step.
        keeper: the callback that keeps the running ``fit`` in checkpoints; None without.
    """

    epoch: int = 0
    step: int = 0
    before: int | None = None
    resumes: RunPosition | None = None
    opens: RunPosition | None = None
    shares: BatchShares | None = None
    spans_epochs: bool = False
    is_open: bool = True
    results: Logs | None = None
    keeper: RunKeeper | None = None

    @contextmanager
    def kept_by(self, keeper: RunKeeper | None, callbacks: list[Any]) -> Iterator[None]:
        """Have a ``fit`` within this context kept by a callback, which comes behind all others."""
        if keeper is None:
            yield
            return
        histories = [callback for callback in callbacks if isinstance(callback, keras.callbacks.History)]
        keeper.history = histories[0] if histories else keras.callbacks.History()
        callbacks += [*([] if histories else [keeper.history]), keeper]
        self.keeper = keeper
        try:
            yield
        finally:
            self.keeper = None

    @property
    def first_epoch(self) -> int:
        """The epoch at which the running ``fit`` began when it was new."""
        return 0 if self.keeper is None else self.keeper.first_epoch

    def see_data(self, iterator: Any) -> None:
        """Have Keras's iterator of the running ``fit`` prepared by the callback that keeps it."""
        if self.keeper is not None:
            self.keeper.see_data(iterator, iterator._distributed_dataset)

    def begin_step(self, batch: Batch) -> None:
        """Count a step, before it trains on its batch, which was taken last."""
        if self.keeper is not None and self.shares is not None:
            position = RunPosition(self.epoch, self.step, self.shares.opened - 1, self.shares.taken - 1)
            self.keeper.before_step(batch, position)
        self.step += 1

    def check_size(self, batch: Batch, batch_size: int) -> None:
        """Raise InputError if a batch is larger than planned, or both of an epoch's first two batches are smaller.

        Only the last batch of an epoch may be smaller.
        """
        n, n_before = batch.n_samples, self.before
        self.before = n
        is_second_small = self.step == 1 and n_before is not None and max(n_before, n) < batch_size
        if n > batch_size or is_second_small:
            raise InputError(
                f"the data ({running_line()}) has batches of {n} samples, expected {batch_size}, for which the plan was "
                f"made; batch it by {batch_size}, over all ranks, or parallelize with batch_size={n}"
            )

    @property
    def position(self) -> RunPosition:
        """The position that a checkpoint saved now records."""
        if self.shares is None:
            return self.resumes or RunPosition(self.epoch, self.step)
        if self.step or self.spans_epochs:
            return RunPosition(self.epoch, self.step, self.shares.opened - 1, self.shares.taken)
        return RunPosition(self.epoch, 0, self.shares.opened, 0)


def check_labels(batch: Batch, signature: Signature, model: keras.Model) -> None:
    """Raise InputError if a batch to train on or to evaluate lacks planned labels, or has some that the plan is without.

    Labels without use are left out, but what a step of the model's own makes of them isn't known.
    """
    if signature.labels is not None and not batch.labels:
        raise InputError(f"batches ({running_line()}) have no y, for which the plan was made; give (x, y)")
    hook = that_takes_labels(model, None)
    if batch.drops_labels and hook:
        raise InputError(
            f"batches ({running_line()}) have y, without which the plan was made, and {hook} of model '{model.name}' may "
            "use it; give x alone, or show such a batch by data=(x, y) of parallelize"
        )


class PositionRecorder(keras.callbacks.Callback):
    """A callback that records the epoch and the step, on every rank and before the user's callbacks run."""

    def __init__(self, progress: FitProgress) -> None:
        super().__init__()
        self._progress, self._begin = progress, progress.opens or RunPosition()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._progress.epoch, self._progress.before = epoch, None
        self._progress.step = self._begin.step if epoch == self._begin.epoch else 0

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._progress.epoch, self._progress.step = epoch + 1, 0


def skip_steps(iterator: Any, n_steps: int, n_epochs: int) -> None:
    """Make a loop's first epoch start at step ``n_steps``, numbered as if the steps and epochs before had run.

    A ``PyDataset`` is told of these epochs' beginnings and ends.
    """

    def steps_left() -> Iterator[Any]:
        # An iterator that refers to itself would live on after its loop, with the data that it reads ahead.
        del iterator._enumerate_iterator
        for _ in range(n_epochs):
            iterator.data_adapter.on_epoch_begin()
            iterator.data_adapter.on_epoch_end()
        return itertools.islice(iterator._enumerate_iterator(), n_steps, None)

    if n_steps or n_epochs:
        iterator._enumerate_iterator = steps_left


def as_python(logs: Mapping[str, Any]) -> Logs:
    """Return a step's results with scalars as Python's numbers; the result of a metric may be a dictionary itself."""
    return {name: as_python(value) if isinstance(value, Mapping) else _number(value) for name, value in logs.items()}


def _number(value: Any) -> Any:
    return value.item() if value.ndim == 0 else value
