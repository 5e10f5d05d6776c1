"""Searching by measured operators under mpirun."""

from pathlib import Path

import pytest
from helpers.large import first
from helpers.mpirun import run_ranks

from tensoropt.profiling.store import FILE


@pytest.mark.parametrize(("stages",), first(1, [(("1,2",),), ((),), (("2",),)]))
def test_ranks_measure_together_and_get_one_plan(stages, tmp_path):
    script = Path(__file__).with_name("profile_guided_rank.py")
    env = {"TENSOROPT_CACHE": str(tmp_path)}
    done = run_ranks(2, script, *stages, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    said = sorted(done.stdout.splitlines())
    assert [line[:7] for line in said] == ["rank 0:", "rank 1:"]
    assert said[0][7:] == said[1][7:]
    assert (tmp_path / FILE).exists()
