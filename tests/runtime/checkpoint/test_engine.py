"""Training that goes on from a checkpoint under another plan gives one device's numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from helpers import zoo
from helpers.large import first
from helpers.strategies import (
    EXACT,
    assert_close,
    assert_variables,
    engine_of,
    feeds_of,
    local_shards,
    random_router,
    random_strategy,
    training_fetch,
)
from runtime.checkpoint.states import ALONE

from tensoropt.lowering.resharding.backends import EmulatedBackend
from tensoropt.reschedule.mesh import Mesh
from tensoropt.runtime.checkpoint import restore, save
from tensoropt.runtime.engine import Engine


def engine(model: zoo.Recorded, mesh: Mesh, seed: int) -> Engine:
    return engine_of(model, random_strategy(model, mesh, seed), random_router(seed), EmulatedBackend(mesh))


def train(of: Engine, model: zoo.Recorded, steps: range) -> None:
    for step in steps:
        (losses,) = of.run(training_fetch(model), feeds_of(model.graph, model.batches[step]))
        for loss in losses:
            assert_close(loss, model.reference.losses[step], EXACT, f"the loss of step {step}")


@pytest.mark.usefixtures("graphs_as_built")
@pytest.mark.parametrize(
    ("function", "optimizer", "seed"), first(1, [(zoo.mlp, "adam", 1), (zoo.cnn, "momentum", 2), (zoo.attention, "adam", 4)])
)
def test_training_goes_on_under_another_plan(
    tmp_path: Path, function: Callable[[], zoo.Built], optimizer: str, seed: int, everything: bool
) -> None:
    """A step on each of three meshes, through two checkpoints; then losses and all variables are those of one device."""
    model = zoo.record(function, optimizer)
    for step, mesh in enumerate([Mesh.of(4), Mesh.of(2, 3) if everything else Mesh.of(3), Mesh.of(1)]):
        made = engine(model, mesh, seed + 10 * step)
        if step:
            assert restore(tmp_path, made.state(), ALONE).content == {"step": step}
        train(made, model, range(step, step + 1))
        save(tmp_path / "ckpt", made.state(), ALONE, {"step": step + 1}, number=step)
    assert_variables(model, made.views[0].whole, local_shards(made))
