"""Models trained on four ranks by ``tensoropt.parallelize``: the curve of 20 losses is plain Keras's."""

from __future__ import annotations

from pathlib import Path

import pytest
from mpirun import run_ranks

from tensoropt.random_mode import VARIABLE, RandomMode

WORKER = Path(__file__).with_name("worker.py")


def check(*names: str) -> None:
    env = {VARIABLE: RandomMode.ONE_DEVICE.value}
    done = run_ranks(4, "-m", "mpi4py", WORKER, *names, timeout=600, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    for name in names:
        assert f"{name}: 20 losses are one device's" in done.stdout


def test_four_ranks_train_as_one_device() -> None:
    check("lstm")


@pytest.mark.parametrize("name", ["bert", "mobilenet_v3", "MobileNetV3Small", "ResNet50"])
def test_four_ranks_train_larger_models_as_one_device(name: str, request: pytest.FixtureRequest) -> None:
    if not request.config.getoption("--all-models"):
        pytest.skip("held by pytest tests/models --all-models")
    check(name)
