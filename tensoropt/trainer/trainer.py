"""The trainer that :func:`tensoropt.parallelize` returns: a Keras model whose steps run on all ranks under a plan.

``fit``, ``evaluate`` and ``predict`` are Keras's own loops, with its progress bar, history and callbacks. They iterate over
this rank's share of the data, and each of their steps runs a captured program instead of Keras's step. Metrics are part of
the captured programs: their variables live on the ranks, and a step returns their results as Keras's own steps do.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ..common.errors import InputError
from ..common.files import path_text
from ..runtime.checkpoint import read_metadata
from ..runtime.execution import Execution
from ..runtime.ranks import current_processes
from .batch import Batch
from .callbacks import on_ranks
from .capture.objective import Compilation, OwnCompilation
from .capture.programs import EVALUATE, TRAIN, inner
from .capture.signature import Signature, is_none
from .data.batch_shares import Sharing
from .data.fit_progress import FitProgress, Logs, PositionRecorder, as_python, check_labels, skip_steps
from .data.handing_out import first_of, is_determined, is_pipeline
from .data.keeping import taken_out
from .deferred import Deferred
from .live_model import LiveModel
from .planned import Planned
from .rate import RunningRate
from .runs import Runs
from .saving import RunPosition, Saving, is_keras_format
from .trainer_ranks import TrainerRanks
from .variables.live import Live, own_values


class Trainer(Planned, LiveModel):
    """A Keras model that trains on all ranks under a plan; :func:`tensoropt.parallelize` has an example.

    Every rank makes the same calls, except in callbacks, which run on rank 0 only.

    Attributes:
        inner: the user's Keras model, whose variables are those that are trained.
        ranks: the operations that all ranks run together.
    """

    def __init__(self, model: keras.Model, compilation: Compilation | OwnCompilation) -> None:
        super().__init__(model, compilation)
        self.ranks = TrainerRanks(current_processes(), lambda: self._saving.objects)
        self._sharing = Sharing(self.ranks, self._expected)
        self._progress = FitProgress()

    def defer(self, deferred: Deferred, optimizer: keras.optimizers.Optimizer) -> None:
        """Capture the model at its first batch. :func:`tensoropt.parallelize` calls it."""
        self.optimizer = optimizer
        self.deferred = deferred

    @property
    def _saving(self) -> Saving:
        """The saving and loading of the values on the ranks; raises InputError if the model isn't captured yet."""
        if self.deferred is not None:
            raise self.deferred.refusal()
        return self._started_saving

    @property
    def _ranks(self) -> TrainerRanks:  # type: ignore[override]
        return self._saving.ranks

    def _expected(self, specs: Callable[[], Any]) -> Signature:
        """Return what batches are expected to be; a model that waits for its first batch is captured for what is seen."""
        if self.deferred is not None:
            self.deferred.capture(specs())
        return self.ranks.runs.expected

    def start(self, execution: Execution, runs: Runs, optimizers: Mapping[str, keras.optimizers.Optimizer]) -> None:
        """Make the trainer ready to run, once its training step is captured and planned.

        Optimizers are given by the name of the training step that applies each first.
        """
        deferred, self.deferred = self.deferred, None
        self.ranks.start(execution, runs)
        self._started_saving = Saving(self, optimizers, self.ranks, self.ranks.key_of)
        metric_variables = self._counted
        keys = [self.ranks.key_of(inner(metric)) for metric in metric_variables]
        self.ranks.passing = frozenset(key for key in keys if key is not None)
        self.ranks.hold_optimizers(optimizers)
        self.go_live(RunningRate(self.ranks))
        if deferred is not None and deferred.checkpoint is not None:
            assigned = deferred.assigned()
            self._saving.load(deferred.checkpoint)
            for variable, value in assigned:
                variable.assign(value)

    @property
    def _counted(self) -> list[keras.Variable]:
        return [variable for metric in self.metrics for variable in metric.variables]

    @property
    def batch_size(self) -> int:
        """The number of samples per step, over all ranks; 0 if the first batch will decide it."""
        return self.ranks.runs.signature.batch_size if self.deferred is None else self.deferred.batch_size or 0

    @property
    def position(self) -> RunPosition:
        """The run's position in its epochs and in its data, as :meth:`save` records it."""
        return self._progress.position

    # Methods that users call

    def fit(self, *arguments: Any, **keywords: Any) -> keras.callbacks.History:
        """Train like ``keras.Model.fit``, on all ranks. For arrays, ``batch_size`` defaults to that of the plan.

        After :meth:`load`, or with :class:`tensoropt.Survive`, continue with the epoch and the batch that were saved.

        Raises:
            InputError: the data isn't what the plan was made for, or ``keras.Model.fit`` has no such argument.
        """
        by_name = self._arguments("fit", arguments, keywords)
        keeper = taken_out(by_name, self.ranks)
        resumes, self._progress.resumes = self._progress.resumes, None
        if resumes is not None:
            by_name["initial_epoch"] = by_name.get("initial_epoch") or resumes.epoch
        resumes = (keeper.begin(self, by_name) if keeper is not None else None) or resumes
        # A dataset decides itself whether it shuffles.
        by_name["shuffle"] = not isinstance(by_name.get("x"), tf.data.Dataset) and by_name.get("shuffle", True)
        self._progress.opens = resumes or RunPosition()
        by_name["callbacks"] = [PositionRecorder(self._progress), *(on_ranks(by_name.get("callbacks"), self) or ())]
        with self._progress.kept_by(keeper, by_name["callbacks"]):
            return super().fit(**by_name)

    def evaluate(self, *arguments: Any, **keywords: Any) -> Any:
        """Evaluate like ``keras.Model.evaluate``, on all ranks."""
        by_name = self._arguments("evaluate", arguments, keywords)
        if not by_name.get("_use_cached_eval_dataset"):  # else they are those of fit
            by_name["callbacks"] = on_ranks(by_name.get("callbacks"), self)
        return super().evaluate(**by_name)

    def predict(self, *arguments: Any, **keywords: Any) -> Any:
        """Return the results for all samples on all ranks, like ``keras.Model.predict``."""
        by_name = self._arguments("predict", arguments, keywords)
        by_name["callbacks"] = on_ranks(by_name.get("callbacks"), self)
        return super().predict(**by_name)

    def save(
        self, filepath: str | os.PathLike[str], overwrite: bool = True, *, max_to_keep: int | None = None, **options: Any
    ) -> None:
        """Save a checkpoint with all that a later run needs to continue. Each rank writes its shards.

        If the path ends in ``.keras`` or ``.h5``, rank 0 writes the model in Keras's format, like ``keras.Model.save``.

        Args:
            filepath: ``folder/name`` of the checkpoint, or a file in Keras's format.
            overwrite: whether a file in Keras's format may be replaced without asking.
            max_to_keep: how many of the newest checkpoints in the folder to keep.

        Raises:
            InputError: the folder can't be written.
            TensorOptError: writing failed; the files that were there before are unchanged.
        """
        path = path_text(filepath, "save")
        if is_keras_format(path):
            self._saving.write(path, lambda model: model.save(path, overwrite=overwrite, **options))
        else:
            self._saving.save(path, self.position, max_to_keep)

    def load(self, filepath: str | os.PathLike[str]) -> None:
        """Load a checkpoint that was saved under any plan. The next ``fit`` continues where the checkpoint was saved.

        Args:
            filepath: the path given to :meth:`save`, or a folder, of which the latest checkpoint is loaded. From a file in
                Keras's format, only the weights are loaded.

        Raises:
            InputError: there is no such checkpoint, it is damaged, or it belongs to another model.
        """
        path = path_text(filepath, "load")
        if is_keras_format(path):
            self.load_weights(path)
            return
        self._progress.shares = None
        if self.deferred is None:
            self._progress.resumes = self._saving.load(path)
        else:
            self._progress.resumes = RunPosition(**self.ranks.lead(lambda: read_metadata(path).content).get("position", {}))
            self.deferred.load(path)

    def save_weights(self, filepath: str | os.PathLike[str], overwrite: bool = True, **options: Any) -> None:
        """Have rank 0 save the weights like ``keras.Model.save_weights``."""
        path = path_text(filepath, "save_weights")
        self._saving.write(path, lambda model: model.save_weights(path, overwrite=overwrite, **options))

    def load_weights(self, filepath: str | os.PathLike[str], **options: Any) -> None:
        """Load weights like ``keras.Model.load_weights``. Rank 0 reads the file for all ranks."""
        path = path_text(filepath, "load_weights")
        self._saving.read(path, lambda model: model.load_weights(path, **options))

    def export(self, filepath: str | os.PathLike[str], *arguments: Any, **options: Any) -> None:
        """Have rank 0 export the model with the trained values, like ``keras.Model.export``."""
        path = path_text(filepath, "export")
        self._saving.write(path, lambda model: model.export(path, *arguments, **options))

    def export_to(self, model: keras.Model) -> None:
        """Copy the trained weights, moving averages and seeds into a Keras model of the same structure, on every rank.

        Raises:
            InputError: the model's variables differ in number or shape.
        """
        self._saving.export_to(model)

    def get_weights(self) -> list[np.ndarray]:
        """Return the global values of the model's weights in Keras's order, on every rank."""
        if self.deferred is not None:
            return self.deferred.own_weights()
        return self._saving.values_of(self.inner.weights)

    def set_weights(self, weights: Sequence[np.ndarray]) -> None:
        """Set the weights on the ranks, given in Keras's order. Every rank must give the same values.

        Raises:
            InputError: the number of weights or a shape differs from the model's, or ranks give different values. Then no
                weight has changed on any rank.
        """
        self._saving.assign(self.inner.weights, weights)

    def as_trained(self) -> AbstractContextManager[Any]:
        """Return a context in which the user's model is compiled with its trained optimizer, on rank 0 while it leads."""
        return self._saving.as_trained()

    def _arguments(self, method: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> dict[str, Any]:
        """Return a call's arguments by name, with the trainer's defaults: the plan's batch size, output on rank 0 only."""
        signature = inspect.signature(getattr(keras.Model, method))
        names = [name for name, spec in signature.parameters.items() if spec.kind is not spec.VAR_KEYWORD and name != "self"]
        for name in keywords:
            if name not in names and not name.startswith("_"):
                raise InputError(f"{method} has no argument {name!r}; it takes {', '.join(names)}")
        try:
            bound = signature.bind(self, *arguments, **keywords).arguments
        except TypeError as error:
            raise InputError(f"{method}: {error}; it takes {', '.join(names)}") from error
        by_name = {name: value for name, value in bound.items() if name not in ("self", "kwargs")} | bound.get("kwargs", {})
        by_name["batch_size"] = by_name.get("batch_size") or (self.batch_size if self.trains_planned_size else None)
        by_name["verbose"] = by_name.get("verbose", "auto") if self.ranks.rank == 0 else 0
        return by_name

    # Methods that Keras's loops call

    @property
    def distribute_strategy(self) -> Sharing:
        """The object from which Keras's loops get this rank's shares of a dataset."""
        return self._sharing

    def make_train_function(self, force: bool = False) -> Callable[[Iterator[Any]], Logs]:
        """Return the function that runs a training step on the next batch of an iterator."""
        self.check_trained()
        self.train_function = self._stepping(TRAIN, self._train, self._check_size)
        return self.train_function

    def _train(self, batch: Batch) -> Any:
        self._progress.begin_step(batch)
        return self.ranks.train(batch)

    def _check_size(self, batch: Batch) -> None:
        self._progress.check_size(batch, self.ranks.runs.signature.batch_size)

    def make_test_function(self, force: bool = False) -> Callable[[Iterator[Any]], Logs]:
        """Return the function that evaluates the next batch of an iterator."""
        self.test_function = self._stepping(EVALUATE, self.ranks.evaluate)
        return self.test_function

    def _stepping(
        self, kind: str, step: Callable[[Batch], Any], check: Callable[[Batch], None] = lambda batch: None
    ) -> Callable[[Iterator[Any]], Logs]:
        last: list[Batch] = []
        end_data = self._ending(kind, self._progress.is_open)

        def function(iterator: Iterator[Any]) -> Logs:
            element = next(iterator, None)
            if element is None:
                end_data(*last)
                raise StopIteration
            if isinstance(element, Batch):
                check(element)
            batch = self._batch(element)
            check_labels(batch, self.ranks.runs.signature, self.inner)
            last[:] = [batch]
            computed, logs = step(batch)
            values = as_python(logs)
            self._progress.results = as_python(computed) if isinstance(computed, dict) else values
            return values

        return function

    def _ending(self, kind: str, is_open: bool) -> Callable[..., None]:
        """Return a function of the last batch, which does what Keras does where there is no other: all that needs none."""
        computes, updates = self._computes, dict[Any, Callable[[], Any] | None]()

        def end_data(batch: Batch | None = None) -> None:
            if batch is None or computes.run_eagerly or computes.steps_per_execution > 1:
                return  # then Keras looks first whether there is a batch
            self.ranks.catch_up()
            if batch.extents not in updates:
                signature = self.ranks.runs.signature_of(batch)
                updates[batch.extents] = self.without_data(kind, signature.resized(None) if is_open else signature)
            update = updates[batch.extents]
            if update is not None:
                update()
                self._progress.results = None
            if kind == TRAIN:
                if self.counter is not None:
                    Live.of(self.counter).forget_access()
                self.ranks.update_without_data()

        return end_data

    def make_predict_function(self, force: bool = False) -> Callable[[Sequence[Any]], Any]:
        """Return the function that predicts a list of batches and concatenates the results."""

        if self.deferred is not None:
            self.deferred.check_predicts()

        def function(elements: Sequence[Any]) -> Any:
            batches = list(map(self._batch, elements))
            predictions = list(map(self.ranks.predict, batches))
            return keras.tree.map_structure(lambda *values: tf.concat(values, 0), *predictions)

        self.predict_function = function
        return function

    def _batch(self, element: Any) -> Batch:
        return element if isinstance(element, Batch) else self._sharing.full_batch(element)

    def _maybe_symbolic_build(self, iterator: Any = None, data_batch: Any = None) -> None:
        """Prepare the data that Keras is about to iterate over; a resumed run continues where it was saved.

        Keras calls this method to build the model, before any callback. It is where Keras shows its iterator.
        """
        if iterator is None:
            return
        shares = iterator._distributed_dataset
        first = next((leaf for leaf in tf.nest.flatten(shares.data.element_spec) if not is_none(leaf)), None)
        self._progress.is_open = first is None or not first.shape.rank or first.shape[0] is None
        shares.is_read_by_one = not is_determined(iterator.data_adapter)
        shares.is_tuned = is_pipeline(iterator.data_adapter)
        shares.shows_size = not self.batch_size
        shares.peek = first_of(iterator.data_adapter)
        shares.n_first = iterator.steps_per_epoch or shares.n_first
        opens, self._progress.opens = self._progress.opens, None
        if opens is not None:
            self._progress.shares, self._progress.spans_epochs = shares, bool(iterator.steps_per_epoch)
            self._progress.see_data(iterator)
            shares.go_on(opens.opened, opens.taken)
            skip_steps(iterator, opens.step, opens.epoch - self._progress.first_epoch)
        shares.check()

    def reset_metrics(self) -> None:
        """Reset the metrics' variables to their initial values, on the ranks too."""
        self._progress.results = None
        if not self.is_live:  # the metrics may be on the ranks of a trainer before this one
            super().reset_metrics()
            return
        with own_values():
            super().reset_metrics()
            values = [(inner(metric), inner(metric).numpy()) for metric in self._counted]
        for variable, value in values:
            key = self.ranks.key_of(variable)
            if key is not None:
                self.ranks.assign(key, value)

    def get_metrics_result(self) -> Logs:
        """Return the metrics' results after the last step."""
        if tf.inside_function() or self._progress.results is None:
            return super().get_metrics_result()
        return self._progress.results
