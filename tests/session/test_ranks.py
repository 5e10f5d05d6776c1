"""The public API under mpirun: plans from a file, ranks without work, refusals on all ranks."""

from __future__ import annotations

import re
import signal
from pathlib import Path

from helpers.mpirun import forked, run_ranks

WORKER = Path(__file__).with_name("worker.py")
RECORDED = WORKER.parent.parent / "runtime" / "recorded.py"
LIMIT_S = 90.0


def ranks(folder: Path, n_ranks: int, *what: str):
    """The run, what each rank said, and each rank's exit code; that of a rank which mpirun killed is -9."""
    worker = forked(WORKER, *what, folder)
    result = run_ranks(n_ranks, RECORDED, folder, *worker, timeout=LIMIT_S, fresh=True)
    said = [re.findall(rf"^rank {rank}: (.*)$", result.stdout, re.MULTILINE) for rank in range(n_ranks)]
    records = [(folder / str(rank)).read_text() for rank in range(n_ranks)]
    codes = [-signal.SIGKILL if record.startswith("pid") else int(record) for record in records]
    return result, said, codes


def test_a_plan_from_a_file_gives_the_same_losses(tmp_path):
    result, said, codes = ranks(tmp_path, 2, "saved_plan")
    assert codes == [0, 0], result.stderr
    # Every rank knows the frontier; of the model's 460 bytes each has a half, of five numbers two or three.
    assert said[0][0] == said[1][0] and re.fullmatch(r"frontier \d+ 1", said[0][0])
    assert [lines[1] for lines in said] == [f"same losses True parameters {n_bytes}" for n_bytes in (228, 232)]


def test_all_ranks_refuse_alike(tmp_path):
    result, said, codes = ranks(tmp_path, 2, "agreements")
    assert said[0] == said[1]
    answers = dict(line.split(": ", 1) for line in said[0])
    assert answers["models"].startswith("ranks 0 and 1 recorded different models")
    assert re.match(r"no plan fits 10 bytes .* the least on 2 .* is \d+ bytes .* memory=\d+ or more", answers["memory"])
    assert answers["curve"] == "2"
    assert "runs all ranks in one process, but mpirun started 2; start it alone" in answers["emulated"]
    assert "the plan is for 4 devices, but 2 ranks were started; start it with mpirun -n 4" in answers["ranks"]
    assert "none.json' can't be read" in answers["file"]
    assert answers["fetches"].startswith("ranks 0 and 1 built different graphs for this run; every rank must call")
    assert answers["trains"] == "4" and result.returncode == 2 and 0 not in codes and 2 in codes
    assert result.stderr.count("isn't fed, but GradientDescent needs it; feed it") == 1
    assert "Traceback" not in result.stderr


def test_a_rank_that_is_left_over_says_so_and_waits_asleep(tmp_path):
    result, said, codes = ranks(tmp_path, 3, "leftover")
    assert codes == [0, 0, 0], result.stderr
    assert result.stderr.count("rank 2 has nothing to do: the plan needs 2 of 3 devices; it waits for the others") == 1
    assert [lines[-1] for lines in said[:2]] == ["trained on 2"] * 2
    waited, cpu = map(float, re.search(r"waited ([\d.]+) cpu ([\d.]+)", said[2][-1]).groups())
    assert waited >= 4 and cpu < 0.2 * waited
