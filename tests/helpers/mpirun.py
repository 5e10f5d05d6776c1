"""Starting a script on several ranks from a test, so that nothing outlives the test and a hang is a failure."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tensoropt.runtime.mpirun import find_mpirun, mpirun_command, rank_environment

ROOT = Path(__file__).resolve().parent.parent.parent


def child_environment(env: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a process that a test starts: it finds this checkout, and may be root."""
    paths = [str(ROOT), str(ROOT / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])]
    base = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **(env or {})}
    return rank_environment(base, as_root=os.geteuid() == 0)


def run_ranks(
    n_ranks: int,
    script: str | Path,
    *args: object,
    timeout: float = 120.0,
    env: Mapping[str, str] | None = None,
    bare: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run ``script`` (a file, or ``-m`` with the module as the first of ``args``) on ``n_ranks`` ranks.

    ``bare`` starts plain ``mpirun -n N python ...`` as a user would, else as ``tensoropt run`` does. AssertionError
    with what was printed if it takes longer than ``timeout`` seconds.
    """
    program = [str(script), *map(str, args)]
    if bare:
        command = [str(find_mpirun()), "-n", str(n_ranks), sys.executable, *program]
    else:
        command = mpirun_command(n_ranks, program)
    return run_command(command, timeout=timeout, env=env)


def run_command(
    command: Sequence[str], *, timeout: float, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command in a session of its own; all of the session is killed if it takes too long."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=child_environment(env),
        cwd=cwd,
        start_new_session=True,
    )
    try:
        stdout, stderr = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        _kill_session(process.pid)
        stdout, stderr = process.communicate()
        raise AssertionError(f"{command} hung: killed after {timeout} s\n{stdout}\n{stderr}") from None
    except BaseException:
        _kill_session(process.pid)
        raise
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)


def _kill_session(session: int) -> None:
    """mpirun gives each rank a process group of its own, but the session stays the same."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if os.getsid(int(entry.name)) == session:
                    os.kill(int(entry.name), signal.SIGKILL)
