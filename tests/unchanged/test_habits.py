"""Unchanged Keras scripts on two ranks, under plans that split, compute what plain Keras computes."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.fast_links import on_fast_links
from helpers.large import first
from helpers.mpirun import forked, run_command, run_ranks
from unchanged.habits import HABITS

SCRIPT = Path(__file__).with_name("habits.py")
BY_DEFAULT = ["two_phases_with_callbacks", "models_that_take_turns", "loops_of_their_own", "gradients_that_add_up"]
BY_DEFAULT += ["layers_that_models_share"]
GROUPS = [BY_DEFAULT, [name for name in HABITS if name not in BY_DEFAULT]]


def results(stdout: str) -> list[Any]:
    return [json.loads(line) for line in stdout.splitlines() if line.startswith("[")]


def assert_equal(one: Any, other: Any) -> None:
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        one, other = list(one.values()), list(other.values())
    if isinstance(one, list):
        assert len(one) == len(other)
        for pair in zip(one, other, strict=True):
            assert_equal(*pair)
    else:
        assert other == (pytest.approx(one, rel=1e-9, abs=1e-12) if isinstance(one, float) else one)


@pytest.mark.parametrize("names", first(1, GROUPS), ids=["first", "others"])
def test_as_plain_keras(names: list[str], tmp_path: Path) -> None:
    (tmp_path / "alone").mkdir()
    (tmp_path / "ranks").mkdir()
    alone = run_command([sys.executable, *forked(SCRIPT, tmp_path / "alone", *names)], timeout=120)
    assert alone.returncode == 0, alone.stderr
    program = ["tensoropt.unchanged", on_fast_links(tmp_path), SCRIPT, tmp_path / "ranks", *names]
    ranks = run_ranks(2, "-m", *program, timeout=300, env={"TENSOROPT_QUIET": "0"})
    assert ranks.returncode == 0, ranks.stderr
    assert_equal(results(alone.stdout), results(ranks.stdout))
    assert len(re.findall("[1-9][0-9]* of [0-9]+ operators split", ranks.stderr)) >= 6, ranks.stderr
    assert not re.findall("none of [1-9][0-9]* operators split", ranks.stderr), ranks.stderr
