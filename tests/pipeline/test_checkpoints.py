"""Training that goes on from a checkpoint, with stages and without in turn, gives one device's numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers import zoo
from helpers.large import first
from helpers.strategies import assert_close, engine_of, feeds_of, random_router, random_strategy, training_fetch
from oracles.shards import gather
from pipeline.staged import random_engine
from runtime.checkpoint.states import ALONE

from tensoropt.lowering.resharding.backends import EmulatedBackend
from tensoropt.program.orders.interleaved import INTERLEAVED
from tensoropt.reschedule.mesh import Mesh
from tensoropt.runtime.checkpoint import restore, save
from tensoropt.runtime.engine import Engine

CASES = [("tied", "adam", 1), ("attention", "momentum", 3), ("mlp", "adam", 2), ("looking_up", "adam", 4)]


def engine_of_step(step: int, name: str, optimizer: str, seed: int) -> tuple[zoo.Recorded, Engine]:
    """Interleaved stages on twice two devices, then two devices without stages, then stages of one, two and one."""
    if step == 1:
        model, mesh = random_engine(name, optimizer, 4, (Mesh.of(1), Mesh.of(1)), seed)[0], Mesh.of(2)
        return model, engine_of(model, random_strategy(model, mesh, seed), random_router(seed), EmulatedBackend(mesh))
    meshes = (Mesh.of(2), Mesh.of(2)) if step == 0 else (Mesh.of(1), Mesh.of(2), Mesh.of(1))
    return random_engine(name, optimizer, 4, meshes, seed, INTERLEAVED if step == 0 else "1f1b")


@pytest.mark.parametrize(("name", "optimizer", "seed"), first(1, CASES))
def test_training_goes_on_with_stages_and_without(tmp_path: Path, name: str, optimizer: str, seed: int) -> None:
    """A step under each of three plans, through two checkpoints; then losses and all variables are those of one device."""
    for step in range(3):
        model, engine = engine_of_step(step, name, optimizer, seed + step)
        if step:
            assert restore(tmp_path, engine.state(), ALONE).content == {"step": step}
        loss = engine.run(training_fetch(model), feeds_of(model.graph, model.batches[step]))[0][0]
        assert_close(loss, model.reference.losses[step], 1e-10, f"the loss of step {step}")
        save(tmp_path / "ckpt", engine.state(), ALONE, {"step": step + 1}, number=step)
    state = {entry.key: entry for entry in engine.state()}
    assert len(state) == len(engine.state())
    for key, expected in model.reference.variables.items():
        entry = state[key]
        found = gather([shard.numpy() for shard in entry.variables], entry.layout, entry.shape)
        assert_close(found, expected, 1e-10, f"variable {key}")
