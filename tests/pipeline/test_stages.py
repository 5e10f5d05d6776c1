"""Models in stages: one device's numbers, whatever the cuts, the stages' strategies, the schedule and the transfers."""

from __future__ import annotations

import accumulate.models as models
import pytest
from helpers.large import first
from pipeline.random_programs import check_numbers
from pipeline.staged import random_engine

from tensoropt.program.schedule import SCHEDULES
from tensoropt.reschedule.mesh import Mesh

CASES = [(name, (seed + i) % 40) for seed in range(40) for i, name in enumerate(models.FUNCTIONS)]
"""Of these the first are on all meshes, each model on another."""
MESHES = (
    (Mesh.of(1), Mesh.of(1)),
    (Mesh.of(2), Mesh.of(2)),
    (Mesh.of(1), Mesh.of(2), Mesh.of(1)),
    (Mesh.of(3), Mesh.of(2)),
    (Mesh.of(2, 2), Mesh.of(2)),
)


@pytest.mark.usefixtures("graphs_as_built")
@pytest.mark.parametrize(("name", "seed"), first(6, sorted(CASES[:7], key=("attention", 1).__eq__)) + first(0, CASES[7:]))
def test_random_strategies_give_one_device_numbers(name: str, seed: int) -> None:
    optimizer = sorted(models.zoo.HYPERPARAMETERS)[seed % len(models.zoo.HYPERPARAMETERS)]
    meshes, schedule = MESHES[seed % len(MESHES)], SCHEDULES[(seed + len(name)) % len(SCHEDULES)]
    check_numbers(*random_engine(name, optimizer, (2, 4, 8)[seed % 3], meshes, seed, schedule))
