"""Rematerialized operators and regathered copies: one device's numbers, each collective as it is charged."""

from __future__ import annotations

from functools import cache

import composite.models
import numpy as np
import pytest
from helpers import zoo
from helpers.large import first
from helpers.strategies import (
    assert_variables,
    engine_of,
    local_shards,
    random_router,
    random_strategy,
    train_and_check,
)

from tensoropt.lowering.resharding.backends import EmulatedBackend
from tensoropt.plan.build import cost_entries
from tensoropt.reschedule.mesh import Mesh

OPTIMIZERS = tuple(zoo.HYPERPARAMETERS)
MODELS = {function.__name__: function for function in (zoo.mlp, zoo.cnn, zoo.attention, zoo.windows, zoo.broadcasting)}
COMPOSITES = {function.__name__: function for function in composite.models.MODELS}
MESHES = (Mesh.of(4), Mesh.of(2, 2), Mesh.of(2, 3))
SHARES = ((0.5, 0.0), (1.0, 0.0), (0.5, 0.5), (1.0, 1.0), (0.8, 0.3), (0.0, 0.5), (0.0, 1.0))
"""Shares of rematerialized operators, and of regathered copies."""
SEEDS_BY_DEFAULT = {"mlp": (1, 3, 6), "cnn": (6,), "attention": (4,), "windows": (5,), "broadcasting": (0, 5)}
"""The seeds of each model that run by default, of which some rematerialize operators and some regather copies; seed i
has the shares ``SHARES[i]``."""


@cache
def recorded(function: str, optimizer: str) -> zoo.Recorded:
    return zoo.record({**MODELS, **COMPOSITES}[function], optimizer)


def check(model: zoo.Recorded, mesh: Mesh, seed: int) -> np.ndarray:
    """Train by a random strategy that rematerializes operators and regathers copies; return how many of each."""
    share_rematerialized, share_regathered = SHARES[seed % len(SHARES)]
    view = random_strategy(model, mesh, seed, share_regathered=share_regathered, share_rematerialized=share_rematerialized)
    engine = engine_of(model, view, random_router(seed), EmulatedBackend(mesh), in_order=seed // 2 % 2 == 1)
    train_and_check(engine, model)
    assert_variables(model, view, local_shards(engine))
    return np.array([len(view.rematerialized), sum(entry.is_regathered for entry in cost_entries(view))])


@pytest.mark.usefixtures("graphs_as_built")
@pytest.mark.parametrize("start", first(1, range(0, 21, 7)))
@pytest.mark.parametrize("function", MODELS)
def test_random_strategies_give_one_device_numbers(function: str, start: int, everything: bool) -> None:
    n_again = np.zeros(2)
    for seed in range(start, start + len(SHARES)) if everything else SEEDS_BY_DEFAULT[function]:
        n_again += check(recorded(function, OPTIMIZERS[seed % len(OPTIMIZERS)]), MESHES[seed % 3], 2000 + seed)
    assert n_again.all()


@pytest.mark.parametrize("function", first(1, ["mlp", "cnn"]))
def test_numbers_stay_with_tensorflows_graph_optimizer(function: str, everything: bool) -> None:
    """TensorFlow's graph optimizer merges equal operators and removes control dependencies."""
    for seed in (2302, 2304) if everything else (2304,):
        assert check(recorded(function, "adam"), Mesh.of(4), seed).any()


@pytest.mark.usefixtures("graphs_as_built")
@pytest.mark.parametrize("function", first(len(COMPOSITES) - 1, sorted(COMPOSITES, key="lstm".__eq__)))
def test_loops_and_custom_gradients_give_one_device_numbers(function: str) -> None:
    assert check(recorded(function, "momentum"), Mesh.of(4), 2405).any()
