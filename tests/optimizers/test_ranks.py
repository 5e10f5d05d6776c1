"""The same under real mpirun: conditions, completed sums and whole updates, with digests of the graphs compared."""

from __future__ import annotations

from pathlib import Path

from helpers.mpirun import run_ranks

WORKER = Path(__file__).with_name("worker.py")
NAMES = ("lamb-clipped", "rows", "adafactor")


def test_optimizers_between_processes_give_one_device_numbers(everything: bool) -> None:
    """Three ranks, so that shards differ in size."""
    names = NAMES if everything else NAMES[:2]
    result = run_ranks(3, "-m", "mpi4py", WORKER, *names, timeout=240)
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"{len(names)} optimizers on 3 ranks" in result.stdout
