"""The trainer that :func:`tensoropt.parallelize` gives: a Keras model whose steps run by a plan on all ranks.

``fit``, ``evaluate`` and ``predict`` are Keras's own loops, with its progress bar, history and callbacks. What they iterate
over is this rank's share of the data, and what a step does is replaced. Metrics are part of the captured programs: their
variables live on the ranks, and a step gives their results as Keras's own steps do.
"""

from __future__ import annotations

import inspect
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.trainers.data_adapters import array_data_adapter, tf_dataset_adapter

from ..common.errors import InputError, short
from ..common.files import path_text
from ..common.source_lines import running_line
from ..plan.frontier import PlanFrontier
from ..plan.plan import Plan
from ..runtime.execute import Execution
from .batch import Batch
from .callbacks import on_ranks
from .data import Shares, Sharing
from .live import LiveValues
from .live_model import LiveModel
from .programs import Captured, inner
from .ranks import Ranks
from .rate import RunningRate
from .runs import Runs
from .saving import Position, Saving, is_keras_format
from .signature import Signature

Logs = dict[str, Any]


@dataclass
class _Progress:
    """Attributes:
    epoch: the one that runs.
    step: how many batches of it were taken.
    before: how many samples the batch before had, of those that this run took of the epoch.
    resumes: where the next fit begins, after a checkpoint was loaded.
    opens: where the data begins that fit is about to open; None once that is open.
    shares: the data that fit goes through.
    lasts: whether one opening of it lasts for several epochs.
    results: the metrics' after the last step; None before there is one.
    """

    epoch: int = 0
    step: int = 0
    before: int | None = None
    resumes: Position | None = None
    opens: Position | None = None
    shares: Shares | None = None
    lasts: bool = False
    results: Logs | None = None

    @property
    def position(self) -> Position:
        if self.shares is None:
            return self.resumes or Position(self.epoch, self.step)
        if self.step or self.lasts:
            return Position(self.epoch, self.step, self.shares.opened - 1, self.shares.taken)
        return Position(self.epoch, 0, self.shares.opened, 0)


