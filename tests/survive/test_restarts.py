"""``tensoropt run --checkpoint``: ranks that are killed or asked to stop go on, on other ranks, as if nothing had been."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np
import pytest
from helpers.mpirun import _calibrations, child_environment, run_by_forks, run_command
from survive import kept_script

from tensoropt.common.errors import InputError
from tensoropt.runtime.failures import notes
from tensoropt.runtime.launch.hosts import Host
from tensoropt.runtime.launch.mpirun import Leaving
from tensoropt.survive.attempts import Attempt, table, why_not_again
from tensoropt.survive.supervisor import Supervisor, Survival, code_with_hosts
from tensoropt.tools.cli import main as cli


def plain_result() -> tuple[dict, list[float], list[list]]:
    """What Keras itself makes of the script: history, weights, and the loss and the random number of each step."""
    steps: list[list] = []

    class Seeing(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            steps.append([logs["loss"], random.random()])

    model = kept_script.compiled_model()
    random.seed(2)
    history = model.fit(
        *kept_script.data(), batch_size=kept_script.BATCH, epochs=kept_script.EPOCHS, verbose=0, callbacks=[Seeing()]
    )
    return history.history, [float(np.sum(np.abs(value))) for value in model.get_weights()], steps


@pytest.mark.ranks
def test_a_run_goes_on_after_a_death_on_fewer_ranks_and_after_a_request_to_stop(tmp_path, float64):
    kill_at = int(np.random.default_rng(os.getppid()).integers(3, 6))
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "hardware").symlink_to(_calibrations())
    env = {"TENSOROPT_CACHE": str(tmp_path / "cache"), "TENSOROPT_QUIET": "0"}
    shutil.copy(kept_script.__file__, tmp_path / "train.py")
    arguments = ["--every", "2steps", "--restarts", "2", "--min-ranks", "1", "--json", "out.json", "train.py", str(kill_at)]
    log, kept, forking = tmp_path / "steps.jsonl", ["--checkpoint", "kept"], run_by_forks()

    def started(command: list[str], nap: str, until: Callable[[str], bool]) -> subprocess.Popen[str]:
        given = {"cwd": tmp_path, "stderr": subprocess.PIPE, "text": True, "errors": "replace"}
        run = subprocess.Popen(command, env=child_environment({**env, "NAP": nap}), **given)
        until_s = time.monotonic() + 100
        while not log.exists() or not until(log.read_text()):
            assert run.poll() is None and time.monotonic() < until_s, run.communicate()[1]
            time.sleep(0.05)
        return run

    run = started([*forking, "-n", "2", *kept, *arguments], "0.5", lambda text: '["1"' in text)
    run.send_signal(signal.SIGTERM)
    said = run.communicate(timeout=60)[1]
    assert run.returncode == 75, said
    assert "the ranks ended (SIGKILL of rank 1); restart 1 of 2 with -n 1 from its newest checkpoint" in said
    assert "was asked to stop, has saved" in said
    assert re.search("plan: 2 devices, [1-9][0-9]* of .* operators split", said), said
    attempts = json.loads((tmp_path / "out.json").read_text())["attempts"]
    assert [each["ranks"] for each in attempts] == [2, 1]
    assert attempts[0]["to"]["step"] >= attempts[1]["from"]["step"] >= 0
    running = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert str(tmp_path) not in running

    (tmp_path / "slots").write_text("1")
    n_before = len(log.read_text())
    run = started([*forking, "--slots", "slots", *kept, "train.py"], "1", lambda text: len(text) > n_before)
    (tmp_path / "slots").write_text("2")
    said = run.communicate(timeout=100)[1]
    assert run.returncode == 0, said
    assert said.count("goes on from") == 2 and "there are other slots now: the ranks have saved" in said
    assert [line.split()[1] for line in said.splitlines()[-2:]] == ["1", "2"], said
    history, weights, expected = plain_result()
    result = json.loads((tmp_path / "result.json").read_text())
    for name, values in history.items():
        np.testing.assert_allclose(result["history"][name], values, rtol=1e-9)
    np.testing.assert_allclose(result["weights"], weights, rtol=1e-9)
    assert result["n_updates"] == len(expected)

    last: dict[tuple, list] = {}
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    for _, epoch, batch, *numbers in lines:
        last[epoch, batch] = numbers
    n_batches = kept_script.N_SAMPLES // kept_script.BATCH
    assert sorted(last) == [(epoch, batch) for epoch in range(kept_script.EPOCHS) for batch in range(n_batches)]
    np.testing.assert_allclose([last[at] for at in sorted(last)], expected, rtol=1e-9)
    ends = run_command([*forking, "-n", "2", *kept, "train.py"], timeout=100, env=env, cwd=tmp_path)
    assert (ends.returncode, ends.stdout) == (0, "") and "had finished; --fresh starts it" in ends.stderr


def attempt(code: int, **noted: dict) -> Attempt:
    return Attempt(2, code, noted, 1.0)


def at(step: int, **more) -> dict:
    return {"at": [0, step], **more}


def test_ranks_may_note_at_once(tmp_path, monkeypatch):
    monkeypatch.setenv(notes.NOTES, str(tmp_path))
    replace = Path.replace

    def note(rank):
        monkeypatch.setattr(notes, "launched_as", lambda: (rank, 2))
        notes.note(notes.TERMINATED, rank=rank)

    def replace_after_another(self, target):
        monkeypatch.setattr(Path, "replace", replace)
        note(1)
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", replace_after_another)
    note(0)
    assert [content["rank"] for _, content in sorted(notes.read_notes(tmp_path)[notes.TERMINATED].items())] == [0, 1]


def test_what_ended_an_attempt_is_told():
    begun = {rank: at(3, begun=[0, 2]) for rank in range(2)}
    killed = attempt(137, begun=begun, terminated={0: at(9)}, saved={0: at(8, saved=[0, 8])})
    assert (killed.dead, killed.why, killed.from_step, killed.lost_steps) == ({1}, "SIGKILL of rank 1", (0, 2), 1)
    assert attempt(137).dead == frozenset()  # mpirun itself was killed
    left = attempt(75, left={0: at(4)}, failed={0: at(4, error="exit code 75")})
    assert (left.why, left.lost_steps) == ("a request to stop; saved", 0)
    assert table([killed, left]).splitlines()[1].split() == "0 2 0:2 0:9 1 1.0 SIGKILL of rank 1".split()


@pytest.mark.parametrize(("n_hosts", "noted", "code"), [("2", "begun", 137), ("2", "done", 0), ("1", "begun", 0)])
def test_an_mpirun_that_has_lost_a_host_of_an_allocation_is_not_done(monkeypatch, n_hosts, noted, code):
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", n_hosts)
    assert code_with_hosts(0, [], {noted: {0: at(3)}}) == code


@pytest.mark.parametrize(
    ("attempts", "why"),
    [([attempt(2, refused={0: at(0, error="InputError")})], "another start would be refused again"),
     ([attempt(1)] * 4, "all of --restarts 3 are used"),
     ([attempt(1, failed={0: at(5, error="Boom", saved=[0, 4])})] * 2, "it failed twice at step 5 in the same way"),
     ([attempt(137), attempt(1)], "two attempts one after the other have saved nothing"),
     ([attempt(137, saved={0: at(4, saved=[0, 4])}), attempt(137)], None),
     ([attempt(3)], None)],
)  # fmt: skip
def test_what_is_not_worth_a_restart_is_not_restarted(attempts, why):
    assert why_not_again(attempts, 3, True) == why


def survival(folder: Path, **changes) -> Survival:
    given = {"n_ranks": 1, "min_ranks": 1, "checkpoint": folder, "every": "1s", "keep": 2, "fresh": False, "restarts": 0}
    given |= {"watches": False, "wait_s": 1.0, "cooldown_s": 1.0, "grace_s": 1.0, "leaving_code": 75, "json": None}
    return Survival(**given | changes)


def test_two_runs_do_not_share_a_folder_and_a_fresh_one_puts_the_old_one_aside(tmp_path, capfd):
    with Supervisor(survival(tmp_path), list, list, False)._folder() as first:
        assert first is not None and first[notes.CHECKPOINT] == str(tmp_path)
        with pytest.raises(InputError, match=f"another run in it, of process {os.getpid()} on "):
            Supervisor(survival(tmp_path), list, list, False).run({})
        (tmp_path / "fit-0").mkdir()
    with Supervisor(survival(tmp_path, fresh=True), list, list, False)._folder() as second:
        assert second is not None and first is not None and second[notes.SEED] != first[notes.SEED]
    assert sorted(each.name for each in (tmp_path / "before-1").iterdir()) == ["fit-0", "run.json"]
    assert "is put aside" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [("--min-ranks 3 --checkpoint x", "--min-ranks 3 is more than -n 2, the ranks that there are"),
     ("--every 10 --checkpoint x", "the time between two saves is a time above 0 with one of the units"),
     ("--fresh", "are for runs that are saved; give --checkpoint DIR"),
     ("--requeue-code 256 --checkpoint x", "--requeue-code takes a whole number, 1 to 255, got '256'"),
     ("--restarts many", "--restarts takes a whole number, 0 or more, got 'many'"),
     ("--checkpoint /proc/none", "a run can't be kept in '/proc/none'"),
     ("--host alpha:x", "--host takes hosts with their slots: got 'alpha:x', expected alpha:4,beta:4"),
     ("--host alpha", "-n 2 is more than the 1 slots of the hosts"),
     ("--hostfile {folder}/train.py", "a line of hostfile '{folder}/train.py': got 'import sys', expected"),
     ("--slots {folder}/train.py", "--slots FILE says how many ranks there are, and -n too; leave -n out"),
     ("--min-ranks 1 --plan p.json", "--min-ranks asks for others; leave one of them out")],
)  # fmt: skip
def test_wrong_options_are_refused(tmp_path, capsys, arguments, sentence):
    (tmp_path / "train.py").write_text("import sys")
    given = arguments.format(folder=tmp_path).split()
    assert cli.main(["run", "-n", "2", *given, str(tmp_path / "train.py")]) == 2
    assert sentence.format(folder=tmp_path) in capsys.readouterr().err


def test_too_few_ranks_are_waited_for_until_one_has_cooled_down(tmp_path, capfd):
    for cooldown_s, wait_s, n_ranks in ((0.5, 5.0, 2), (60.0, 0.1, 0)):
        waiting = Supervisor(survival(tmp_path, n_ranks=2, min_ranks=2, wait_s=wait_s), list, list, False)
        waiting._out = [(time.monotonic() + cooldown_s, Host("", 1))]
        assert waiting._ranks_left(Leaving(1.0)) == (n_ranks, [])
    said = capfd.readouterr().err
    assert said.count("1 of 2 ranks are left, 2 are needed; it waits for more") == 2
    assert "still 1 ranks are left after 0 s, and 2 are needed" in said


def test_a_number_of_ranks_without_a_plan_is_left_out(tmp_path):
    left = Supervisor(survival(tmp_path, n_ranks=4, min_ranks=2), list, list, False)
    left._refused = {3}
    assert [left._left()[0] for left._out in ([], [(time.monotonic() + 60, Host("", 1))])] == [4, 2]
    left._refused = {3, 2}
    assert left._left()[0] == 1
