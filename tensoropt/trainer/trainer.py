"""The trainer that :func:`tensoropt.parallelize` gives: a Keras model whose steps run by a plan on all ranks.

``fit``, ``evaluate`` and ``predict`` are Keras's own loops, with its progress bar, history and callbacks; what a step does
is replaced. Metrics are part of the captured programs: their variables live on the ranks, and are copied into Keras's
metrics where Keras asks for results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ..errors import InputError
from ..execution import Execution
from ..ir import Operator
from ..plan import Plan
from ..plan_frontier import PlanFrontier
from .callbacks import on_ranks
from .data import as_dataset, batch_of, shares
from .objective import KerasObjective
from .programs import EVALUATE, PREDICT, TRAIN
from .rate import RunningRate
from .runs import Leaves, Run, Runs

Logs = dict[str, float]


class Trainer(KerasObjective):
    """Trains a model by a plan; every rank makes the same calls.

    Attributes:
        inner: the user's Keras model; its own variables change only by :meth:`export_to`.
        optimizer: the learning rate and the number of updates as they are on the ranks.
    """

    def start(self, execution: Execution, runs: Runs, seed: int) -> None:
        """Make the trainer ready to run; :func:`tensoropt.parallelize` does."""
        self._execution, self._runs, self._seed = execution, runs, seed
        self._validation: tf.data.Dataset | None = None
        self._alone_in = ""
        self.optimizer = RunningRate(execution.engine.optimizers[TRAIN])

    @property
    def plan(self) -> Plan:
        """What runs."""
        return self._execution.plan

    @property
    def frontier(self) -> PlanFrontier | None:
        """All plans that the search found, on the rank that searched."""
        return self.plan.frontier

    @property
    def batch_size(self) -> int:
        """Samples per step, over all ranks."""
        return self._runs.batch_size

    @property
    def rank(self) -> int:
        return self._execution.processes.rank

    def explain(self) -> str:
        """The plan as a table, below what it was chosen from."""
        return self.plan.explained()

    # What users call

    def fit(
        self,
        x: Any = None,
        y: Any = None,
        *,
        sample_weight: Any = None,
        shuffle: bool = True,
        validation_data: Any = None,
        validation_batch_size: int | None = None,
        verbose: Any = "auto",
        callbacks: Iterable[keras.callbacks.Callback] | None = None,
        **options: Any,
    ) -> keras.callbacks.History:
        """As ``keras.Model.fit``, on all ranks.

        Args:
            x: a ``tf.data.Dataset`` of batches, the same on all ranks, or arrays.
            callbacks: see ``docs/keras.md`` for which of them are called on rank 0 alone.
            options: ``epochs``, ``initial_epoch``, ``steps_per_epoch``, ``validation_steps`` and ``validation_freq``.

        Raises:
            InputError: the data isn't what the plan was made for.
        """
        data = as_dataset(x, y, sample_weight, self.batch_size, self._seed if shuffle else None)
        if validation_data is not None:
            parts = validation_data if isinstance(validation_data, (tuple, list)) else (validation_data,)
            given = as_dataset(*parts, batch_size=validation_batch_size or self.batch_size)
            self._validation = self._shares(given)
        try:
            return super().fit(
                self._shares(data),
                shuffle=False,
                validation_data=self._validation,
                verbose=self._verbosity(verbose),
                callbacks=on_ranks(callbacks, self),
                **options,
            )
        finally:
            self._validation = None

    def evaluate(
        self,
        x: Any = None,
        y: Any = None,
        *,
        sample_weight: Any = None,
        batch_size: int | None = None,
        verbose: Any = "auto",
        callbacks: Any = None,
        **options: Any,
    ) -> Any:
        """As ``keras.Model.evaluate``, on all ranks."""
        if x is None or x is not self._validation:
            x = self._shares(as_dataset(x, y, sample_weight, batch_size or self.batch_size))
            callbacks = on_ranks(callbacks, self)
        return super().evaluate(x, verbose=self._verbosity(verbose), callbacks=callbacks, **options)

    def predict(
        self,
        x: Any,
        *,
        batch_size: int | None = None,
        verbose: Any = "auto",
        callbacks: Any = None,
        **options: Any,
    ) -> Any:
        """As ``keras.Model.predict``: the results for all samples, on all ranks."""
        data = self._shares(as_dataset(x, batch_size=batch_size or self.batch_size))
        return super().predict(data, verbose=self._verbosity(verbose), callbacks=on_ranks(callbacks, self), **options)

    def _shares(self, data: tf.data.Dataset) -> tf.data.Dataset:
        n_ranks = 1 if self._execution.is_emulated else self.plan.parallelism
        return shares(data, self.batch_size, self.rank, n_ranks)

    def _verbosity(self, verbose: Any) -> Any:
        return verbose if self.rank == 0 else 0

    # What Keras's loops call

    def make_train_function(self, force: bool = False) -> Callable[[Iterator[Any]], Logs]:
        """A step over the next element of an iterator over shares."""
        self.train_function = self._stepping(TRAIN, Run.train)
        return self.train_function

    def make_test_function(self, force: bool = False) -> Callable[[Iterator[Any]], Logs]:
        """An evaluation of the next element of an iterator over shares."""
        self.test_function = self._stepping(EVALUATE, Run.evaluate)
        return self.test_function

    def _stepping(self, kind: str, step: Callable[[Run, Leaves, bool], Any]) -> Callable[[Iterator[Any]], Logs]:
        def function(iterator: Iterator[Any]) -> Logs:
            batch = batch_of(next(iterator), self.batch_size)
            step(self._together.of(kind, batch.n_samples), batch.leaves, batch.is_share)
            return self.get_metrics_result()

        return function

    def make_predict_function(self, force: bool = False) -> Callable[[Sequence[Any]], Any]:
        """The results for a list of elements."""

        def function(elements: Sequence[Any]) -> Any:
            batches = [batch_of(element, self.batch_size) for element in elements]
            made = [self._together.of(PREDICT, batch.n_samples).predict(batch.leaves, batch.is_share) for batch in batches]
            return keras.tree.map_structure(lambda *values: np.concatenate(values), *made)

        self.predict_function = function
        return function

    def _maybe_symbolic_build(self, iterator: Any = None, data_batch: Any = None) -> None:
        """Nothing is left to build; Keras would make an optimizer's slots for the whole model."""

    def reset_metrics(self) -> None:
        super().reset_metrics()
        for op, variable in self._metric_variables():
            self._run.assign(op, variable.numpy())

    def get_metrics_result(self) -> Logs:
        """The metrics' results as of the last step, from their variables on the ranks."""
        if tf.inside_function():  # while a step is captured, which doesn't take results along
            return super().get_metrics_result()
        variables = {op.name: variable for op, variable in self._metric_variables()}
        for op, value in self._run.values([op for op, _ in self._metric_variables()]):
            variables[op.name].assign(value)
        return {name: np.asarray(value).item() for name, value in super().get_metrics_result().items()}

    def _metric_variables(self) -> list[tuple[Operator, tf.Variable]]:
        captured = self._run.captured
        variables = [each.value for metric in self.metrics for each in metric.variables]
        pairs = ((captured.variable(variable), variable) for variable in variables)
        return [(op, variable) for op, variable in pairs if op is not None]

    # What all ranks must do together

    @property
    def _run(self) -> Run:
        return self._together.planned

    @property
    def _together(self) -> Runs:
        """The programs, which all ranks run together.

        Raises:
            InputError: only rank 0 is here.
        """
        if self._alone_in:
            raise InputError(
                f"callback {self._alone_in} is called on rank 0 alone, but asks for what all ranks must do together; give "
                "its class the attribute on_all_ranks = True, and have it write files on rank 0 only"
            )
        return self._runs

    @contextmanager
    def on_first_rank_alone(self, callback: str) -> Iterator[None]:
        """While this lasts, what all ranks must do together is refused."""
        self._alone_in = callback
        try:
            yield
        finally:
            self._alone_in = ""

    def agree(self) -> None:
        """Take over from rank 0 whether to stop, and the learning rate; every rank must call it."""
        decided = self._execution.processes.broadcast((self.stop_training, self.optimizer.settable_rate))
        self.stop_training, self.optimizer.settable_rate = decided

    # The model's weights, which lie on the ranks

    def export_to(self, model: keras.Model) -> None:
        """Copy the trained weights, moving averages and seeds into a Keras model of the same structure, on every rank.

        Raises:
            InputError: the model has other variables.
        """
        check_alike(self.inner, model)
        for place, value in self._weights():
            model.variables[place].assign(value)

    def get_weights(self) -> list[np.ndarray]:
        """The weights of the model in Keras's order, whole, on every rank."""
        found = dict(self._weights())
        return [found.get(i, variable.numpy()) for i, variable in enumerate(self.inner.variables)]

    def set_weights(self, weights: Sequence[np.ndarray]) -> None:
        """Give the ranks these weights, in Keras's order; every rank must give the same."""
        captured = self._run.captured
        for variable, value in zip(self.inner.variables, weights, strict=True):
            op = captured.variable(variable.value)
            if op is not None:
                self._run.assign(op, value)

    def _weights(self) -> Iterator[tuple[int, np.ndarray]]:
        """By place among the model's variables, those that the programs use."""
        captured = self._run.captured
        found = ((i, captured.variable(variable.value)) for i, variable in enumerate(self.inner.variables))
        place = {op: i for i, op in found if op is not None}
        for op, value in self._run.values(list(place)):
            yield place[op], value


def check_alike(model: keras.Model, other: keras.Model) -> None:
    """Hold another model's variables against those of the model that was trained.

    Raises:
        InputError: they differ in number or shape; the message names the first.
    """
    ours, theirs = model.variables, other.variables
    for variable, target in zip(ours, theirs, strict=False):
        if variable.shape != target.shape:
            raise InputError(
                f"model '{other.name}' has variable '{target.path}' of shape {list(target.shape)} where '{model.name}' has "
                f"'{variable.path}' of shape {list(variable.shape)}; give a model of the same structure"
            )
    if len(ours) != len(theirs):
        raise InputError(
            f"model '{other.name}' has {len(theirs)} variables, '{model.name}', which was trained, has {len(ours)}; give a "
            "model of the same structure"
        )
