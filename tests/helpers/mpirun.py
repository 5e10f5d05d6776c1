"""Starting a script on several ranks from a test, so that nothing outlives the test and a hang is a failure."""

from __future__ import annotations

import atexit
import fcntl
import os
import shlex
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from tensoropt.runtime.launch.mpirun import find_mpirun, mpirun_command, mpirun_options, rank_environment

from .calibration import write_calibrations
from .fork_server import kill_session
from .kept import ALIVE, FOLDER, open_folder

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
N_SERVERS = 2
"""Fork servers: two, so that ranks differ in their hash seeds, as ranks that start alone do."""

READ_AT_START = ("PYTHONHASHSEED", "TF_CPP", "TF_ENABLE", "KERAS", "OMP_", "OPENBLAS", "LD_", "MALLOC_")
"""Beginnings of the names of environment variables that a process reads while it starts or imports."""


def child_environment(env: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a process that a test starts: it finds this checkout, and may be root."""
    paths = [str(ROOT), str(ROOT / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])]
    base = {
        # Looking for fabrics costs each start of MPI a second of waiting.
        "OMPI_MCA_btl": "^ofi",
        # What an mpirun that was killed leaves behind stops the next one with its process's number.
        "PRTE_MCA_prte_tmpdir_base": tempfile.mkdtemp(dir=_folder()),
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        **(env or {}),
    }
    return rank_environment(base, as_root=os.geteuid() == 0)


def run_ranks(
    n_ranks: int,
    script: str | Path,
    *args: object,
    timeout: float = 120.0,
    env: Mapping[str, str] | None = None,
    bare: bool = False,
    fresh: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run ``script`` (a file, or ``-m`` with the module as the first of ``args``) on ``n_ranks`` ranks.

    ``bare`` starts plain ``mpirun -n N python ...`` as a user would, else as ``tensoropt run`` does. AssertionError
    with what was printed if it takes longer than ``timeout`` seconds.

    The ranks are processes of this run alone, with MPI and TensorFlow's runtime of their own, but forks of servers that
    have imported TensorFlow (:mod:`.fork_server`). If ``bare`` or ``fresh``, or if ``env`` has variables that are read
    while Python or TensorFlow starts, each starts by itself. They find this machine calibrated (:mod:`.calibration`) in a
    cache that is theirs alone, unless ``env`` has another ``TENSOROPT_CACHE``.
    """
    if "TENSOROPT_CACHE" not in (env or {}):
        with tempfile.TemporaryDirectory(prefix="tensoropt-cache-") as cache:
            Path(cache, "hardware").symlink_to(_calibrations())
            env = {**(env or {}), "TENSOROPT_CACHE": cache}
            return run_ranks(n_ranks, script, *args, timeout=timeout, env=env, bare=bare, fresh=fresh)
    program = [str(script), *map(str, args)]
    fresh = fresh or bare or any(name.startswith(READ_AT_START) for name in env)
    if not fresh:
        program = forked(*program)
    if bare:
        command = [str(find_mpirun()), "-n", str(n_ranks), sys.executable, *program]
    elif "PYTEST_XDIST_WORKER" in os.environ:
        # Tests beside this one use the cores, too: ranks that wait must leave them, and none is bound to one.
        command = [str(find_mpirun()), "-n", str(n_ranks), *mpirun_options(n_ranks, 0), sys.executable, *program]
    else:
        command = mpirun_command(n_ranks, program)
    return run_command(command, timeout=timeout, env=env)


def forked(*program: object) -> list[str]:
    """Return arguments of Python that run a program (a file, ``-m`` or ``-c``, with its arguments) in a fork of a server."""
    return ["-S", "-E", str(HERE / "fork_client.py"), fork_servers(), *map(str, program)]


def run_by_forks() -> list[str]:
    """Return the beginning of a command line that is ``tensoropt run``, whose ranks are forks of a server."""
    folder = Path(tempfile.mkdtemp(dir=_folder()))
    for name, command in {"python": [sys.executable, *forked()], "mpirun": [str(find_mpirun())]}.items():
        (folder / name).write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
        (folder / name).chmod(0o755)
    program = f"import sys; sys.executable = '{folder}/python'; from tensoropt.tools.cli.main import main; sys.exit(main())"
    return [sys.executable, "-c", program, "run"]


def run_command(
    command: Sequence[str], *, timeout: float, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command in a session of its own; all of the session is killed if it takes too long."""
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
        env=child_environment(env), cwd=cwd, start_new_session=True,
    )  # fmt: skip
    try:
        stdout, stderr = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        kill_session(process.pid)
        stdout, stderr = process.communicate(timeout=30)  # what left the session may still hold the pipes
        raise AssertionError(f"{command} hung: killed after {timeout} s\n{stdout}\n{stderr}") from None
    except BaseException:
        kill_session(process.pid)
        raise
    # mpirun ends its own messages with a NUL, which would stand before what a rank says next.
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr.replace("\0", ""))


@cache
def _folder() -> Path:
    """Return the folder of this run of the tests; outside of pytest, one that goes with this process."""
    if FOLDER not in os.environ:
        atexit.register(open_folder())
    return Path(os.environ[FOLDER])


@cache
def _calibrations() -> Path:
    folder = Path(tempfile.mkdtemp(dir=_folder()))
    write_calibrations(folder)
    return folder


@cache
def fork_servers() -> str:
    """Return the sockets, as the client takes them, of the servers that ranks are forked from.

    All processes of a run share the servers, which the first of them starts.
    """
    folder = _folder()
    sockets = [folder / f"server{number}" for number in range(N_SERVERS)]
    with open(folder / "starting", "w") as starting:
        fcntl.flock(starting, fcntl.LOCK_EX)
        for path in sockets:
            if not path.exists():
                _start_server(path)
    return ":".join(map(str, sockets))


def _start_server(path: Path) -> None:
    """Start a server that listens at a path until the run ends."""
    start = f"import sys; sys.path.insert(0, {str(HERE)!r}); import fork_server; del sys.path[0]; fork_server.main()"
    # With threads of OpenBLAS the server couldn't fork.
    environment = child_environment({"OPENBLAS_NUM_THREADS": "1"})
    del environment["PYTHONPATH"]
    with socket.socket(socket.AF_UNIX) as listening, open(_folder() / ALIVE) as alive:
        listening.bind(str(path))
        listening.listen()
        server = subprocess.Popen(
            [sys.executable, "-c", start, str(listening.fileno())], stdin=alive, env=environment,
            pass_fds=[listening.fileno()], start_new_session=True,
        )  # fmt: skip
    SERVERS.append(server)


SERVERS: list[subprocess.Popen[bytes]] = []
"""What this process has started, and doesn't wait for: it may end before the run."""
