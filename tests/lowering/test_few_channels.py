"""Convolutions of all kinds over few channels, with and without strides, have one device's numbers, and don't crash."""

from __future__ import annotations

import sys
from pathlib import Path

from helpers.mpirun import forked, run_command


def test_convolutions_over_few_channels_give_the_right_numbers() -> None:
    done = run_command([sys.executable, *forked(Path(__file__).parent / "few_channels.py")], timeout=200)
    assert not done.returncode and done.stdout.endswith("all equal\n"), f"{done.stdout[-200:]}\n{done.stderr[-2000:]}"
