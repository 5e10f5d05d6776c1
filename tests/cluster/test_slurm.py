"""Runs under a real Slurm: on one node and on two, cut short by it in every way, and beside each other."""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from cluster.slurm import asked, two_nodes
from helpers.mpirun import ROOT, child_environment
from survive import kept_script
from survive.test_restarts import plain_result

RUN = f"{sys.executable} -m tensoropt run --cluster v100-1x2"
KEPT = f"{RUN} --checkpoint kept --every 2steps train.py"
ONE, TWO = ("--nodes=1", "--ntasks=2"), ("--nodes=2", "--ntasks=2")
ALONE = f"mkdir $SLURM_ARRAY_TASK_ID; cd $SLURM_ARRAY_TASK_ID; exec {sys.executable} -m tensoropt run ../train.py"
AGAIN = f"""{KEPT} & run=$!
trap 'kill -USR1 $run' USR1
wait $run; code=$?
[ $code -gt 128 ] && {{ wait $run; code=$?; }}
[ $code = 75 ] && scontrol requeue $SLURM_JOB_ID
exit $code"""


class Job(NamedTuple):
    number: str
    folder: Path

    @property
    def said(self) -> str:
        return "".join(file.read_text() for file in sorted(self.folder.glob("said*")))

    def fields(self) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for name, value in re.findall(r"(\w+)=(\S*)", asked("scontrol", "show", "job", self.number)):
            found.setdefault(name, set()).add(value)
        return found

    def wait_for(self, state: str) -> dict[str, set[str]]:
        until_s = time.monotonic() + 200
        while (fields := self.fields())["JobState"] != {state}:
            assert time.monotonic() < until_s and fields["JobState"].isdisjoint({"FAILED"}), (fields, self.said)
            time.sleep(0.5)
        return fields

    def trains(self) -> None:
        until_s = time.monotonic() + 100
        while not list(self.folder.glob("steps.jsonl")):
            assert time.monotonic() < until_s and self.fields()["JobState"] <= {"PENDING", "RUNNING"}, self.said
            time.sleep(0.2)


def has_result(folder: Path, expected: tuple) -> bool:
    got = json.loads((folder / "result.json").read_text())
    losses = np.allclose(got["history"]["loss"], expected[0]["loss"], rtol=1e-9)
    return losses and np.allclose(got["weights"], expected[1], rtol=1e-9)


@pytest.fixture(scope="module")
def submit(tmp_path_factory):
    """Submit a command as a job; the parameters of ``sbatch`` follow it."""

    def submitted(command: str, *options: str, nap: int = 0) -> Job:
        folder = tmp_path_factory.mktemp("job")
        script = Path(kept_script.__file__).read_text()
        (folder / "train.py").write_text(f"{script}\nPath('on-' + os.uname().nodename).touch()\n")
        (folder / "job.sh").write_text(f"#!/bin/bash\nexport NAP=$((SLURM_RESTART_COUNT ? 0 : {nap}))\n{command}\n")
        number = asked("sbatch", "--parsable", f"--chdir={folder}", "--output=said-%j", *options, str(folder / "job.sh"))
        return Job(number, folder)

    with pytest.MonkeyPatch.context() as patched, two_nodes(tmp_path_factory.mktemp("cluster")):
        for name, value in {**child_environment({"TENSOROPT_QUIET": "0"}), "PYTHONPATH": str(ROOT)}.items():
            patched.setenv(name, value)
        yield submitted


@pytest.fixture(scope="module")
def late(submit):
    """Jobs that come to their time limit, and to some time before it, while others run; one has compiled the search."""
    asks = submit(AGAIN, *TWO, "--requeue", "--time=3", "--signal=B:USR1@90", nap=12)
    return submit(f"exec {KEPT.replace('1x2', '1x1')}", "--ntasks=1", "--time=1", nap=8), asks


@pytest.fixture(scope="module")
def expected(float64):
    return plain_result()


def test_an_allocation_s_tasks_are_the_ranks_also_on_two_nodes(submit, expected):
    job = submit(f"exec {RUN} train.py", *TWO)
    job.wait_for("COMPLETED")
    assert "plan: 2 devices" in job.said
    assert sorted(file.name for file in job.folder.glob("on-*")) == ["on-n1", "on-n2"]
    assert has_result(job.folder, expected)


def test_an_array_s_jobs_run_beside_each_other_on_one_node(late, submit, expected):
    job = submit(ALONE, "--ntasks=1", "--nodelist=n1", "--array=0-1")
    job.wait_for("COMPLETED")
    assert all(has_result(job.folder / number, expected) for number in "01")


def test_srun_starts_ranks_by_pmix_and_is_refused_without(submit, expected):
    own = "import tensoropt; model = tensoropt.parallelize(compiled_model(), batch_size=BATCH, cluster='v100-1x2')"
    job = submit(f'sed -i "s/model = compiled_model()/{own}/" train.py\nsrun --mpi=pmix {sys.executable} train.py', *TWO)
    job.wait_for("COMPLETED")
    assert sorted(file.name for file in job.folder.glob("on-*")) == ["on-n1", "on-n2"]
    assert has_result(job.folder, expected)
    job = submit(f"srun --mpi=none {sys.executable} -c 'import tensoropt; tensoropt.init()'", *ONE)
    job.wait_for("FAILED")
    assert "the launcher started more processes than see each other through MPI" in job.said


@pytest.mark.parametrize(
    ("nodes", "how", "state"),
    # Without --batch, srun would end the other node's rank.
    [(ONE, ["scancel"], "CANCELLED"), (TWO, ["scancel", "--batch", "--signal=TERM"], "FAILED")],
)
def test_a_job_that_is_cancelled_or_told_to_stop_is_saved(submit, nodes, how, state):
    job = submit(f"exec {KEPT}", *nodes, nap=3)
    job.trains()
    asked(*how, job.number)
    assert job.wait_for(state)["ExitCode"] == {"75:0"}
    assert "was asked to stop, has saved" in job.said


def test_a_job_at_its_time_limit_is_saved(late):
    assert late[0].wait_for("TIMEOUT")["ExitCode"] == {"75:0"}
    assert "was asked to stop, has saved" in late[0].said


def test_a_job_that_asks_for_it_goes_on_with_the_right_numbers(late, expected):
    late[1].trains()
    late[1].wait_for("PENDING")
    time.sleep(2)  # nodes revoke a job's credentials by the second: one that starts in the second it ended in is refused
    asked("scontrol", "update", f"job={late[1].number}", "StartTime=now")  # and not two minutes later
    assert late[1].wait_for("COMPLETED")["Restarts"] == {"1"}
    assert "goes on from" in late[1].said and has_result(late[1].folder, expected)
