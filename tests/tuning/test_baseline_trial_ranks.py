"""A plan and data parallelism that take interleaved steps on real ranks: the faster one is taken, whatever was predicted."""

import re
from pathlib import Path

import pytest
from helpers.mpirun import run_ranks

SCRIPT = Path(__file__).with_name("baseline_trial_rank.py")
pytestmark = pytest.mark.alone


def baseline_trial(tmp_path: Path, *arguments: object):
    """The ranks' output, which must be the same, and rank 0's explanation of the choice."""
    done = run_ranks(2, SCRIPT, *arguments, env={"TENSOROPT_CACHE": str(tmp_path), "TF_NUM_INTRAOP_THREADS": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    said, other = done.stdout.splitlines()
    assert said == other
    return said, done.stderr


def test_data_parallelism_is_taken_where_it_is_faster_and_earlier_runs_leave_nothing(tmp_path):
    """Data parallelism itself has no baseline. Whatever ran before, a model starts from its first values."""
    # Small parameters and a long batch: gathering what is split by columns takes many times what the gradients' sums do.
    said, explained = baseline_trial(tmp_path / "columns", 64, 65536, "MatMul:n", "MatMul_1:n", "MatMul_2:n")
    assert said.startswith("data parallelism, 2 built"), said
    assert re.search(r"interleaved steps: .* ms by the plan that was found, .* by data parallelism; chosen: data", explained)
    assert "the plan is none of its frontier's" in explained
    itself, explained = baseline_trial(tmp_path / "itself", 64, 65536, "MatMul:m", "MatMul_1:m", "MatMul_2:m")
    assert itself.startswith("None, 0 built"), itself
    assert "interleaved steps" not in explained
    assert said.partition(" loss ")[2] == itself.partition(" loss ")[2]


def test_the_plan_is_taken_where_that_is_faster(tmp_path):
    # Large parameters and a short batch: the gradients' sums take many times what the activations' gathering does.
    said, explained = baseline_trial(tmp_path, 2048, 16, "MatMul:n", "MatMul_1:n", "MatMul_2:n")
    assert said.startswith("plan, 2 built"), said
    assert "chosen: plan" in explained
