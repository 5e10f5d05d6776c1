"""A rank's peak, by TensorFlow's profiler, falls with the number of micro-batches as it is predicted."""

import re
from itertools import pairwise
from pathlib import Path

from helpers.mpirun import run_ranks

RESULTS, BATCH = 12 * 4 * 4096 * 256, 4 * 4096 * 256
"""Bytes. The profiler sees the batch that is fed, or doesn't."""


def test_results_of_one_micro_batch_are_alive_at_a_time(everything: bool) -> None:
    numbers = [1, 2, 4, 8] if everything else [1, 4]
    done = run_ranks(1, Path(__file__).with_name("memory_rank.py"), *numbers, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [tuple(map(int, row)) for row in re.findall(r"(\d+) micro-batches: (\d+) of (\d+) bytes", done.stdout)]
    assert [n for n, _, _ in rows] == numbers, done.stdout
    for (fewer, foretold, taken), (more, foretold_next, taken_next) in pairwise(rows):
        saved = RESULTS // fewer - RESULTS // more
        # A slice of the batch is cut for each slice, and accumulators are beside gradients: far less than what is saved.
        assert taken - taken_next > 0.8 * saved - BATCH and foretold - foretold_next > 0.8 * saved, done.stdout
        assert -0.1 * taken_next < foretold_next - taken_next < 0.1 * taken_next + BATCH, done.stdout
