"""A process that has imported TensorFlow and TensorOpt and forks into whatever scripts it is sent.

Each has the sender's own files. Starting Python with TensorFlow takes seconds; a fork takes hundredths of a second, and is a
process like any other: it starts MPI and TensorFlow's runtime itself, may change or kill itself, and leaves nothing to the
next. No thread may run here, for threads don't live on in a fork. ``tensoropt/__init__.py``, which reads the environment,
runs in each fork again.

A request comes as the sender's standard files, then JSON; the answer is the fork's process id and, once it has ended, its
status. If the sender goes away, so do the fork and all that it has started.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import importlib.util
import json
import os
import random
import runpy
import select
import signal
import socket
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
IMPORTED = ("tensorflow", "keras", "h5py", "scipy.optimize", "numba", "networkx", "tqdm", "tabulate", "mpi4py")
PACKAGE = "tensoropt"
OWN = ("tensoropt.session.session", "tensoropt.trainer.parallelize")
SOONER = {"error_handling": {"AGREEMENT_S": 3.0, "WATCH_INTERVAL_S": 0.5}, "watching": {"MISMATCH_S": 5.0}}
"""How long a rank waits for others to fail alike, or for what they don't call, how often it looks: less than a user's."""
STATUS = struct.Struct("<i")


def kill_session(session: int) -> None:
    """Kill all processes of a session; mpirun gives each rank a process group of its own, but the session stays the same."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if os.getsid(int(entry.name)) == session:
                    os.kill(int(entry.name), signal.SIGKILL)


KEPT: set[str] = set()
"""Names of the modules that the server has imported, but for Python's own."""


def _keep_modules() -> None:
    """Leave what the server has imported to the end of the process: a fork takes it apart for a fifth of a second, else."""
    for name in KEPT & sys.modules.keys():
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(sys.modules.pop(name)))


class _Again(SourceFileLoader):
    """Imports the package that the server has imported: its modules are there, its ``__init__.py`` runs again."""

    def __init__(self) -> None:
        names = [name for name in sys.modules if name.split(".")[0] == PACKAGE]
        self.modules = {name: sys.modules.pop(name) for name in names}
        super().__init__(PACKAGE, str(self.modules[PACKAGE].__file__))

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        return importlib.util.spec_from_file_location(name, self.path, loader=self) if name == PACKAGE else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self.modules[PACKAGE]

    def exec_module(self, module: ModuleType) -> None:
        sys.meta_path.remove(self)
        sys.modules.update(self.modules)
        super().exec_module(module)


@dataclass
class Fork:
    """A fork that runs, and the connection to who has asked for it."""

    pid: int
    connection: socket.socket
    ended: int = field(init=False)

    def __post_init__(self) -> None:
        self.ended = os.pidfd_open(self.pid)

    def answer_status(self) -> None:
        """Tell the sender how the fork has ended."""
        _, status = os.waitpid(self.pid, 0)
        with contextlib.suppress(OSError):
            self.connection.sendall(STATUS.pack(status))

    def close(self) -> None:
        os.close(self.ended)
        self.connection.close()


def main() -> None:
    """Serve the socket that the first argument names until standard input, a pipe from the run of the tests, ends."""
    sys.argv.pop(0)
    listening = socket.socket(fileno=int(sys.argv.pop(0)))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts what runs in its background without
    atexit.register(_keep_modules)  # before all others, so that it is called after them
    for name in IMPORTED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    sys.path.insert(0, str(ROOT))
    for name in OWN:
        importlib.import_module(name)
    target = importlib.import_module("numba.core.registry").cpu_target
    for context in (target.typing_context, target.target_context):
        context.refresh()  # what Numba does for its first function takes a third of a second
    for name, values in SOONER.items():
        vars(sys.modules[f"tensoropt.runtime.failures.{name}"]).update(values)
    sys.path.remove(str(ROOT))
    KEPT.update(name for name in sys.modules if name.split(".")[0] not in {*sys.stdlib_module_names, "__main__"})
    assert len(os.listdir("/proc/self/task")) == 1, "a thread of the server would be missing in its forks"
    gc.collect()
    gc.freeze()
    request = _serve(listening)
    if request is not None:
        _run(request)


def _serve(listening: socket.socket) -> dict[str, Any] | None:
    """Return None when standard input has ended; in a fork, the request that it serves."""
    forks: list[Fork] = []
    while True:
        watched = [0, listening, *(fork.ended for fork in forks), *(fork.connection for fork in forks)]
        ready = select.select(watched, [], [])[0]
        for fork in list(forks):
            is_gone = fork.connection in ready
            if is_gone:
                kill_session(fork.pid)
            if is_gone or fork.ended in ready:
                fork.answer_status()
                fork.close()
                forks.remove(fork)
        if 0 in ready:
            for fork in forks:
                kill_session(fork.pid)
            return None
        if listening in ready:
            connection, _ = listening.accept()
            request, files = _receive(connection)
            pid = os.fork()
            if pid == 0:
                for each in (listening, connection, *forks):
                    each.close()
                _become(request, files)
                return request
            for file in files:
                os.close(file)
            connection.sendall(STATUS.pack(pid))
            forks.append(Fork(pid, connection))


def _receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    header, files, _, _ = socket.recv_fds(connection, STATUS.size, 3)
    n_bytes = STATUS.unpack(header)[0]
    body = b""
    while len(body) < n_bytes:
        body += connection.recv(n_bytes - len(body))
    return json.loads(body), files


def _become(request: dict[str, Any], files: list[int]) -> None:
    """Make this fork what a Python would be that the sender had started itself."""
    os.setsid()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(request["folder"])
    os.sched_setaffinity(0, request["cores"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.meta_path.insert(0, _Again())
    sys.path[:0] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    gc.set_threshold(50_000, 10, 10)  # as in tests/conftest.py
    random.seed()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()


def _run(request: dict[str, Any]) -> None:
    """Run a script, or ``-m`` and a module, or ``-c`` and a program, as Python's command line does."""
    what, *arguments = request["arguments"]
    variables = sys.modules["__main__"].__dict__
    if what == "-m":
        sys.path.insert(0, os.getcwd())
        sys.argv = ["-m", *arguments[1:]]
        runpy._run_module_as_main(arguments[0])  # type: ignore[attr-defined]
        return
    if what == "-c":
        sys.path.insert(0, "")
        sys.argv = ["-c", *arguments[1:]]
        exec(compile(arguments[0], "<string>", "exec"), variables)
        return
    script = Path(what).resolve()
    sys.path.insert(0, str(script.parent))
    sys.argv = [what, *arguments]
    variables["__file__"] = os.path.abspath(what)
    exec(compile(script.read_bytes(), variables["__file__"], "exec"), variables)
