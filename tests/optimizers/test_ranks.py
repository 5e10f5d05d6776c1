"""The same under real mpirun: conditions, completed sums and whole updates, with digests of the graphs compared."""

from __future__ import annotations

from pathlib import Path

import pytest
from mpirun import run_ranks

WORKER = Path(__file__).with_name("worker.py")
NAMES = ("lamb-clipped", "adamw", "nadam", "adafactor", "sgd-ema")


@pytest.mark.parametrize("n_ranks", [2, 3])
def test_optimizers_between_processes_give_one_device_numbers(n_ranks: int) -> None:
    result = run_ranks(n_ranks, "-m", "mpi4py", WORKER, *NAMES, timeout=240)
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"{len(NAMES)} optimizers on {n_ranks} ranks" in result.stdout
