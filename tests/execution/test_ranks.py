"""The same under real mpirun: random strategies on 2, 3 and 4 ranks, one mpirun for each number of ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.large import first
from helpers.mpirun import run_ranks

WORKER = Path(__file__).with_name("worker.py")
# The first three strategies are of three models. By default copies are regathered over a link, and rematerialized without.
REGATHERED = [(2, "link", 3), (2, "mpi", 3), (4, "mpi", 3), (2, "link", 6), (2, "mpi", 6), (4, "mpi", 6)]
REMATERIALIZED = [
    (2, "mpi", 2), (4, "mpi", 2), (4, "mpi", 3), (2, "mpi", 3), (2, "link", 3), (4, "mpi", 6), (2, "mpi", 6), (2, "link", 6)
]  # fmt: skip


@pytest.mark.parametrize(("n_ranks", "count"), first(1, [(4, 2), (3, 3), (4, 3), (3, 6), (2, 6), (2, 12), (3, 12), (4, 12)]))
def test_random_strategies_between_processes_give_one_device_numbers(n_ranks: int, count: int) -> None:
    """Losses, metrics and variables; replicas of variables to the bit; graphs of one structure; collectives charged."""
    result = run_ranks(n_ranks, "-m", "mpi4py", WORKER, "models", count, timeout=240)
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"{count} strategies, " in result.stdout and f" on {n_ranks} ranks" in result.stdout


@pytest.mark.parametrize(("n_ranks", "count"), first(1, [(2, 2), (2, 3), (4, 3), (2, 6), (3, 6), (4, 6)]))
def test_two_chains_give_one_device_numbers(n_ranks: int, count: int) -> None:
    """Ranks nap as over a link: gradients' sums have their own chain, and the backward pass goes on meanwhile."""
    result = run_ranks(n_ranks, "-m", "mpi4py", WORKER, "models", count, "link", timeout=240)
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"{count} strategies, " in result.stdout and f" on {n_ranks} ranks" in result.stdout


@pytest.mark.parametrize(("n_ranks", "collectives", "count"), first(1, REGATHERED))
def test_copies_are_regathered_between_processes(n_ranks: int, collectives: str, count: int) -> None:
    """Copies are regathered with an order of the backward pass and without; over a link they are in its chain."""
    result = run_ranks(n_ranks, "-m", "mpi4py", WORKER, "remade", count, collectives, timeout=240)
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"{count} strategies, " in result.stdout and not result.stdout.rstrip().endswith(", 0 made again")


@pytest.mark.parametrize(("n_ranks", "collectives", "count"), first(1, REMATERIALIZED))
def test_operators_are_rematerialized_between_processes(n_ranks: int, collectives: str, count: int) -> None:
    """Rematerialization runs together with regathered copies, with and without an order of the backward pass."""
    result = run_ranks(n_ranks, "-m", "mpi4py", WORKER, "recomputed", count, collectives, timeout=240)
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"{count} strategies, " in result.stdout and ", 0 computed again" not in result.stdout


@pytest.mark.parametrize("n_ranks", first(1, [4, 2]))
def test_halos_are_exchanged_between_processes(n_ranks: int, everything: bool) -> None:
    """Configs that split height or width wherever there are any."""
    count = 4 if everything else 2
    result = run_ranks(n_ranks, "-m", "mpi4py", WORKER, "windows", count, timeout=120)
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"{count} strategies, " in result.stdout


def test_complex_numbers_between_processes(everything: bool) -> None:
    """Some copies are regathered, and some operators rematerialized."""
    n_ranks, count = (3, 4) if everything else (2, 2)
    result = run_ranks(n_ranks, "-m", "mpi4py", WORKER, "complex", count, timeout=120)
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"{count} strategies, " in result.stdout and f" on {n_ranks} ranks" in result.stdout


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
