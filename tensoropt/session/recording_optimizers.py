"""Optimizers that record a training step, under the names of ``tf.compat.v1.train``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from numbers import Real
from typing import Any

import tensorflow as tf

from ..common.errors import InputError, short
from ..frontend.gradient_placeholders import Gradient
from ..frontend.recording import record_application, record_gradients, record_minimize
from ..optimizers.classic import Classic
from .session import current_session


class RecordingOptimizer:
    """Record training steps; use :class:`GradientDescentOptimizer`, :class:`MomentumOptimizer` or :class:`AdamOptimizer`.

    >>> import tensoropt
    >>> session = tensoropt.init(hardware="v100-1x1", seed=1)
    >>> w = tensoropt.get_variable("w", [4])
    >>> (gradient,) = tensoropt.gradients(tensoropt.reduce_sum(w**2), [w])
    >>> tensoropt.MomentumOptimizer(0.1).apply_gradients([(tensoropt.clip_by_norm(gradient, 1.0), w)]).name
    'Momentum'

    Raises:
        InputError: a hyperparameter isn't a number or a recorded scalar; later, a loss isn't a recorded scalar of floating
            point, or there is no variable or no gradient to train by.
    """

    kind = ""
    default_name = ""
    numbers: tuple[str, ...] = ()  # hyperparameters that can't be tensors

    def __init__(self, name: str | None, **hyperparameters: Any) -> None:
        self._name = name or self.default_name
        for key, value in hyperparameters.items():
            if isinstance(value, tf.Variable):
                value = hyperparameters[key] = tf.convert_to_tensor(value)
            if isinstance(value, tf.Tensor) and key not in self.numbers:
                continue
            if not isinstance(value, Real):
                kind = "a number" if key in self.numbers else "a number or a recorded scalar"
                raise InputError(f"{self._name}: {key} must be {kind}, got {short(value)}")
        self._classic = Classic(self.kind, tuple(hyperparameters.items()))

    def minimize(
        self,
        loss: tf.Tensor,
        global_step: tf.Variable | None = None,
        var_list: Sequence[tf.Variable] | None = None,
        name: str | None = None,
    ) -> tf.Operation:
        """Record one training step and return the operation to run for it."""
        recording = current_session().recording_for("minimize")
        return record_minimize(recording, self._classic, loss, var_list, global_step, name or self._name)

    def compute_gradients(
        self,
        loss: tf.Tensor,
        var_list: Sequence[tf.Variable] | None = None,
        gate_gradients: int = 1,
        aggregation_method: int | None = None,
        colocate_gradients_with_ops: bool = False,
        grad_loss: tf.Tensor | None = None,
    ) -> list[tuple[Gradient, tf.Variable]]:
        """Record the gradients of a loss; return pairs of a gradient, or None, and a variable."""
        recording = current_session().recording_for("compute_gradients")
        if grad_loss is not None:
            raise InputError(f"{self._name}: compute_gradients takes no grad_loss; multiply the loss by it")
        collected = recording.graph.get_collection(tf.compat.v1.GraphKeys.TRAINABLE_VARIABLES)
        variables = list(var_list if var_list is not None else collected)
        recorded = record_gradients(recording, loss, variables, has_own=False)
        if recorded is None:
            raise InputError(
                f"{self._name}: compute_gradients takes a floating-point loss and variables that were recorded after "
                f"tensoropt.init(), got {short(loss)}"
            )
        return list(zip(recorded, variables, strict=True))

    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Gradient, tf.Variable]],
        global_step: tf.Variable | None = None,
        name: str | None = None,
    ) -> tf.Operation:
        """Record an update by gradients, and return the operation to run for it."""
        recording = current_session().recording_for("apply_gradients")
        return record_application(recording, self._classic, list(grads_and_vars), global_step, name or self._name)


def gradients(ys: Any, xs: Any, grad_ys: Any = None, *arguments: Any, **named: Any) -> list[Gradient]:
    """Record gradients like ``tf.gradients``, those of variables under the plan; see :class:`RecordingOptimizer`."""
    recording = current_session().recording_for("gradients")
    variables = xs if isinstance(xs, (list, tuple)) else [xs]
    plain = grad_ys is None and not any(arguments) and not any(named.values())
    recorded = record_gradients(recording, ys, variables, has_own=True) if plain else None
    return recorded if recorded is not None else tf.gradients(ys, xs, grad_ys, *arguments, **named)


class GradientDescentOptimizer(RecordingOptimizer):
    """Record updates of ``tf.compat.v1.train.GradientDescentOptimizer``, with a default learning rate."""

    kind, default_name = "sgd", "GradientDescent"

    def __init__(self, learning_rate: float | tf.Tensor = 0.01, name: str | None = None) -> None:
        super().__init__(name, learning_rate=learning_rate)


class MomentumOptimizer(RecordingOptimizer):
    """Record updates of ``tf.compat.v1.train.MomentumOptimizer``, with default hyperparameters."""

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


class AdamOptimizer(RecordingOptimizer):
    """Record updates of ``tf.compat.v1.train.AdamOptimizer``."""

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
