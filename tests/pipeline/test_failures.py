"""However a rank of a stage ends or stands still, all ranks end, with a sentence that says who is missing where."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from helpers.large import first
from helpers.mpirun import run_ranks

pytestmark = pytest.mark.deadlines  # which rank is missed first depends on what computes beside

TRAIN, KERAS = (Path(__file__).parent / f"{name}.py" for name in ("train", "keras_worker"))
LIMIT_S = 30.0
WAITED = r"tensoropt: rank \d has waited for \d+ s "
LATE = r"rank 1 hasn't come to it and has been in the user's code at train.py:\d+ for \d+ s"


@pytest.mark.parametrize(
    ("fault", "n_ranks", "by", "code", "said"),
    first(5, [
        ("kill", 2, "mpi", 137, r"signal 9 \(Killed\)"),
        ("end", 2, "mpi", 1, r"rank 0 waits in a collective for rank 1, which has ended: rank 0 is in run at train.py:\d+"),
        ("sleep", 2, "mpi", 1, f"{WAITED}in the reception of .*, in run at train.py:\\d+: {LATE}"),
        ("stop", 2, "mpi", 1, f"{WAITED}.*: rank 1 hasn't answered for \\d+ s; it was last known in run at train.py:\\d+"),
        ("sleep", 4, "mpi", 1, f"{WAITED}.*, in run at train.py:\\d+: {LATE}"),
        ("sleep", 4, "tensorflow", 1, f"{WAITED}.*, in run at train.py:\\d+: {LATE}"),
        ("stop", 4, "tensorflow", 1, f"{WAITED}.*: rank 1 hasn't answered for \\d+ s; it was last known in run at train.py"),
        ("kill", 4, "tensorflow", 137, r"signal 9 \(Killed\)"),
    ]),
)  # fmt: skip
def test_a_rank_that_ends_or_stands_still_ends_all(fault: str, n_ranks: int, by: str, code: int, said: str) -> None:
    # The rank that sleeps would do so for longer.
    given = {"FAULT": fault, "TENSOROPT_TIMEOUT": "4", "TENSOROPT_COLLECTIVES": by}
    result = run_ranks(n_ranks, TRAIN, "2", "4", "1f1b", by, n_ranks, env=given)
    ended = time.time()
    assert result.returncode == code, result.stderr
    assert "losses" not in result.stdout
    # From the fault on: a first search compiles kernels for half a minute.
    assert ended - float(re.findall(r"fault at ([\d.]+)", result.stdout)[0]) < LIMIT_S
    assert len(re.findall(said, result.stderr.replace("\0", ""))) == 1, result.stderr


@pytest.mark.parametrize(
    ("fault", "code", "said"),
    [("kill", 137, r"signal 9 \(Killed\)"), ("sleep", 1, f"{WAITED}.*: {LATE.replace('train.py', 'keras_worker.py')}")],
)
def test_a_rank_of_a_keras_model_that_ends_or_stands_still_ends_all(
    fault: str, code: int, said: str, tmp_path: Path
) -> None:
    result = run_ranks(2, KERAS, str(tmp_path), "1", env={"FAULT": fault, "TENSOROPT_TIMEOUT": "4"})
    ended = time.time()
    assert result.returncode == code, result.stderr
    assert len(re.findall(said, result.stderr.replace("\0", ""))) == 1, result.stderr
    assert ended - float(re.findall(r"fault at ([\d.]+)", result.stdout)[0]) < LIMIT_S
