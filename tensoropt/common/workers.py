"""Call a function on several arguments at once, in worker processes.

A worker is a new Python that imports TensorOpt alone: it never runs the user's ``__main__``, and is no fork of a process in
which MPI or TensorFlow has started. What it is given and returns goes over its standard input and output as pickles. It ends
with its input, so that none outlives this process, and leaves Ctrl-C to it.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue
from typing import IO, Any

from .errors import InputError, short
from .garbage import nothing_collected

WORKER_BYTES = 1_500_000_000
"""The memory that a worker may need: that of TensorFlow's import and of a large model's costs."""
REPORT_S = 0.25
"""A worker reports progress at most once in so many seconds."""
_START = "import sys; sys.path[:] = {path!r}; from {module} import serve; serve({needed!r})"
_OF_MPI = ("OMPI_", "PMIX_", "PRTE_")
_ONE = ("TENSOROPT_WORKERS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_EARLY: list[subprocess.Popen[bytes]] = []
"""The workers that were started before there was anything to call."""
_REPORT, _ENDED, _RAISED, _DIED = range(4)


def n_workers(available_bytes: int) -> int:
    """Return the number of workers: that of ``TENSOROPT_WORKERS``, or as many as there are cores and memory for.

    Args:
        available_bytes: the memory that this process and others it starts may still take.

    Raises:
        InputError: it isn't a whole number from 1 up.
    """
    text = os.environ.get("TENSOROPT_WORKERS")
    if text is None:
        return max(1, min(len(os.sched_getaffinity(0)), available_bytes // WORKER_BYTES))
    if not (text.isascii() and text.isdecimal() and int(text)):
        raise InputError(f"TENSOROPT_WORKERS takes a whole number of processes from 1 up, got {short(text)}; 1 starts none")
    return int(text)


def can_be_sent(value: object) -> bool:
    """Return whether a worker can be given a value: users' own functions and classes in it can't be pickled."""
    try:
        pickle.dumps(value)
    except (pickle.PicklingError, TypeError, AttributeError, RecursionError):
        return False
    return True


@contextlib.contextmanager
def started_early(n: int, preload: str) -> Iterator[None]:
    """Start workers for :func:`results` in this context, which import a module meanwhile; end those that are left."""
    try:
        for _ in range(n):
            with contextlib.suppress(OSError):
                _EARLY.append(_start(preload))
        yield
    finally:
        while _EARLY:
            with _EARLY.pop() as process:
                process.kill()


def results(
    function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], n: int, report: Callable[..., None]
) -> Iterator[tuple[int, Any]]:
    """Yield the number of each of some arguments with the function's result, as workers return them.

    What a worker that died was called with is tried again by the others; by this process, if all have died.

    Args:
        function: a module's, called with the arguments and a function ``report`` as the last one.
        n: the number of workers.
        report: called with a number of arguments and what the function has reported of them: a single value always, several,
            such as progress, now and then.

    Raises:
        Exception: what the function has raised, or an error of pickling arguments.
    """
    tasks, events, pending = SimpleQueue[Any](), SimpleQueue[Any](), dict(enumerate(arguments))
    for number, task in enumerate(arguments):
        tasks.put((number, pickle.dumps((function, task))))
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(n):
            with contextlib.suppress(OSError):  # without the memory for another one
                processes.append(_EARLY.pop() if _EARLY else _start(function.__module__))
                threading.Thread(target=_feed, args=(processes[-1], tasks, events), daemon=True).start()
        n_alive = len(processes)
        while pending and n_alive:
            kind, number, value = events.get()
            if kind == _REPORT:
                report(number, *value)
            elif kind == _RAISED:
                raise value
            elif kind == _ENDED:
                del pending[number]
                yield number, value
            else:
                n_alive -= 1
        for number, task in pending.items():
            yield number, function(*task, lambda *values, number=number: report(number, *values))
    finally:
        for process in processes:
            process.kill()
            tasks.put(None)
        for process in processes:
            process.wait()


def _start(preload: str) -> subprocess.Popen[bytes]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(_OF_MPI)}
    environment |= dict.fromkeys(_ONE, "1") | {"CUDA_VISIBLE_DEVICES": ""}
    code = _START.format(path=list(map(str, sys.path)), module=__name__, needed=preload)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    return subprocess.Popen([sys.executable, "-c", code], env=environment, **pipes)  # type: ignore[call-overload]


def _feed(process: subprocess.Popen[bytes], tasks: SimpleQueue[Any], events: SimpleQueue[Any]) -> None:
    """Have a worker do what is given, until that is None or the worker dies; put what it says into ``events``."""
    assert process.stdin is not None and process.stdout is not None
    while (task := tasks.get()) is not None:
        number, payload = task
        try:
            _send(process.stdin, payload)
            while (reply := pickle.loads(_receive(process.stdout)))[0] == _REPORT:
                events.put((_REPORT, number, reply[1]))
            events.put((reply[0], number, reply[1]))
        except (OSError, EOFError):
            tasks.put(task)
            events.put((_DIED, number, None))
            break
    for pipe in (process.stdin, process.stdout):
        with contextlib.suppress(OSError):
            pipe.close()


def _send(stream: IO[bytes], payload: bytes) -> None:
    stream.write(len(payload).to_bytes(8, "big") + payload)
    stream.flush()


def _receive(stream: IO[bytes]) -> bytes:
    """Return the next payload.

    Raises:
        EOFError: the other process has ended.
    """
    size = stream.read(8)
    payload = stream.read(int.from_bytes(size, "big")) if len(size) == 8 else b""
    if not payload:
        raise EOFError
    return payload


def serve(preload: str) -> None:
    """Be a worker: import a module, call what comes in, and send what is returned, until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print is no answer
    tasks, due = SimpleQueue[bytes](), 0.0

    def read() -> None:
        while True:
            try:
                tasks.put(_receive(sys.stdin.buffer))
            except EOFError:
                os._exit(0)

    def report(*values: Any) -> None:
        nonlocal due
        if len(values) == 1 or time.monotonic() >= due:
            due = time.monotonic() + REPORT_S
            _send(answers, pickle.dumps((_REPORT, values)))

    threading.Thread(target=read, daemon=True).start()
    with nothing_collected():
        importlib.import_module(preload)
        gc.freeze()
    while True:
        function, arguments = pickle.loads(tasks.get())
        try:
            reply = _ENDED, function(*arguments, report)
        except MemoryError:  # fewer workers may have enough
            os._exit(1)
        except Exception as error:
            reply = _RAISED, error
        _send(answers, pickle.dumps(reply))
