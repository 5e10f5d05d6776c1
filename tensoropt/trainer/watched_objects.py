"""Watch the user's own optimizer and metrics, whose running values are on the ranks, and change there alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ..optimizers.copies import inner_of
from .programs import inner
from .trainer_ranks import TrainerRanks
from .watched import VariableWatch, Words, watch_all


class WatchedOptimizer(VariableWatch):
    """A watch over the variables of the optimizer that was given to ``parallelize``."""

    def __init__(self, optimizer: keras.optimizers.Optimizer, ranks: TrainerRanks, step: str) -> None:
        words = Words(
            f"the optimizer {type(optimizer).__name__} that was given to parallelize",
            "take self.model.optimizer, as a callback has it, or trainer.optimizer, as in "
            "self.model.optimizer.learning_rate = 0.1",
            "ask trainer.optimizer for its learning_rate and iterations",
            "trainer.optimizer.learning_rate = 0.1 sets the rate of the next steps; for anything else call "
            "trainer.export_to(model), and parallelize again",
        )
        super().__init__(words, ranks.rank)
        self._ranks, self._inner, self._step = ranks, inner_of(optimizer), step
        watch_all(optimizer.variables, self)

    def differs(self, variable: Any) -> bool:
        """Return whether the rate is another on the ranks or, for other variables, whether updates were made there."""
        if not self.is_running and not tf.executing_eagerly():
            return False  # a plain optimizer's own step is traced
        running = self._ranks.optimizers[self._step]
        if variable is self._inner._learning_rate:
            rate = running.learning_rate
            return isinstance(rate, keras.Variable) and bool(np.asarray(inner(rate)) != np.asarray(inner(variable)))
        return running.iterations != int(inner(self._inner.iterations))

    @property
    def any_differs(self) -> bool:
        return self._ranks.optimizers[self._step].iterations != int(inner(self._inner.iterations))


class WatchedMetrics(VariableWatch):
    """A watch over the variables of the metrics that were given to ``parallelize``, and of the mean loss."""

    def __init__(self, variables: list[Any], ranks: TrainerRanks, key_of: Callable[[Any], str | None]) -> None:
        words = Words(
            "the metrics that were given to parallelize",
            "take the results from logs, as a callback is given them, or trainer.get_metrics_result()",
            "take the results from trainer.get_metrics_result(), or from what fit and evaluate return",
            "",
        )
        super().__init__(words, ranks.rank)
        keys = {id(variable): key_of(inner(variable)) for variable in variables}
        self._keys = {of: key for of, key in keys.items() if key is not None}
        self._ranks, self._users = ranks, set[int]()
        watch_all([variable for variable in variables if id(variable) in self._keys], self)

    def differs(self, variable: Any) -> bool:
        """Return whether a step has updated the metric on the ranks since the user last assigned to it."""
        if not self.is_running and not tf.executing_eagerly():
            return False
        return id(variable) not in self._users and self._keys[id(variable)] in self._ranks.changed

    @property
    def any_differs(self) -> bool:
        return not self._ranks.changed.isdisjoint(self._keys.values())

    def assign(self, variable: Any, value: Any) -> bool:
        """Refuse an assignment while the trainer runs. At other times the metric serves the user beside the trainer."""
        if self.mode is None and self.is_running:
            raise self._refusal("assigned to", variable)
        if self.mode is None:
            self._users.add(id(variable))
        return False

    def before_step(self) -> None:
        """Forget what the user assigned, since a step updates the metrics."""
        self._users.clear()
