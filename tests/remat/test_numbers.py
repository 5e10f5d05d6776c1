"""Operators that are computed again in the backward pass: one device's numbers, each collective as it is charged."""

from __future__ import annotations

from functools import cache

import composite.models
import pytest
from helpers import zoo
from helpers.large import first
from helpers.strategies import (
    assert_variables,
    engine_of,
    pieces_here,
    random_router,
    random_strategy,
    train_and_check,
)

from tensoropt.lowering.resharding.backends import EmulatedBackend
from tensoropt.reschedule.mesh import Mesh

OPTIMIZERS = tuple(zoo.HYPERPARAMETERS)
MODELS = {function.__name__: function for function in (zoo.mlp, zoo.cnn, zoo.attention, zoo.windows, zoo.broadcasting)}
COMPOSITES = {function.__name__: function for function in composite.models.MODELS}
MESHES = (Mesh.of(4), Mesh.of(2, 2), Mesh.of(2, 3))
SHARES = ((0.5, 0.0), (1.0, 0.0), (0.5, 0.5), (1.0, 1.0), (0.8, 0.3))
"""Of operators that are computed again, of copies that are made again."""


@cache
def recorded(function: str, optimizer: str) -> zoo.Recorded:
    return zoo.record({**MODELS, **COMPOSITES}[function], optimizer)


def check(model: zoo.Recorded, mesh: Mesh, seed: int) -> int:
    """Train by a random strategy that computes half of the operators again, or all; how many that are."""
    share_recomputed, share_remade = SHARES[seed % len(SHARES)]
    view = random_strategy(model, mesh, seed, share_remade=share_remade, share_recomputed=share_recomputed)
    engine = engine_of(model, view, random_router(seed), EmulatedBackend(mesh), in_order=seed // 2 % 2 == 1)
    train_and_check(engine, model)
    assert_variables(model, view, pieces_here(engine))
    return len(view.recomputed)


@pytest.mark.usefixtures("graphs_as_built")
@pytest.mark.parametrize("start", first(1, range(0, 15, 5)))
@pytest.mark.parametrize("function", MODELS)
def test_random_strategies_give_one_device_numbers(function: str, start: int) -> None:
    n_recomputed = 0
    for seed in range(start, start + 5):
        n_recomputed += check(recorded(function, OPTIMIZERS[seed % len(OPTIMIZERS)]), MESHES[seed % 3], 2000 + seed)
    assert n_recomputed


@pytest.mark.parametrize("function", ["mlp", "cnn"])
def test_so_they_do_after_tensorflow_s_graph_optimizer(function: str) -> None:
    """Which merges operators that are equal, and removes control dependencies. Some copies are made again, too."""
    for seed in range(2302, 2305):
        assert check(recorded(function, "adam"), Mesh.of(4), seed)


@pytest.mark.usefixtures("graphs_as_built")
@pytest.mark.parametrize("function", COMPOSITES)
def test_so_do_loops_and_custom_gradients(function: str) -> None:
    """With copies that are made again, and in order."""
    check(recorded(function, "momentum"), Mesh.of(4), 2402)
