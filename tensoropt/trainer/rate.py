"""The optimizer that callbacks and Keras's loops see: its learning rate and number of updates are those on the ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ..optimizers.copies import inner_of
from .capture.programs import TRAIN
from .trainer_ranks import TrainerRanks

# The attributes that Keras's own loops and callbacks set.
_SET = frozenset({"learning_rate", "built"})


class RunningRate(keras.optimizers.Optimizer):
    """A trainer's optimizer, with the learning rate, the number of updates and the averages of the ranks."""

    def __init__(self, ranks: TrainerRanks) -> None:
        super().__init__(learning_rate=0.0)
        averages = ranks.optimizer.averages
        if averages:
            # What keras.callbacks.SwapEMAWeights asks an optimizer for.
            self.use_ema = True
            self._trainable_variables = [_OnRanks(ranks, key) for key, _ in averages]
            self._model_variables_moving_average = [_OnRanks(ranks, key) for _, key in averages]
            self._distribution_strategy = _Strategy
        optimizer: Any = ranks.runs.planned.captured.graph.train_steps[TRAIN].optimizer
        self._source = optimizer.source
        self._ranks: TrainerRanks = ranks
        self.built = True

    def __setattr__(self, name: str, value: Any) -> None:
        if "_ranks" in vars(self) and name not in _SET and not name.startswith("_"):
            inner_optimizer = inner_of(self._source)
            setattr(inner_optimizer if hasattr(inner_optimizer, name) else self._source, name, value)
        super().__setattr__(name, value)

    @property
    def learning_rate(self) -> Any:
        """The current learning rate.

        Assigning it sets it for the next steps. Every rank must assign the same, except in callbacks, which run on rank 0.
        """
        if tf.inside_function():
            return inner_of(self._source).learning_rate
        rate = self._ranks.optimizer.learning_rate
        return self._source.learning_rate if isinstance(rate, keras.Variable) else rate

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        self._ranks.set_rate(value)

    @property
    def iterations(self) -> Any:
        """The number of updates that have been made."""
        if tf.inside_function():
            return inner_of(self._source).iterations
        return self._ranks.optimizer.iterations

    def finalize_variable_values(self, var_list: Any) -> None:
        """Finish the training on the ranks. Keras calls this at the end of ``fit``."""
        self._ranks.finish_training()


class _OnRanks:
    """A variable by its global value, which is read from the ranks, and assigned there."""

    def __init__(self, ranks: TrainerRanks, key: str) -> None:
        self._ranks, self._key = ranks, key

    def numpy(self) -> np.ndarray:
        return dict(self._ranks.values([self._key]))[self._key]

    def __sub__(self, other: _OnRanks) -> np.ndarray:
        return self.numpy() - other.numpy()

    def assign(self, value: _OnRanks | np.ndarray) -> None:
        self._ranks.assign(self._key, value.numpy() if isinstance(value, _OnRanks) else value)

    def assign_add(self, value: _OnRanks) -> None:
        self.assign(self.numpy() + value.numpy())


class _Strategy:
    """The part of a ``tf.distribute.Strategy`` by which Keras's callbacks update variables."""

    class extended:
        @staticmethod
        def update(variable: _OnRanks, change: Callable[..., None], args: tuple[Any, ...]) -> None:
            change(variable, *args)
