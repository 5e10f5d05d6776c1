"""The trainer as a Keras model: its variables and layers are those of the user's model, with the values on the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from ..common.errors import InputError
from ..common.source_lines import running_line
from .live import LiveValues
from .objective import KerasObjective


class LiveModel(KerasObjective):
    """Attributes:
    live: the values on the ranks; None before the model runs.
    """

    live: LiveValues | None = None
    _trained_before: Sequence[int] = ()

    def go_live(self, live: LiveValues, optimizer: keras.optimizers.Optimizer) -> None:
        """From here on read from the ranks, and have them run what was captured."""
        self._optimizer = optimizer
        self._trained_before = tuple(id(variable) for variable in self.trained)
        self.live = live

    def call(self, *args: Any, **kwargs: Any) -> Any:
        if self.live is None:
            return super().call(*args, **kwargs)
        with self.live.trained():
            return self.inner(*args, **kwargs)

    def _through(self, found: Any) -> Any:
        return found if self.live is None else self.live.through(found)

    @property
    def layers(self) -> list[keras.Layer]:
        """Those of the user's model; their variables have the trained values."""
        return self._through(list(self.inner.layers))

    @property
    def variables(self) -> list[keras.Variable]:
        return self._through(super().variables)

    @property
    def trainable_variables(self) -> list[keras.Variable]:
        return self._through(super().trainable_variables)

    @property
    def non_trainable_variables(self) -> list[keras.Variable]:
        return self._through(super().non_trainable_variables)

    @property
    def weights(self) -> list[keras.Variable]:
        return self._through(super().weights)

    @property
    def trainable_weights(self) -> list[keras.Variable]:
        return self._through(super().trainable_weights)

    @property
    def non_trainable_weights(self) -> list[keras.Variable]:
        return self._through(super().non_trainable_weights)

    # What was captured stays

    @property
    def optimizer(self) -> Any:
        """The learning rate and the number of updates as they are on the ranks."""
        return self.__dict__.get("_optimizer")

    @optimizer.setter
    def optimizer(self, value: Any) -> None:
        if self.live is not None:
            raise _captured(self.inner.name, "another optimizer can't be set", "; its learning rate can")
        self._optimizer = value

    def compile(self, *arguments: Any, **named: Any) -> None:
        """As Keras's, until the model runs.

        Raises:
            InputError: it runs.
        """
        if self.live is not None:
            raise _captured(self.inner.name, "the trainer can't be compiled again")
        super().compile(*arguments, **named)

    def check_trained(self) -> None:
        """Refuse to train on once other variables are trainable than those that were captured.

        Raises:
            InputError: they are.
        """
        now = {id(variable) for variable in self.trained}
        if self.live is None or now == set(self._trained_before):
            return
        for variable in self.inner.variables:
            is_trained, was_trained = id(variable) in now, id(variable) in self._trained_before
            if is_trained != was_trained:
                what = "isn't trainable any more" if was_trained else "is trainable now"
                raise _captured(self.inner.name, f"'{variable.path}' {what}, which doesn't change the plan that runs")
        raise _captured(self.inner.name, "the model has other trainable variables")


def _captured(name: str, what: str, but: str = "") -> InputError:
    return InputError(
        f"{what} ({running_line()}){but}: what runs was captured from model '{name}' by parallelize; call "
        "trainer.export_to(model), which gives the model the trained values, and tensoropt.parallelize for the new wish"
    )
