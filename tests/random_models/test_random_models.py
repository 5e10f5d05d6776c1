"""Whatever the model, the optimizer and the plan: one device's numbers, or a sentence that says what isn't done.

Two random cases, and 51 by ``--all``; ``tests/benchmarks/random_models.py`` runs as many as one likes, or one by its
seed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest import mock

import keras
import numpy as np
import pytest
from helpers.large import first

from random_models import running
from random_models.drawing import Case, CaseOptions, Training, drawn
from random_models.running import ROUNDING, SAME, UNSTABLE, WRONG, Outcome, run
from tensoropt.ir.graph import Operator, TrainStep
from tensoropt.lowering.resharding import backends
from tensoropt.optimizers.running_optimizer import Emission, PendingUpdate
from tensoropt.runtime.step.stage_state import StageState

CASES, IN_A_TEST, LEAST_SAME = 51, 3, 2
SEED, TOO_MUCH = 3, 1.0 + 1e-6
simulate, updated, update = backends.simulate, StageState.update_of, StageState.update


@pytest.mark.parametrize("start", first(1, range(0, CASES, IN_A_TEST)))
def test_random_models_train_as_on_one_device(start: int, everything: bool) -> None:
    n_cases = IN_A_TEST if everything else LEAST_SAME
    outcomes = [run(drawn(seed)) for seed in range(start, start + n_cases)]
    faults = "\n".join(str(outcome) for outcome in outcomes if outcome.is_fault)
    assert not faults, f"python tests/benchmarks/random_models.py --seed N runs one alone:\n{faults}"
    same = sum(outcome.kind == SAME for outcome in outcomes)
    assert same >= LEAST_SAME, "too few were compared:\n" + "\n".join(map(str, outcomes))


def _collective(path: Any, shards: Any) -> Any:
    return [shard * TOO_MUCH if shard.dtype.kind == "f" else shard for shard in simulate(path, shards)]


def _updated(self: StageState, step: TrainStep, emission: Emission) -> PendingUpdate:
    *others, last = emission.gradients
    more = [each if each is None else [gradient * TOO_MUCH for gradient in each] for each in last]
    return updated(self, step, replace(emission, gradients=[*others, more]))


def _update(self: StageState, op: Operator, operands: list[Any]) -> Any:
    is_real = bool(operands) and operands[0][0].dtype.is_floating
    return update(self, op, [[value * TOO_MUCH for value in operands[0]]] if is_real else operands)


FAULTS = {
    "collectives": lambda: mock.patch.object(backends, "simulate", _collective),
    "gradients": lambda: mock.patch.object(StageState, "update_of", _updated),
    "moving statistics": lambda: mock.patch.object(StageState, "update", _update),
}


def _held(optimizer: keras.optimizers.Optimizer, dtype: str = "float64") -> Outcome:
    """A model with a bias ahead of a normalisation, whose gradient is zero, by any strategy on two devices."""
    options = CaseOptions("random", "v100-1x2", 2, None, ())
    case = replace(
        drawn(SEED), dtype=dtype, batches=(6, 6), by_fit=False, is_weighted=False, predicts=False, options=options
    )

    def made(case: Case) -> Training:
        keras.utils.clear_session(free_memory=False)
        keras.utils.set_random_seed(SEED)
        layers = [keras.layers.Dense(4), keras.layers.BatchNormalization(), keras.layers.Dense(3, activation="tanh")]
        model = keras.Sequential([keras.Input((5,)), *layers])
        rng = np.random.default_rng(SEED)
        data = rng.normal(size=(12, 5)), rng.normal(size=(12, 3))
        fresh = optimizer.from_config(optimizer.get_config())
        return Training(model, fresh, keras.losses.MeanSquaredError(), ["mae"], data, "by hand")

    with mock.patch.object(running, "made", made):
        return run(case)


def test_faults_are_seen(everything: bool) -> None:
    """A millionth too much of anything in float64."""
    assert _held(keras.optimizers.SGD(0.1)).kind == SAME
    for fault, planted in [*FAULTS.items()][0 if everything else 1 :]:
        with planted():
            outcome = _held(keras.optimizers.SGD(0.1))
        assert outcome.kind == WRONG, f"{fault}: {outcome}"


@pytest.mark.large
def test_what_is_the_same_in_float64_is_rounding() -> None:
    """A fault differs there too, and what is off by rounding doesn't."""
    with mock.patch.dict(running.TOLERANCES, float32=1e-12), mock.patch.dict(running.FLOORS, float32=0.0):
        outcome = _held(keras.optimizers.SGD(0.1), "float32")
        assert outcome.kind == ROUNDING, str(outcome)
        with FAULTS["gradients"]():
            outcome = _held(keras.optimizers.SGD(0.1), "float32")
        assert outcome.kind == WRONG, str(outcome)


@pytest.mark.large
def test_a_zero_gradient_is_no_fault() -> None:
    """Lion takes the sign of gradients that are zero but for rounding; faults elsewhere are seen still."""
    outcome = _held(keras.optimizers.Lion(0.1))
    assert outcome.kind == UNSTABLE, str(outcome)
    with FAULTS["moving statistics"]():
        outcome = _held(keras.optimizers.Lion(0.1))
    assert outcome.kind == WRONG, str(outcome)
