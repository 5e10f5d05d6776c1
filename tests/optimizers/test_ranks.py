"""The same under real mpirun: conditions, completed sums and whole updates, with digests of the graphs compared."""

from __future__ import annotations

from pathlib import Path

from helpers.mpirun import run_ranks

WORKER = Path(__file__).with_name("worker.py")
NAMES = ("lamb-clipped", "adafactor", "rows")


def test_optimizers_between_processes_give_one_device_numbers() -> None:
    """Three ranks, so that shards differ in size."""
    result = run_ranks(3, "-m", "mpi4py", WORKER, *NAMES, timeout=240)
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"{len(NAMES)} optimizers on 3 ranks" in result.stdout
