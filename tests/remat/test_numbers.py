"""Operators and copies that are made again in the backward pass: one device's numbers, each collective as it is charged."""

from __future__ import annotations

from functools import cache

import composite.models
import numpy as np
import pytest
from helpers import zoo
from helpers.strategies import (
    assert_variables,
    engine_of,
    pieces_here,
    random_router,
    random_strategy,
    train_and_check,
)

from tensoropt.lowering.resharding.backends import EmulatedBackend
from tensoropt.plan.build import charges
from tensoropt.reschedule.mesh import Mesh

OPTIMIZERS = tuple(zoo.HYPERPARAMETERS)
MODELS = {function.__name__: function for function in (zoo.mlp, zoo.cnn, zoo.attention, zoo.windows, zoo.broadcasting)}
COMPOSITES = {function.__name__: function for function in composite.models.MODELS}
MESHES = (Mesh.of(4), Mesh.of(2, 2), Mesh.of(2, 3))
SHARES = ((0.5, 0.0), (1.0, 0.0), (0.5, 0.5), (1.0, 1.0), (0.8, 0.3), (0.0, 0.5), (0.0, 1.0))
"""Of operators that are computed again, of copies that are made again."""


@cache
def recorded(function: str, optimizer: str) -> zoo.Recorded:
    return zoo.record({**MODELS, **COMPOSITES}[function], optimizer)


def check(model: zoo.Recorded, mesh: Mesh, seed: int) -> np.ndarray:
    """Train by a random strategy that computes operators and makes copies again; how many these are."""
    share_recomputed, share_remade = SHARES[seed % len(SHARES)]
    view = random_strategy(model, mesh, seed, share_remade=share_remade, share_recomputed=share_recomputed)
    engine = engine_of(model, view, random_router(seed), EmulatedBackend(mesh), in_order=seed // 2 % 2 == 1)
    train_and_check(engine, model)
    assert_variables(model, view, pieces_here(engine))
    return np.array([len(view.recomputed), sum(charge.is_remade for charge in charges(view))])


@pytest.mark.usefixtures("graphs_as_built")
@pytest.mark.parametrize("start", range(0, 21, 7))
@pytest.mark.parametrize("function", MODELS)
def test_random_strategies_give_one_device_numbers(function: str, start: int) -> None:
    n_again = np.zeros(2)
    for seed in range(start, start + len(SHARES)):
        n_again += check(recorded(function, OPTIMIZERS[seed % len(OPTIMIZERS)]), MESHES[seed % 3], 2000 + seed)
    assert n_again.all()


@pytest.mark.parametrize("function", ["mlp", "cnn"])
def test_so_they_do_after_tensorflow_s_graph_optimizer(function: str) -> None:
    """Which merges operators that are equal, and removes control dependencies."""
    for seed in range(2300, 2305):
        assert check(recorded(function, "adam"), Mesh.of(4), seed).any()


@pytest.mark.usefixtures("graphs_as_built")
@pytest.mark.parametrize("function", COMPOSITES)
def test_so_do_loops_and_custom_gradients(function: str) -> None:
    for seed in (2401, 2405):
        assert check(recorded(function, "momentum"), Mesh.of(4), seed).any()
