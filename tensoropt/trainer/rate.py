"""The optimizer as callbacks and Keras's loops see it: its learning rate and its count of updates on the ranks."""

from __future__ import annotations

from typing import Any

import keras

from .ranks import Ranks


class RunningRate(keras.optimizers.Optimizer):
    """Stands for the optimizer of a trainer; the user's own object isn't updated while the model trains."""

    def __init__(self, ranks: Ranks) -> None:
        super().__init__(learning_rate=0.0)
        self._ranks = ranks
        self.built = True

    @property
    def learning_rate(self) -> Any:
        """As it is now. Assigning sets it for the next steps; every rank must assign the same, but for callbacks."""
        return self._ranks.optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        self._ranks.set_rate(value)

    @property
    def iterations(self) -> int:
        """How many updates have been made."""
        return self._ranks.optimizer.iterations

    def finalize_variable_values(self, var_list: Any) -> None:
        """What Keras does at the end of ``fit``, done on the ranks."""
        self._ranks.finish_training()
