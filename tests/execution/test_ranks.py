"""Strategies on real ranks whose blocks differ in their extents: halos, and blocks of one beside blocks of two."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.large import first
from helpers.mpirun import run_ranks

WORKER = Path(__file__).with_name("worker.py")

@pytest.mark.parametrize("n_ranks", first(1, [4, 2]))
def test_halos_are_exchanged_between_processes(n_ranks: int, everything: bool) -> None:
    """Configs that split height or width wherever there are any."""
    count = 4 if everything else 2
    result = run_ranks(n_ranks, "-m", "mpi4py", WORKER, "windows", count, timeout=120)
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"{count} strategies, " in result.stdout


def test_random_numbers_between_processes_are_one_devices_to_the_bit() -> None:
    result = run_ranks(3, "-m", "mpi4py", WORKER, "random", 4, timeout=120)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "4 strategies, " in result.stdout


def test_blocks_of_one_beside_blocks_of_two_broadcast_alike(everything: bool) -> None:
    """Dimensions of 3 over 2 ranks: from static shapes TensorFlow would emit other gradients on each rank, and hang."""
    count = 8 if everything else 2
    result = run_ranks(2, "-m", "mpi4py", WORKER, "broadcasting", count, timeout=120)
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"{count} strategies, " in result.stdout
