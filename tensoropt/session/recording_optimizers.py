"""Optimizers that record a training step, under the names of ``tf.compat.v1.train``."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from typing import Any

import tensorflow as tf

from ..common.errors import InputError, short
from ..frontend.recording import record_minimize


class Optimizer:
    """The base of the recording optimizers; use :class:`GradientDescentOptimizer` and its siblings."""

    kind = ""
    default_name = ""
    numbers: tuple[str, ...] = ()  # hyperparameters that can't be tensors

    def __init__(self, name: str | None, **hyperparameters: Any) -> None:
        self._name = name or self.default_name
        self._hyperparameters = hyperparameters
        for key, value in hyperparameters.items():
            if isinstance(value, tf.Variable):
                value = self._hyperparameters[key] = tf.convert_to_tensor(value)
            if isinstance(value, tf.Tensor) and key not in self.numbers:
                continue
            if not isinstance(value, Real):
                what = "a number" if key in self.numbers else "a number or a recorded scalar"
                raise InputError(f"{self._name}: {key} must be {what}, got {short(value)}")

    def minimize(
        self,
        loss: tf.Tensor,
        global_step: tf.Variable | None = None,
        var_list: Sequence[tf.Variable] | None = None,
        name: str | None = None,
    ) -> tf.Operation:
        """Record one training step and return the operation to run for it."""
        from .session import current_session

        recording = current_session().recording_for("minimize")
        return record_minimize(
            recording, self.kind, self._hyperparameters, loss, var_list, global_step, name or self._name
        )


    def compute_gradients(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse the call, as ``apply_gradients`` does: a training step is recorded as one."""
        raise InputError(
            f"{self._name}: a training step is recorded as a whole; call minimize(loss), and for gradients as tensors "
            "tensoropt.gradients(loss, variables)"
        )

    apply_gradients = compute_gradients


class GradientDescentOptimizer(Optimizer):
    """The counterpart of ``tf.compat.v1.train.GradientDescentOptimizer``, with a default learning rate."""

    kind, default_name = "sgd", "GradientDescent"

    def __init__(self, learning_rate: float | tf.Tensor = 0.01, name: str | None = None) -> None:
        super().__init__(name, learning_rate=learning_rate)


class MomentumOptimizer(Optimizer):
    """The counterpart of ``tf.compat.v1.train.MomentumOptimizer``, with default hyperparameters."""

    default_name = "Momentum"

    def __init__(
        self,
        learning_rate: float | tf.Tensor = 0.01,
        momentum: float | tf.Tensor = 0.9,
        name: str | None = None,
        use_nesterov: bool = False,
    ) -> None:
        self.kind = "nesterov" if use_nesterov else "momentum"
        super().__init__(name, learning_rate=learning_rate, momentum=momentum)


class AdamOptimizer(Optimizer):
    """The counterpart of ``tf.compat.v1.train.AdamOptimizer``."""

    kind, default_name, numbers = "adam", "Adam", ("beta1", "beta2", "epsilon")

    def __init__(
        self,
        learning_rate: float | tf.Tensor = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        name: str | None = None,
    ) -> None:
        super().__init__(name, learning_rate=learning_rate, beta1=beta1, beta2=beta2, epsilon=epsilon)
