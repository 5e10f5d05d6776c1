"""Mixed precision: training in 16 bits by a plan and by plain Keras, and how far rounding may part the two.

``mpirun -n 2 python mixed.py POLICY`` is one rank of a test.

Two runs in 16 bits whose sums are taken in other orders both lie around the run in float32, each at the distance that
rounding to 16 bits makes, and so from each other at most twice that. How much it makes is measured in plain Keras on one
device, with the samples of a batch in two orders: the largest of all variables, relative to how far a variable has moved.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from trainer.models import BATCH, CLASSES, images, loss

import tensoropt

N_STEPS = 3
RATE = 0.1
# Of the loss: the scale that Keras begins with then makes float16 overflow in the first step.
WEIGHTS = {"mixed_float16": 5.0, "mixed_bfloat16": 1.0}


@contextmanager
def policy(name: str) -> Iterator[None]:
    before = keras.config.dtype_policy()
    keras.mixed_precision.set_global_policy(name)
    yield
    keras.mixed_precision.set_global_policy(before)


def network() -> keras.Model:
    """Convolution and dense layers with both normalisations; the same first values each time."""
    keras.utils.set_random_seed(3)
    inputs = keras.Input((6, 6, 2))
    x = keras.layers.Conv2D(4, 3, padding="same", use_bias=False)(inputs)
    x = keras.layers.Activation("relu")(keras.layers.BatchNormalization(momentum=0.8)(x))
    x = keras.layers.Dense(8, activation="tanh")(keras.layers.Flatten()(x))
    return keras.Model(inputs, keras.layers.Dense(CLASSES)(keras.layers.LayerNormalization()(x)))


def compiled(weight: float) -> dict[str, Any]:
    return {"optimizer": keras.optimizers.SGD(RATE / weight), "loss": loss(), "loss_weights": [weight]}


@dataclass(frozen=True)
class Step:
    """A step's outcome: the loss, the weights, and the loss's scale with the counts of steps, where there is one."""

    loss: float
    weights: list[np.ndarray]
    scaling: dict[str, float]


def batch(step: int, order: int = 1) -> tuple[np.ndarray, np.ndarray]:
    x, y = images(BATCH, seed=step)
    return x[::order], y[::order]


def by_keras(name: str, weight: float, order: int = 1, skipped: list[bool] | None = None) -> list[Step]:
    """The steps of plain Keras on one device.

    Args:
        order: -1 turns the samples of each batch around.
        skipped: steps of which only moving averages are kept.
    """
    with policy(name):
        model, steps = network(), []
        model.compile(**compiled(weight), jit_compile=False)
        for number in range(N_STEPS):
            before = [variable.numpy() for variable in model.trainable_variables]
            lost = model.train_on_batch(*batch(number, order))
            if skipped and skipped[number]:
                for variable, value in zip(model.trainable_variables, before, strict=True):
                    variable.assign(value)
            steps.append(Step(lost, model.get_weights(), _scaling_of(model.optimizer)))
    return steps


def _scaling_of(optimizer: Any) -> dict[str, float]:
    if not isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return {}
    kept = {"dynamic_scale": optimizer.dynamic_scale, "step_counter": optimizer.step_counter}
    return {name: float(value) for name, value in kept.items()} | {"iteration": float(optimizer.iterations)}


def by_plan(name: str, weight: float, **options: Any) -> list[Step]:
    with policy(name):
        trainer, steps = tensoropt.parallelize(network(), batch_size=BATCH, **compiled(weight), **options), []
    for number in range(N_STEPS):
        lost = trainer.train_on_batch(*batch(number))
        held = {entry.key: entry.variables[0] for entry in trainer.ranks.execution.engine.state()}
        keys = ("train/dynamic_scale", "train/step_counter", "train/inner/iteration")
        scaling = {key.rpartition("/")[2]: float(held[key]) for key in keys if key in held}
        steps.append(Step(lost, trainer.get_weights(), scaling))
    return steps


@dataclass(frozen=True)
class OneDevice:
    """The numbers of plain Keras.

    Attributes:
        rounding: the largest relative distance to float32, of a loss or of a weight.
    """

    steps: list[Step]
    rounding: float

    @classmethod
    def of(cls, name: str) -> OneDevice:
        runs = [by_keras(name, WEIGHTS[name], order) for order in (1, -1)]
        counts = [0.0, *(step.scaling.get("iteration", 0.0) for step in runs[0])]
        skipped = [bool(step.scaling) and counts[n] == counts[n + 1] for n, step in enumerate(runs[0])]
        exact = by_keras("float32", WEIGHTS[name], skipped=skipped)
        return cls(runs[0], max(max(_off(step, whole)) for run in runs for step, whole in zip(run, exact, strict=True)))

    def check(self, found: list[Step]) -> None:
        """Raises:
        AssertionError: a run in 16 bits isn't one device's but for rounding, or scaled losses otherwise.
        """
        for number, (step, expected) in enumerate(zip(found, self.steps, strict=True)):
            assert step.scaling == expected.scaling, f"step {number}"
            off = _off(step, expected)
            assert max(off) <= 2 * self.rounding, f"step {number}: off by {off}, where rounding makes {self.rounding}"


def _off(step: Step, expected: Step) -> list[float]:
    """The loss's relative difference, and of each weight the largest in units of the largest way that it went."""
    first = network().get_weights()
    off = [abs(step.loss - expected.loss) / abs(expected.loss)]
    for one, other, before in zip(step.weights, expected.weights, first, strict=True):
        moved = np.max(np.abs(other - before))
        assert moved > 0 or np.array_equal(one, other), "a weight moved that doesn't on one device"
        off.append(float(np.max(np.abs(one - other)) / moved) if moved else 0.0)
    return off


def main() -> None:
    name = sys.argv[1]
    found = by_plan(name, WEIGHTS[name], cluster=f"v100-1x{os.environ['OMPI_COMM_WORLD_SIZE']}", force={"MatMul": {"k": 2}})
    OneDevice.of(name).check(found)
    print(f"{name}: done")


if __name__ == "__main__":
    main()
