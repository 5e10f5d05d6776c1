"""Keras optimizers on pieces give one device's numbers: losses, variables and slots, in float64 to 1e-10."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers.large import first
from helpers.strategies import feeds_of
from helpers.switches import floats
from keras import optimizers
from keras.optimizers import schedules
from optimizers.models import MakeOptimizer, assert_same, case_of, check, whole

from tensoropt.common.errors import InputError
from tensoropt.ir.graph import Graph
from tensoropt.lowering.resharding.backends import EmulatedBackend
from tensoropt.optimizers.copies import Parameter, ShardVariable, as_text, build_variables, fresh_copy, slots_of
from tensoropt.optimizers.keras_optimizer import KerasOptimizer
from tensoropt.program.fetch import Fetch
from tensoropt.reschedule.mesh import Mesh


class Signed(keras.optimizers.Optimizer):
    """A user's own, elementwise, with a number that its config leaves out."""

    def __init__(self, learning_rate: float = 0.01, name: str = "signed") -> None:
        super().__init__(learning_rate=learning_rate, name=name)
        self.power = 1.0

    def build(self, variables: Any) -> None:
        super().build(variables)
        self.averages = [self.add_variable_from_reference(v, name="average") for v in variables]

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        average = self.averages[self._get_variable_index(variable)]
        self.assign(average, 0.9 * average.value + 0.1 * gradient)
        step = tf.sign(average.value) * tf.abs(average.value) ** self.power
        self.assign_sub(variable, tf.cast(learning_rate, variable.dtype) * step)

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        return {"name": config["name"], "learning_rate": config["learning_rate"]}


