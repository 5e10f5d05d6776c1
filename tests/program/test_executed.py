"""What ranks execute is the step program: operators, their gradients, collectives, sums and updates, task by task."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from helpers.large import first
from helpers.mpirun import run_ranks

WORKER = Path(__file__).with_name("executed_worker.py")


@pytest.mark.parametrize(("start", "end", "of_stages"), first(1, [(0, 3, (3, 182, 253)), (3, 15, (72, 46, 67, 85))]))
def test_each_rank_executes_the_program_s_tasks(start: int, end: int, of_stages: tuple[int, ...]) -> None:
    """Draws in stages have updates of rows, gradients in two passes, and tables that both stages read or look up."""
    result = run_ranks(2, "-m", "mpi4py", WORKER, start, end, *of_stages, timeout=240)
    assert result.returncode == 0, result.stdout + result.stderr
    lines = re.findall(r"seed (\d+), rank (\d): (\d+) forward, (\d+) backward, .* (\d+) collectives", result.stdout)
    assert [(int(seed), int(rank)) for seed, rank, *_ in lines] == [(s, r) for s in range(start, end) for r in range(2)]
    assert all(int(number) > 0 for line in lines for number in line[2:])
    in_stages = re.findall(r"stages of draw \d+, rank \d: \d+ kinds held, (\d+) messages", result.stdout)
    assert len(in_stages) == 2 * len(of_stages) and all(map(int, in_stages))
