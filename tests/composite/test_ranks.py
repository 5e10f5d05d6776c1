"""Loops and custom gradients by real collectives."""

from __future__ import annotations

from pathlib import Path

from helpers.mpirun import run_ranks


def test_two_processes_give_one_device_numbers() -> None:
    done = run_ranks(2, "-m", "mpi4py", Path(__file__).with_name("worker.py"))
    assert done.returncode == 0, done.stdout + done.stderr