class RowNormalised(Signed):
    """A user's own that divides by the norm of rows, and so must see whole parameters."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        norm = tf.norm(gradient, axis=-1, keepdims=True)
        self.assign_sub(variable, tf.cast(learning_rate, gradient.dtype) * gradient / (norm + 1.0))


def signed_squares(variables: list[Any]) -> Any:
    optimizer = Signed(0.01)
    optimizer.power = 2.0
    return optimizer


def without_decay_of_first(variables: list[Any]) -> Any:
    optimizer = optimizers.AdamW(0.01, weight_decay=0.3, clipnorm=0.05)
    optimizer.exclude_from_weight_decay(var_list=variables[:1], var_names=["scale", "beta"])
    return optimizer


def changed_learning_rate(variables: list[Any]) -> Any:
    optimizer = optimizers.SGD(0.5, momentum=0.9)
    optimizer.learning_rate = 0.05
    return optimizer


CASES: dict[str, tuple[str, Callable[[list[Any]], Any]]] = {
    "sgd": ("mlp", lambda v: optimizers.SGD(0.1, momentum=0.9, nesterov=True, clipnorm=0.05)),
    "sgd-ema": ("cnn", lambda v: optimizers.SGD(0.1, global_clipnorm=0.1, use_ema=True, ema_overwrite_frequency=2)),
    "sgd-scaled": ("mlp", lambda v: optimizers.SGD(0.1, loss_scale_factor=8, clipnorm=0.05, gradient_accumulation_steps=2)),
    "sgd-set": ("mlp", changed_learning_rate),
    "rmsprop": ("mlp", lambda v: optimizers.RMSprop(0.01, momentum=0.9, centered=True, clipvalue=0.02)),
    "adam": ("mlp", lambda v: optimizers.Adam(schedules.CosineDecay(0.05, 5), global_clipnorm=0.1)),
    "amsgrad": ("mlp", lambda v: optimizers.Adam(0.01, amsgrad=True, gradient_accumulation_steps=2, global_clipnorm=0.05)),
    "adamw": ("mlp", without_decay_of_first),
    "adagrad": ("mlp", lambda v: optimizers.Adagrad(0.1, weight_decay=0.1)),
    "adadelta": ("mlp", lambda v: optimizers.Adadelta(0.5, use_ema=True)),
    "adamax": ("mlp", lambda v: optimizers.Adamax(schedules.ExponentialDecay(0.1, 2, 0.5))),
    "nadam": ("mlp", lambda v: optimizers.Nadam(schedules.PiecewiseConstantDecay([2], [0.05, 0.01]))),
    "ftrl": ("mlp", lambda v: optimizers.Ftrl(0.1, l1_regularization_strength=0.01, l2_regularization_strength=0.01)),
    "lion": ("mlp", lambda v: optimizers.Lion(0.01, weight_decay=0.1, clipvalue=0.01)),
    "lamb-clipped": (
        "mlp", lambda v: optimizers.Lamb(0.05, global_clipnorm=0.1, gradient_accumulation_steps=2, weight_decay=0.1)
    ),
    "adafactor": ("mlp", lambda v: optimizers.Adafactor(0.05, clipnorm=0.1)),
    "muon": ("mlp", lambda v: optimizers.Muon(0.01)),
    "schedule-free": ("mlp", lambda v: optimizers.ScheduleFreeAdamW(0.01, warmup_steps=2)),
    "own": ("mlp", signed_squares),
    "own-whole": ("mlp", lambda v: RowNormalised(0.1)),
}


ON_FOUR = ("adam", "lamb-clipped", "adafactor")
ALIKE = ("sgd-set", "rmsprop", "adagrad", "adadelta", "adamax", "nadam", "ftrl", "lion")
"""Elementwise as others are that are held by default; ``test_elementwise.py`` finds that they are."""


@pytest.mark.parametrize("name", first(len(CASES) - len(ALIKE), sorted(CASES, key=ALIKE.__contains__)))
def test_devices_give_one_device_numbers(name: str, everything: bool) -> None:
    """Updates that communicate run on four devices, by default these three of them; the others on two."""
    with floats("float64" if name == "muon" else "float32"):
        # Muon takes its learning rate in Keras's default type, and fails on parameters of another one.
        case = case_of(*CASES[name])
        communicates = case.optimizer.sum_lengths or any(case.optimizer.is_global)
        mesh = Mesh.of(2, 2) if communicates and (everything or name in ON_FOUR) else Mesh.of(2)
        check(case, mesh, 1 + len(name), EmulatedBackend(mesh))


def test_losses_are_scaled_and_steps_skipped_as_on_one_device() -> None:
    """The second batch has no finite gradient: the scale halves, nothing else changes; then it grows every second step."""
    mesh = Mesh.of(2, 2)

    def change(step: int, batch: dict[str, np.ndarray]) -> None:
        if step == 1:
            batch["x:0"][0, 0] = np.inf

    def make(variables: list[Any]) -> Any:
        inner = optimizers.Adam(0.01, global_clipnorm=0.1)
        return optimizers.LossScaleOptimizer(inner, initial_scale=64.0, dynamic_growth_steps=2)

    case = case_of("mlp", make, change=change, n_steps=6)
    engine = check(case, mesh, 3, EmulatedBackend(mesh))
    held = {entry.key: entry.variables[0].numpy() for entry in engine.state()}
    assert held["train/dynamic_scale"] == 128.0 and held["train/inner/iteration"] == 5
    assert engine.optimizers["train"].iterations == 5


def test_constraints_apply_to_global_parameters(everything: bool) -> None:
    """A norm over columns, which may be split, and one that needs only elements."""
    mesh = Mesh.of(2, 2)
    constraints = {"w1": keras.constraints.UnitNorm(axis=0), "b1": keras.constraints.NonNeg()}
    for seed in (1, 2) if everything else (1,):
        case = case_of("mlp", lambda variables: optimizers.SGD(0.5, global_clipnorm=0.2), constraints)
        assert case.optimizer.is_global == (True, False, False, False)
        check(case, mesh, seed, EmulatedBackend(mesh))


def test_first_values_come_back_and_the_learning_rate_can_be_set() -> None:
    mesh = Mesh.of(2, 2)
    case = case_of("mlp", lambda variables: optimizers.Adagrad(0.1, clipnorm=0.1))
    engine = check(case, mesh, 1, EmulatedBackend(mesh))
    optimizer = engine.optimizers["train"]
    engine.initialize()
    assert optimizer.iterations == 0
    optimizer.learning_rate = 0.0
    assert float(tf.convert_to_tensor(optimizer.learning_rate)) == 0.0
    before = [variable.numpy() for variables in engine.states[0].variables.values() for variable in variables]
    fetch = Fetch((), ("train",))
    engine.run(fetch, feeds_of(case.graph, case.batches[0]))
    for value, variables in zip(before, [v for each in engine.states[0].variables.values() for v in each], strict=True):
        assert np.array_equal(value, variables.numpy())
    assert optimizer.iterations == 1
    with pytest.raises(InputError, match="the learning rate of step 'train' can't be set to"):
        optimizer.learning_rate = schedules.CosineDecay(0.1, 3)


def test_averages_take_the_parameters_place_at_the_end() -> None:
    """Replicated updates average, too; without averages nothing changes, whatever was assigned since."""
    mesh = Mesh.of(2, 2)
    constraints = {"w1": keras.constraints.UnitNorm(axis=0)}
    for use_ema in (True, False):
        case = case_of("mlp", lambda variables, ema=use_ema: optimizers.SGD(0.5, use_ema=ema), constraints, n_steps=2)
        engine = check(case, mesh, 2, EmulatedBackend(mesh))
        expected = dict(case.expected.variables)
        if use_ema:
            kept = {path.split("/")[-1]: value for path, value in case.expected.optimizer_variables}
            expected = {name: kept[f"{name}_average"] for name in expected}
        engine.optimizers["train"].finish()
        for entry in engine.state():
            if entry.step is None:
                assert_same(whole(entry), expected[entry.key], 1e-10, entry.key)


def test_plans_depend_on_an_optimizers_slots_and_not_on_its_hyperparameters() -> None:
    def graph(make: MakeOptimizer) -> Graph:
        return case_of("mlp", make, n_steps=0).graph

    one = graph(lambda v: optimizers.Adam(0.1))
    other = graph(lambda v: optimizers.Adam(schedules.CosineDecay(0.1, 3), beta_1=0.8))
    assert one.digest == other.digest and one.agreement != other.agreement
    for changed in ({"clipnorm": 1.0}, {"use_ema": True}, {"amsgrad": True}):
        assert graph(lambda v, changed=changed: optimizers.Adam(0.1, **changed)).digest != one.digest


KEEPING_SLOTS: dict[str, Callable[[], keras.optimizers.Optimizer]] = {
    "averages": lambda: optimizers.SGD(momentum=0.9, use_ema=True),
    "amsgrad": lambda: optimizers.Adam(amsgrad=True),
    "adafactor": optimizers.Adafactor,
    "muon": optimizers.Muon,
    "accumulation": lambda: optimizers.Adam(gradient_accumulation_steps=2),
    "loss-scale": lambda: optimizers.LossScaleOptimizer(optimizers.RMSprop(centered=True)),
    "own": Signed,
}


@pytest.mark.parametrize("name", KEEPING_SLOTS)
def test_slots_equal_those_of_a_build_on_global_variables(name: str) -> None:
    optimizer = KEEPING_SLOTS[name]()
    shapes = {"dense/kernel": (4, 3), "dense/bias": (3,), "conv/kernel": (2, 2, 3, 3), "head/kernel": (3, 2)}
    parameters = [Parameter(path, shape) for path, shape in shapes.items()]
    shards = [ShardVariable(tf.Variable(tf.zeros(each.shape)), each.shape, each) for each in parameters]
    owners = [owner for _, owner in build_variables(fresh_copy(optimizer), shards, parameters)]
    assert slots_of(optimizer, parameters) == tuple(owners.count(place) for place in range(len(parameters)))


def test_what_ranks_compare_of_an_optimizer_has_no_addresses_and_counts() -> None:
    class Holding(Signed):
        def get_config(self) -> dict[str, Any]:
            return {**super().get_config(), "held": object()}

    assert '"held": "object <object object>"' in KerasOptimizer(Holding(), ()).numbers
    scaling = [keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(rate)) for rate in (0.1, 0.1, 0.2)]
    numbers = [KerasOptimizer(optimizer, ()).numbers for optimizer in scaling]
    assert numbers[0] == numbers[1] != numbers[2]
    schedules = [as_text(keras.optimizers.schedules.ExponentialDecay(rate, 10, 0.5)) for rate in (0.1, 0.1, 0.2)]
    assert schedules[0] == schedules[1] != schedules[2] and " at 0x" not in schedules[0]