class Trainer(LiveModel):
    """Trains a model by a plan; every rank makes the same calls, but for callbacks, which are rank 0's.

    Attributes:
        inner: the user's Keras model; its own variables change only by :meth:`export_to`.
        ranks: what all ranks do together.
    """

    def start(self, execution: Execution, runs: Runs, optimizer: keras.optimizers.Optimizer) -> None:
        """Make the trainer ready to run; :func:`tensoropt.parallelize` does."""
        self._execution = execution
        self.ranks = Ranks(execution, runs, lambda: self._saving.objects)
        live = LiveValues(self.inner, self.ranks, self._key_of)
        self._saving = Saving(self, optimizer, self.ranks, self._key_of, live)
        self._sharing = Sharing(self.ranks, runs.signature)
        self._progress = _Progress()
        runs.capture = _of_own_values(live, runs.capture)
        keys = [self._key_of(inner(each)) for metric in self.metrics for each in metric.variables]
        self.ranks.passing = frozenset(key for key in keys if key is not None)
        self.go_live(live, RunningRate(self.ranks))

    def _key_of(self, variable: tf.Variable) -> str | None:
        op = self.ranks.runs.planned.captured.variable(variable)
        return None if op is None else op.name

    @property
    def plan(self) -> Plan:
        """What runs."""
        return self._execution.plan

    @property
    def frontier(self) -> PlanFrontier | None:
        """All plans that the search found; None on other ranks than 0, which were given the plan alone."""
        return self.plan.frontier

    @property
    def batch_size(self) -> int:
        """Samples per step, over all ranks."""
        return self.ranks.runs.signature.batch_size

    @property
    def position(self) -> Position:
        """Where the run is, in its epochs and in its data: what :meth:`save` notes."""
        return self._progress.position

    @property
    def steps_per_execution(self) -> int:
        """Ranks run one step at a time."""
        return 1

    @steps_per_execution.setter
    def steps_per_execution(self, value: Any) -> None:
        if value != 1:
            raise InputError(
                f"steps_per_execution ({running_line()}) is 1 where a plan runs, got {short(value)}; leave it, the numbers "
                "are the same"
            )

    def explain(self) -> str:
        """What the plan was chosen from, where its time and memory go, and the plan, as tables."""
        return self.plan.explained()

    # What users call

    def fit(self, *arguments: Any, **named: Any) -> keras.callbacks.History:
        """As ``keras.Model.fit``, on all ranks; ``batch_size`` of arrays is that of the plan if it isn't given.

        After :meth:`load` it goes on with the epoch and the batch at which the checkpoint was saved.

        Raises:
            InputError: the data isn't what the plan was made for, or there is no such argument.
        """
        given = self._arguments("fit", arguments, named)
        resumes, self._progress.resumes = self._progress.resumes, None
        if resumes is not None:
            given["initial_epoch"] = given.get("initial_epoch") or resumes.epoch
        # A dataset shuffles by itself, or doesn't.
        given["shuffle"] = given.get("shuffle", True) and not isinstance(given.get("x"), tf.data.Dataset)
        position = _Position(self._progress, resumes or Position())
        given["callbacks"] = [position, *(on_ranks(given.get("callbacks"), self) or ())]
        self._progress.opens = resumes or Position()
        with self._saving.live.running():
            return super().fit(**given)

    def evaluate(self, *arguments: Any, **named: Any) -> Any:
        """As ``keras.Model.evaluate``, on all ranks."""
        given = self._arguments("evaluate", arguments, named)
        given["callbacks"] = on_ranks(given.get("callbacks"), self)
        with self._saving.live.running():
            return super().evaluate(**given)

    def predict(self, *arguments: Any, **named: Any) -> Any:
        """As ``keras.Model.predict``: the results for all samples, on all ranks."""
        given = self._arguments("predict", arguments, named)
        given["callbacks"] = on_ranks(given.get("callbacks"), self)
        with self._saving.live.running():
            return super().predict(**given)

    def save(
        self, filepath: str | os.PathLike[str], overwrite: bool = True, *, max_to_keep: int | None = None, **options: Any
    ) -> None:
        """Save all that a later run needs to go on, as a checkpoint of which each rank writes its pieces.

        A path that ends in ``.keras`` or ``.h5`` is written by rank 0 in Keras's format, as ``keras.Model.save`` does.

        Args:
            filepath: ``folder/name`` of the checkpoint, or a file of Keras's.
            overwrite: whether a file of Keras's may be replaced without a question.
            max_to_keep: of the checkpoints in the folder keep only so many newest.

        Raises:
            InputError: the folder can't be written.
            TensorOptError: writing failed; what was there before is as it was.
        """
        path = path_text(filepath, "save")
        if is_keras_format(path):
            self._saving.write(path, lambda model: model.save(path, overwrite=overwrite, **options))
        else:
            self._saving.save(path, self.position, max_to_keep)

    def load(self, filepath: str | os.PathLike[str]) -> None:
        """Go on from a checkpoint that was saved under whatever plan: the next ``fit`` starts where it was saved.

        Args:
            filepath: of :meth:`save`, or a folder: then its latest checkpoint. Keras's files give weights alone.

        Raises:
            InputError: there is no such checkpoint, it is damaged, or of another model.
        """
        path = path_text(filepath, "load")
        if is_keras_format(path):
            self.load_weights(path)
            return
        self._progress.shares = None
        self._progress.resumes = self._saving.load(path)

    def save_weights(self, filepath: str | os.PathLike[str], overwrite: bool = True, **options: Any) -> None:
        """As ``keras.Model.save_weights``, by rank 0."""
        path = path_text(filepath, "save_weights")
        self._saving.write(path, lambda model: model.save_weights(path, overwrite=overwrite, **options))

    def load_weights(self, filepath: str | os.PathLike[str], **options: Any) -> None:
        """As ``keras.Model.load_weights``, read by rank 0 for all ranks."""
        path = path_text(filepath, "load_weights")
        self._saving.read(path, lambda model: model.load_weights(path, **options))

    def export_to(self, model: keras.Model) -> None:
        """Copy the trained weights, moving averages and seeds into a Keras model of the same structure, on every rank.

        Raises:
            InputError: the model has other variables.
        """
        self._saving.export_to(model)

    def get_weights(self) -> list[np.ndarray]:
        """The weights of the model in Keras's order, whole, on every rank."""
        return self._saving.values_of(self.inner.weights)

    def set_weights(self, weights: Sequence[np.ndarray]) -> None:
        """Give the ranks these weights, in Keras's order; every rank must give the same.

        Raises:
            InputError: they are more or fewer than the model's, one has another shape, or ranks give different ones; then
                nothing has changed on any rank.
        """
        self._saving.assign(self.inner.weights, weights)

    def as_trained(self) -> AbstractContextManager[Any]:
        """While this lasts, the user's model on a rank 0 that leads has the trained values."""
        return self._saving.as_trained()

    def _arguments(self, method: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
        """A call's arguments by name, with what differs here.

        Raises:
            InputError: Keras's method has no such argument.
        """
        signature = inspect.signature(getattr(keras.Model, method))
        known = [name for name, each in signature.parameters.items() if each.kind is not each.VAR_KEYWORD and name != "self"]
        for name in named:
            if name not in known and not name.startswith("_"):
                raise InputError(f"{method} has no argument {name!r}; it takes {', '.join(known)}")
        try:
            bound = signature.bind(self, *arguments, **named).arguments
        except TypeError as error:
            raise InputError(f"{method}: {error}; it takes {', '.join(known)}") from error
        given = {name: value for name, value in bound.items() if name not in ("self", "kwargs")} | bound.get("kwargs", {})
        given["batch_size"] = given.get("batch_size") or self.batch_size
        given["verbose"] = given.get("verbose", "auto") if self.ranks.rank == 0 else 0
        return given

    # What Keras's loops call

    @property
    def distribute_strategy(self) -> Sharing:
        """Makes of the datasets that Keras's loops go through this rank's shares."""
        return self._sharing

    def make_train_function(self, force: bool = False) -> Callable[[Iterator[Any]], Logs]:
        """A step over the next batch."""
        self.check_trained()

        def step(batch: Batch) -> Any:
            self._progress.step += 1
            return self.ranks.train(batch)

        self.train_function = self._stepping(step, self._check_size)
        return self.train_function

    def make_test_function(self, force: bool = False) -> Callable[[Iterator[Any]], Logs]:
        """An evaluation of the next batch."""
        self.test_function = self._stepping(self.ranks.evaluate)
        return self.test_function

    def _stepping(
        self, step: Callable[[Batch], Any], check: Callable[[Batch], None] = lambda batch: None
    ) -> Callable[[Iterator[Any]], Logs]:
        def function(iterator: Iterator[Any]) -> Logs:
            element = next(iterator)
            if isinstance(element, Batch):
                check(element)
            _, logs = step(self._batch(element))
            self._progress.results = {name: value.item() if value.ndim == 0 else value for name, value in logs.items()}
            return self._progress.results

        return function

    def make_predict_function(self, force: bool = False) -> Callable[[Sequence[Any]], Any]:
        """The results for a list of batches."""

        def function(elements: Sequence[Any]) -> Any:
            made = [self.ranks.predict(self._batch(element)) for element in elements]
            return keras.tree.map_structure(lambda *values: tf.concat(values, 0), *made)

        self.predict_function = function
        return function

    def _batch(self, element: Any) -> Batch:
        return element if isinstance(element, Batch) else self._sharing.whole(element)

    def _check_size(self, batch: Batch) -> None:
        """No batch is larger than planned, and not both of an epoch's first two are smaller: one is a last one.

        Raises:
            InputError: they are not so.
        """
        progress, off = self._progress, batch.n_samples
        before, progress.before = progress.before, off
        second_of_small = progress.step == 1 and before is not None and max(before, off) < self.batch_size
        if off > self.batch_size or second_of_small:
            raise InputError(
                f"the data has batches of {off} samples, expected {self.batch_size}, for which the plan was made; batch it "
                f"by {self.batch_size}, over all ranks, or parallelize with batch_size={off}"
            )

    def _maybe_symbolic_build(self, iterator: Any = None, data_batch: Any = None) -> None:
        """Nothing is left to build; it is where Keras shows what it is about to go through."""
        if iterator is None:
            return
        shares = iterator._distributed_dataset
        shares.one_reads = not _is_determined(iterator.data_adapter)
        opens, self._progress.opens = self._progress.opens, None
        if opens is not None:
            self._progress.shares, self._progress.lasts = shares, bool(iterator.steps_per_epoch)
            shares.go_on(opens.opened, opens.taken)
            _skip_steps(iterator, opens.step)

    def reset_metrics(self) -> None:
        """Give the metrics' variables their first values, on the ranks too."""
        super().reset_metrics()
        self._progress.results = None
        for metric in self.metrics:
            for variable in metric.variables:
                key = self._key_of(inner(variable))
                if key is not None:
                    self.ranks.assign(key, variable.numpy())

    def get_metrics_result(self) -> Logs:
        """The metrics' results as of the last step."""
        if tf.inside_function() or self._progress.results is None:
            return super().get_metrics_result()
        return self._progress.results


class _Position(keras.callbacks.Callback):
    """Keeps track of the epoch, on every rank and ahead of the user's callbacks."""

    def __init__(self, progress: _Progress, begin: Position) -> None:
        super().__init__()
        self._progress, self._begin = progress, begin

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._progress.epoch, self._progress.before = epoch, None
        self._progress.step = self._begin.step if epoch == self._begin.epoch else 0

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._progress.epoch, self._progress.step = epoch + 1, 0


def _of_own_values(live: LiveValues, capture: Callable[[str, Signature], Captured]) -> Callable[[str, Signature], Captured]:
    """Capture from the model as it is, though it is a trainer's that runs."""

    def captured(kind: str, signature: Signature) -> Captured:
        with live.own():
            return capture(kind, signature)

    return captured


def _is_determined(source: Any) -> bool:
    """Whether a source of Keras's may well give the same batches on all ranks; what Python draws is a process's own."""
    if isinstance(source, array_data_adapter.ArrayDataAdapter):
        return not source._shuffle
    return isinstance(source, tf_dataset_adapter.TFDatasetAdapter)


def _skip_steps(iterator: Any, n_steps: int) -> None:
    """Have a loop's first epoch begin after so many steps, which are numbered as if they had been."""
    steps = iterator._enumerate_iterator

    def steps_left() -> Iterator[Any]:
        nonlocal n_steps
        skipped, n_steps = n_steps, 0
        return itertools.islice(steps(), skipped, None)

    iterator._enumerate_iterator = steps_left
