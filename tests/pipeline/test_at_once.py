"""Stages that take a batch at once: one device's numbers, those of batch normalisation and its moving statistics too."""

from __future__ import annotations

import pytest
from accumulate import models
from helpers import zoo
from helpers.large import first
from pipeline.random_programs import check_numbers
from pipeline.staged import random_engine_of

from tensoropt.reschedule.mesh import Mesh

MESHES = ((Mesh.of(1), Mesh.of(2)), (Mesh.of(2), Mesh.of(2)), (Mesh.of(1), Mesh.of(1), Mesh.of(1)), (Mesh.of(3), Mesh.of(2)))
MODELS = {"cnn": zoo.cnn, "fused_cnn": zoo.fused_cnn, "tied": models.tied, "attention": zoo.attention}
CASES = [(name, seed) for seed in range(12) for name in MODELS]


@pytest.mark.usefixtures("graphs_as_built")
@pytest.mark.parametrize(("name", "seed"), first(6, CASES))
def test_random_strategies_give_one_device_numbers(name: str, seed: int) -> None:
    optimizer = sorted(zoo.HYPERPARAMETERS)[seed % len(zoo.HYPERPARAMETERS)]
    model = zoo.record(MODELS[name], optimizer)
    tolerance = 5e-5 if name == "fused_cnn" else 1e-10  # TensorFlow's one operator is of float32
    check_numbers(*random_engine_of(model, 1, MESHES[seed % len(MESHES)], seed), tolerance)
