"""The optimizer as callbacks and Keras's loops see it: its learning rate and its count of updates on the ranks."""

from __future__ import annotations

from typing import Any

import keras

from ..common.errors import InputError
from ..common.source_lines import running_line
from .live import class_with
from .ranks import Ranks

# What Keras's own loops and callbacks set.
_SET = frozenset({"learning_rate", "built"})


class RunningRate(keras.optimizers.Optimizer):
    """Stands for the optimizer of a trainer; the user's own object isn't updated while the model trains."""

    def __init__(self, ranks: Ranks) -> None:
        super().__init__(learning_rate=0.0)
        self._ranks: Ranks = ranks
        self.built = True

    def __setattr__(self, name: str, value: Any) -> None:
        if "_ranks" in vars(self) and name not in _SET and not name.startswith("_"):
            raise InputError(
                f"{name} of trainer.optimizer can't be set ({running_line()}), but learning_rate can: the steps that run "
                "have it as parallelize captured it; call trainer.export_to(model), and parallelize again"
            )
        super().__setattr__(name, value)

    @property
    def learning_rate(self) -> Any:
        """As it is now. Assigning sets it for the next steps; every rank must assign the same, but for callbacks."""
        rate = self._ranks.optimizer.learning_rate
        if not isinstance(rate, keras.Variable):
            return rate
        passing_on: Any = object.__new__(class_with(_Rate, rate))
        vars(passing_on).update(vars(rate), _ranks=self._ranks)
        return passing_on

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


class _Rate:
    """The learning rate's variable of one rank, mixed into its class: what it is assigned reaches all."""

    _ranks: Ranks

    def _direct_assign(self, value: Any) -> None:
        self._ranks.set_rate(float(value))
