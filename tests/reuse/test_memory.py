"""A rank's peak, by TensorFlow's profiler, falls where copies are regathered."""

import re
from pathlib import Path

from helpers.mpirun import run_ranks


def test_regathered_parameters_are_not_alive_at_the_same_time() -> None:
    """One of five copies is alive at a time: the peak falls by the others, predicted and measured.

    The first layer's copy isn't read again, and the last one's is when it is there: to make that again saves nothing of the
    peak. Equation (1), by which is searched, doesn't tell it from the others.
    """
    done = run_ranks(2, Path(__file__).with_name("memory_rank.py"), timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.findall(r"(\d+) made again: (\d+) of (\d+)", done.stdout)
    (none, kept_foretold, kept), (some, foretold, taken) = (map(int, row) for row in found)
    assert none == 0 and some in (4, 5), done.stdout
    others = 4 * 4 * 768 * 768
    assert kept_foretold - foretold >= others and kept - taken >= others, done.stdout
