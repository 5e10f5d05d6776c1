"""The optimizers: TensorFlow's own update operators on each rank's shard.

Slots (``slots.py``, zeros at first) are laid out as their parameter.

Names, defaults and arithmetic are those of ``tf.compat.v1.train``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

Numbers = Mapping[str, tf.Tensor]


@dataclass(frozen=True, slots=True)
class Update:
    """How an optimizer updates one shard.

    Attributes:
        powers: hyperparameters of which the optimizer needs the running power.
        apply: (variable, slots by name, gradient, numbers): emits the update. ``numbers`` has the hyperparameters, and
            the running power of x as ``x_power``.
    """

    powers: tuple[str, ...]
    apply: Callable[[tf.Variable, Mapping[str, tf.Variable], tf.Tensor, Numbers], Any]


def _gradient_descent(variable: tf.Variable, slots: Any, gradient: tf.Tensor, numbers: Numbers) -> Any:
    return tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=numbers["learning_rate"], delta=gradient)


def _momentum(nesterov: bool) -> Callable[..., Any]:
    def apply(variable: tf.Variable, slots: Any, gradient: tf.Tensor, numbers: Numbers) -> Any:
        return tf.raw_ops.ResourceApplyMomentum(
            var=variable.handle,
            accum=slots["momentum"].handle,
            lr=numbers["learning_rate"],
            grad=gradient,
            momentum=numbers["momentum"],
            use_nesterov=nesterov,
        )

    return apply


def _adam(variable: tf.Variable, slots: Any, gradient: tf.Tensor, numbers: Numbers) -> Any:
    return tf.raw_ops.ResourceApplyAdam(
        var=variable.handle,
        m=slots["m"].handle,
        v=slots["v"].handle,
        beta1_power=numbers["beta1_power"],
        beta2_power=numbers["beta2_power"],
        lr=numbers["learning_rate"],
        beta1=numbers["beta1"],
        beta2=numbers["beta2"],
        epsilon=numbers["epsilon"],
        grad=gradient,
    )


UPDATES: dict[str, Update] = {
    "sgd": Update((), _gradient_descent),
    "momentum": Update((), _momentum(nesterov=False)),
    "nesterov": Update((), _momentum(nesterov=True)),
    "adam": Update(("beta1", "beta2"), _adam),
}
