"""Complex numbers between the variables and the loss: random strategies against one device.

What is partial, padded with zeros, exchanged and summed on the way is complex as well; ``test_ranks.py`` holds the same
between processes.
"""

from __future__ import annotations

from functools import cache

import pytest
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

MESHES = (Mesh.of(1), Mesh.of(2), Mesh.of(3), Mesh.of(2, 2))

pytestmark = pytest.mark.usefixtures("graphs_as_built")


@cache
def recorded() -> zoo.Recorded:
    return zoo.record(zoo.fourier, "momentum")


@pytest.mark.parametrize("seed", first(2, [0, 5, 2, 7, 1, 3, 4, 6]))
def test_emulated_devices_give_one_device_numbers(seed: int) -> None:
    """Three steps: losses and variables; then metrics. Some copies are regathered, some operators rematerialized."""
    model, mesh = recorded(), MESHES[seed % 4]
    share = 0.5 if seed >= 4 else 0.0
    view = random_strategy(model, mesh, seed, lambda config: bool(config.used_axes), share, share)
    engine = engine_of(model, view, random_router(seed), EmulatedBackend(mesh), in_order=seed >= 4)
    train_and_check(engine, model)
    assert_variables(model, view, local_shards(engine))
    evaluate_and_check(engine, model)
