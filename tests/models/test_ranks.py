"""Models trained on four ranks by ``tensoropt.parallelize``: the curve of 20 losses is plain Keras's; by ``--all``.

By default ``tests/trainer`` trains on ranks, and ``tests/composite`` has loops there.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from helpers.mpirun import run_ranks
from helpers.switches import floats

from models.catalog import SMALL
from models.worker import N_STEPS, prepared

WORKER = Path(__file__).with_name("worker.py")
TOLERANCE = 1e-9
# Small models are fastest whole: with less memory than that takes they are split.
MEMORY = {"lstm": "25kB", "bert": "70kB", "mobilenet_v3": "1.2MB", "MobileNetV3Small": "10MB", "ResNet50": "16GB"}
LEAST_SPLIT = 15


def plain(name: str) -> list[float]:
    """The losses by Keras alone."""
    entry = SMALL[name]
    with floats("float64"):
        model, optimizer, given = prepared(name)
        model.compile(optimizer, entry.loss, jit_compile=False)
        return model.fit(**given, batch_size=entry.batch_size).history["loss"]


def check(name: str) -> None:
    done = run_ranks(4, "-m", "mpi4py", WORKER, name, MEMORY[name], timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    expected = plain(name)
    assert len(expected) == N_STEPS and expected[0] != expected[-1] and found["split"] >= LEAST_SPLIT
    np.testing.assert_allclose(found["losses"], expected, rtol=0, atol=TOLERANCE * max(expected))


@pytest.mark.large
@pytest.mark.parametrize("name", ["lstm", "bert", "mobilenet_v3", "MobileNetV3Small", "ResNet50"])
def test_four_ranks_train_as_one_device(name: str) -> None:
    check(name)
