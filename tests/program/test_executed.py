"""What ranks execute is the step program: operators, their gradients, collectives, sums and updates, task by task."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from helpers.large import first
from helpers.mpirun import run_ranks

WORKER = Path(__file__).with_name("executed_worker.py")


CASES = [(2, 0, 3, (3, 182, 253)), (4, 0, 0, (13, 981)), (2, 3, 15, (72, 46, 67, 85)), (4, 0, 0, (625, 1453))]


@pytest.mark.parametrize(("n", "start", "end", "of_stages"), first(2, CASES))
def test_each_rank_executes_the_program_s_tasks(n: int, start: int, end: int, of_stages: tuple[int, ...]) -> None:
    """Draws in stages have updates of rows, gradients in two passes, and tables that both stages read or look up."""
    result = run_ranks(n, "-m", "mpi4py", WORKER, start, end, *of_stages, timeout=240)
    assert result.returncode == 0, result.stdout + result.stderr
    lines = re.findall(r"seed (\d+), rank (\d): (\d+) forward, (\d+) backward, .* (\d+) collectives", result.stdout)
    assert [(int(seed), int(rank)) for seed, rank, *_ in lines] == [(s, r) for s in range(start, end) for r in range(n)]
    assert all(int(number) > 0 for line in lines for number in line[2:])
    in_stages = re.findall(r"draw \d+, rank \d: \d+ kinds held, (\d+) messages, (\d+) coll.*, (\d+) sums", result.stdout)
    messages, collectives, sums = (list(map(int, numbers)) for numbers in zip(*in_stages, strict=True))
    assert len(messages) == n * len(of_stages) and all(messages) and any(sums) and any(collectives) == (n > 2)
