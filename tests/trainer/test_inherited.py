"""Programs for batches of other shapes inherit what the plan shares, regathers, rematerializes, and its micro-batches."""

from __future__ import annotations

from typing import Any
from unittest import mock

import keras
import numpy as np
import pytest
from helpers.large import first
from random_models.drawing import CaseOptions
from random_models.planning import plan_of
from trainer.deferred_cases import BATCH, LABELS, TOKENS, backbone, classes, contrastive, trainer_of
from trainer.models import assert_same_weights

import tensoropt
from tensoropt.trainer.capture.programs import EVALUATE, PREDICT, TRAIN
from tensoropt.tuning import asked_plan

pytestmark = pytest.mark.usefixtures("float64")


def any_plan(seed: int, micro_batches: int | None) -> Any:
    """Have trainers planned by any strategy, that regathers and rematerializes, too."""
    options = CaseOptions("random", "v100-1x2", 2, micro_batches, ())

    def planned(option: str, request: Any, *_: object) -> Any:
        return plan_of(options, seed, request, option)

    return mock.patch.object(asked_plan, "find_answer", planned)


SHAPES = ((8, 6), (6, 4), (8, 4), (4, 6), (8, 6))
"""Samples and lengths of batches; by default the first two."""


def batches(model: Any, shapes: tuple[tuple[int, int], ...]) -> list[float]:
    """Train on batches of two lengths and on smaller ones."""
    found = []
    for n_samples, length in shapes:
        x = {key: value[:n_samples, :length] for key, value in TOKENS.items()}
        found.append(model.train_on_batch(x, LABELS[:n_samples]))
        found.append(model.test_on_batch(x, LABELS[:n_samples]))
    return found


@pytest.mark.parametrize("seed", first(1, range(16)))
def test_other_shapes_inherit_all_of_a_plan_and_give_plain_keras_numbers(seed: int, everything: bool) -> None:
    shapes = SHAPES if everything else SHAPES[:2]
    micro_batches = 2 if seed % 2 else None
    keras.utils.set_random_seed(seed)
    with any_plan(seed, micro_batches):
        trainer = trainer_of(backbone(), classes(), micro_batches=micro_batches)
        ours = batches(trainer, shapes)
    keras.utils.set_random_seed(seed)
    plain = backbone()
    plain.compile(keras.optimizers.Adam(1e-2), classes(), jit_compile=False)
    np.testing.assert_allclose(ours, batches(plain, shapes), rtol=1e-9)
    assert_same_weights(trainer.get_weights(), plain.get_weights(), 1e-9, 1e-12)

    planned, others = trainer.plan.stages[0].strategy, trainer.ranks.runs._others
    assert planned.shared
    programs = [(key, run) for key, run in others.items() if key[0] == TRAIN]
    assert len(programs) == len(set(shapes))
    for (_, n_samples, _), run in programs:
        view, graph = run.execution.engine.views[0].whole, run.captured.graph
        same = {name for name, config in view.strategy.configs.items() if planned.configs.get(name) == config}
        # What operators have other configs in a smaller batch, or aren't planned, is theirs.
        ops = [op.name for op in graph.step_operators if not op.updates]
        if all(planned.configs.get(name) == view.strategy.configs[name] for name in ops):
            assert view.strategy.shared == planned.shared
            assert view.strategy.regathered == planned.regathered
            assert view.rematerialized == planned.rematerialized
        assert len(same) > 0.9 * len(view.strategy.configs)
        assert n_samples / run.execution.engine.views[0].per_micro_batch.graph.n_micro_batches <= BATCH / (
            micro_batches or 1
        )
    for key, run in others.items():
        if key[0] in (EVALUATE, PREDICT):
            assert run.execution.engine.views[0].per_micro_batch.graph.n_micro_batches == 1
    assert all(run.execution.engine.views[0].whole.strategy.shared for key, run in others.items() if key[0] == EVALUATE)


def wide() -> keras.Model:
    """What is saved for gradients is nearly all that a step needs."""
    hidden = [keras.layers.Dense(64, "tanh") for _ in range(3)]
    return keras.Sequential([keras.Input((64,)), *hidden, keras.layers.Dense(1)], name="m")


def test_more_samples_than_planned_are_taken_in_more_micro_batches_or_refused() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(4096, 64)), rng.normal(size=(4096, 1))
    options = {"batch_size": 512, "parallelism": 1, "memory": 1_000_000}
    trainer = trainer_of(wide(), "mse", **options)
    planned = trainer.plan.micro_batches
    assert planned > 1

    def micro_batches(n_samples: int) -> int:
        trainer.train_on_batch(x[:n_samples], y[:n_samples])
        (run,) = (run for key, run in trainer.ranks.runs._others.items() if key[:2] == (TRAIN, n_samples))
        return run.execution.engine.views[0].per_micro_batch.graph.n_micro_batches

    for n_samples in (768, 256):
        assert planned * n_samples <= 512 * micro_batches(n_samples) <= 2 * planned * n_samples
    assert micro_batches(1) == 1
    # 509 is a prime, and takes too much at once.
    said = (
        r"a batch \(test_inherited.py:\d+\) of x \[509, 64\], labels \[509, 1\] needs .* of a device with the configs "
        r"of the plan, more than the limit of .*; x \[\d+, 64\], labels \[\d+, 1\] fits: give smaller batches"
    )
    with pytest.raises(tensoropt.InputError, match=said):
        trainer.train_on_batch(x[:509], y[:509])
    with pytest.raises(tensoropt.InputError, match=r"a batch \(test_inherited.py:\d+\) of x \[4096, 64\].* fits: give"):
        trainer.predict_on_batch(x)


def test_what_is_larger_than_planned_is_held_against_the_limit_without_micro_batches_too() -> None:
    model = keras.Sequential([keras.Input((None, 5)), keras.layers.Dense(64), keras.layers.GlobalAveragePooling1D()])
    trainer = trainer_of(model, contrastive, memory=200_000)
    trainer.train_on_batch(np.zeros((BATCH, 20, 5)), LABELS[:BATCH])
    with pytest.raises(tensoropt.InputError, match=r"a batch \(test_inherited.py:\d+\) of x \[64, 20, 5\].* fits: give"):
        trainer.train_on_batch(np.zeros((64, 20, 5)), np.zeros((64, 1), "int64"))
