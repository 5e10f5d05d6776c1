"""Loops and custom gradients under random strategies: one device's numbers, emulated and between processes."""

from __future__ import annotations

from functools import cache

import pytest
from composite.models import MODELS
from helpers import zoo
from helpers.large import first
from helpers.strategies import (
    assert_variables,
    engine_of,
    evaluate_and_check,
    local_shards,
    random_router,
    random_strategy,
    train_and_check,
)

from tensoropt.lowering.resharding.backends import EmulatedBackend
from tensoropt.reschedule.mesh import Mesh

FUNCTIONS = {function.__name__: function for function in MODELS}
OPTIMIZERS = ("momentum", "adam")
MESHES = (Mesh.of(4), Mesh.of(2, 2))
# By default one for each model: of a mesh, an optimizer and an order of the backward pass in turn.
# Loops of an LSTM are split on two ranks by ``test_ranks.py``.
CASES = [
    case
    for i, name in enumerate(FUNCTIONS)
    for case in first(int(name != "lstm"), [(name, i % 2), (name, 1 - i % 2)])
]


@cache
def recorded(function: str, optimizer: str) -> zoo.Recorded:
    return zoo.record(FUNCTIONS[function], optimizer)


@pytest.mark.parametrize(("function", "seed"), CASES)
def test_four_devices_give_one_device_numbers(function: str, seed: int) -> None:
    """Losses of three steps, the variables after them, metrics, and the collectives that are charged."""
    model, mesh = recorded(function, OPTIMIZERS[seed]), MESHES[seed % 2]
    view = random_strategy(model, mesh, seed, lambda config: bool(config.used_axes))
    engine = engine_of(model, view, random_router(seed), EmulatedBackend(mesh), in_order=seed == 1)
    train_and_check(engine, model)
    assert_variables(model, view, local_shards(engine))
    evaluate_and_check(engine, model)
