"""Random programs in stages, with placement and with what crosses between their devices: one device's numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.large import first
from helpers.mpirun import run_ranks
from pipeline.random_programs import check_emulated, devices_of, random_program

WORKER = Path(__file__).with_name("random_programs_worker.py")
CASES = [(seed, devices_of(seed)) for seed in range(200)]


@pytest.mark.usefixtures("graphs_as_built")
@pytest.mark.parametrize(("seed", "n_devices"), first(3, CASES))
def test_emulated_programs_give_one_device_numbers(seed: int, n_devices: int) -> None:
    check_emulated(random_program(seed, n_devices))


@pytest.mark.parametrize(("n_ranks", "seeds"), first(1, [(3, "1,4"), *((n, "0-9") for n in (2, 3, 4))]))
def test_programs_between_processes_give_one_device_numbers(n_ranks: int, seeds: str) -> None:
    result = run_ranks(n_ranks, "-m", "mpi4py", WORKER, seeds, timeout=280)
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"programs {seeds} on {n_ranks} ranks" in result.stdout
