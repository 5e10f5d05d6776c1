"""The experiment tells which optimizers may update shards, and agrees with what is known of Keras's own."""

from __future__ import annotations

from typing import Any

import keras
import pytest
import tensorflow as tf
from optimizers.test_keras import CASES, RowNormalised, Signed

from tensoropt.common.errors import InputError
from tensoropt.optimizers import elementwise_updates
from tensoropt.optimizers.keras_optimizer import KerasOptimizer

PARTWISE = "RMSprop AdamW Ftrl Lion ScheduleFreeAdamW".split()


def experiment(optimizer: Any) -> str:
    return elementwise_updates._fault_when_cut(optimizer)


@pytest.mark.parametrize("name", PARTWISE)
def test_the_experiment_finds_what_is_known(name: str) -> None:
    optimizer = getattr(keras.optimizers, name)(0.01, weight_decay=0.1, clipnorm=0.1)
    assert experiment(optimizer) == elementwise_updates.fault_of(optimizer) == ""


@pytest.mark.parametrize(
    ("optimizer", "fault"),
    [(keras.optimizers.Lamb(0.01), "its update of a vector differs from that of the halves, cut along dimension 0"),
     (keras.optimizers.Adafactor(0.01), "its update of a vector"),
     (keras.optimizers.Muon(0.01), "its update of a vector"),
     (RowNormalised(0.01), "its update of a vector")],
)  # fmt: skip
def test_the_experiment_notices(optimizer: Any, fault: str) -> None:
    assert experiment(optimizer).startswith(fault)


def test_every_optimizer_of_keras_is_tried() -> None:
    """One that Keras adds belongs into the cases of the tests."""
    named = {
        name
        for name, value in vars(keras.optimizers).items()
        if isinstance(value, type) and issubclass(value, keras.optimizers.Optimizer) and name != "Optimizer"
    }
    tried = {type(make([tf.Variable(0.0, name="v")])).__name__ for name, (_, make) in CASES.items() if name != "adamw"}
    assert named - tried <= {"AdamW", "LossScaleOptimizer", "MultiOptimizer"}


class Noisy(Signed):
    """A user's own that draws random numbers."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        self.assign_sub(variable, tf.random.normal(variable.shape))


class Forgetful(Signed):
    """A user's own whose config lacks what its __init__ must have."""

    def __init__(self, strength: float, learning_rate: float = 0.1, name: str = "forgetful") -> None:
        super().__init__(learning_rate, name)


class Following(RowNormalised):
    """A user's own that must see whole parameters, and starts from their values."""

    def build(self, variables: Any) -> None:
        super().build(variables)
        for average, variable in zip(self.averages, variables, strict=True):
            average.assign(variable)


@pytest.mark.parametrize(
    ("optimizer", "sentence"),
    [(Noisy(), "optimizer Noisy makes another update each time from the same gradients, so that ranks would drift apart"),
     (Forgetful(1.0), r"Forgetful can't be made again from its get_config\(\), .*must return all arguments"),
     (Following(), "optimizer Following must see whole parameters .*but its variables start from the parameters' values"),
     ("adam", "expected a Keras optimizer such as keras.optimizers.Adam")],
)  # fmt: skip
def test_optimizers_that_cannot_run_on_shards_are_replicated(optimizer: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        KerasOptimizer.of(optimizer, [keras.Variable([[1.0, 2.0]], name="w")])
