"""Call a function on several arguments at once, in worker processes.

A worker is a new Python that imports TensorOpt alone: it never runs the user's ``__main__``, and is no fork of a process in
which MPI or TensorFlow has started. What it is given and returns goes over its standard input and output as pickles, with
TensorFlow's values as texts, so that it needs no TensorFlow. It ends with its input, so that none outlives this process, and
leaves Ctrl-C to it.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import IO, Any

from ..errors import InputError, short
from .garbage import nothing_collected

WORKER_BYTES = 1_500_000_000
"""The memory that a worker may need, most of it for a large model's costs."""
REPORT_S = 0.25
"""A worker reports progress at most once in so many seconds."""
_START = "import sys; sys.path[:] = {path!r}; from {module} import serve; serve({needed!r})"
_AS_TEXTS = ("tensorflow.python.framework.dtypes", "tensorflow.core.framework")
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
        _pickled(value)
    except (pickle.PicklingError, TypeError, AttributeError, RecursionError):
        return False
    return True


@contextlib.contextmanager
def started_early(n: int, preload: str) -> Iterator[None]:
    """Start workers for :class:`Calls` in this context, which import a module meanwhile; end those that are left."""
    try:
        for _ in range(n):
            with contextlib.suppress(OSError):
                _EARLY.append(_start(preload))
        yield
    finally:
        while _EARLY:
            with _EARLY.pop() as process:
                process.kill()


class Calls:
    """Calls that worker processes make, in the order in which they are added.

    What a worker that died was at is tried again by another one, or by this process.

    Args:
        needed: the module that they import first.
        report: called with the key of a call and what its function has reported: a single value always, several, such as
            progress, now and then.
    """

    def __init__(self, n: int, needed: str, report: Callable[..., None]) -> None:
        self._given, self._events = SimpleQueue[Any](), SimpleQueue[Any]()
        self._waiting: dict[Any, tuple[Callable[..., Any], tuple[Any, ...]]] = {}  # that nobody has begun
        self._ended: dict[Any, tuple[Any, Exception | None]] = {}
        self._report = report
        self._processes: list[subprocess.Popen[bytes]] = []
        for _ in range(n):
            with contextlib.suppress(OSError):  # without the memory for another one
                self._processes.append(_EARLY.pop() if _EARLY else _start(needed))
                threading.Thread(target=self._feed, args=(self._processes[-1],), daemon=True).start()
        self._n_alive = len(self._processes)

    def add(self, key: Any, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        """Have a module's function called with some arguments, and with a function ``report`` as the last one.

        Raises:
            Exception: an error of pickling the arguments.
        """
        payload = _pickled((function, arguments))
        self._waiting[key] = function, arguments
        self._given.put((key, payload))

    def drop(self, key: Any) -> bool:
        """Return whether nobody has begun a call, which then isn't made."""
        return self._waiting.pop(key, None) is not None

    def result(self, key: Any) -> Any:
        """Return a call's result. This process makes it if no worker has begun; while one is at it, it makes others.

        Raises:
            Exception: what the function has raised.
        """
        while key not in self._ended:
            if not self._events.empty() or not (self._make(key) or self._make(next(iter(self._waiting), None))):
                self._listen()
        value, error = self._ended.pop(key)
        if error is not None:
            raise error
        return value

    def next_result(self) -> tuple[Any, Any]:
        """Return the key and the result of a call that has ended, which this process makes only if no worker is left.

        Raises:
            Exception: what the function has raised.
        """
        while not self._ended:
            if self._n_alive:
                self._listen()
            else:
                self._make(next(iter(self._waiting)))
        key = next(iter(self._ended))
        return key, self.result(key)

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            self._given.put(None)
        for process in self._processes:
            process.wait()

    def _make(self, key: Any) -> bool:
        """Return whether a call is one that nobody has begun, and make it here."""
        call = self._waiting.pop(key, None)
        if call is not None:
            try:
                self._ended[key] = call[0](*call[1], lambda *values: self._report(key, *values)), None
            except Exception as error:
                self._ended[key] = None, error
        return call is not None

    def _listen(self) -> None:
        kind, key, value = self._events.get()
        if kind == _REPORT:
            self._report(key, *value)
        elif kind == _DIED:
            self._n_alive -= 1
        else:
            self._ended[key] = (value, None) if kind == _ENDED else (None, value)

    def _feed(self, process: subprocess.Popen[bytes]) -> None:
        """Have a worker make calls until there is nothing to do or it dies."""
        assert process.stdin is not None and process.stdout is not None
        while (task := self._given.get()) is not None:
            key, payload = task
            if (call := self._waiting.pop(key, None)) is None:
                continue
            try:
                _send(process.stdin, payload)
                while (said := pickle.loads(_receive(process.stdout)))[0] == _REPORT:
                    self._events.put((_REPORT, key, said[1]))
                self._events.put((said[0], key, said[1]))
            except Exception:  # it has ended, or what it says can't be read
                self._waiting[key] = call
                self._given.put(task)
                self._events.put((_DIED, key, None))
                break
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                pipe.close()


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: object) -> Any:
        """Reduce TensorFlow's values, such as attributes of operators, to their texts, by which alone searches know them."""
        return (str, (str(value),)) if type(value).__module__.startswith(_AS_TEXTS) else NotImplemented


def _pickled(value: object) -> bytes:
    stream = io.BytesIO()
    _Pickler(stream).dump(value)
    return stream.getvalue()


def _start(preload: str) -> subprocess.Popen[bytes]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(_OF_MPI)}
    environment |= dict.fromkeys(_ONE, "1") | {"CUDA_VISIBLE_DEVICES": ""}
    code = _START.format(path=list(map(str, sys.path)), module=__name__, needed=preload)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    return subprocess.Popen([sys.executable, "-c", code], env=environment, **pipes)  # type: ignore[call-overload]


def _send(stream: IO[bytes], payload: bytes) -> None:
    stream.write(len(payload).to_bytes(8, "big") + payload)
    stream.flush()


def _receive(stream: IO[bytes]) -> bytes:
    """Return the next payload; raise EOFError if the other process has ended."""
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
    while True:
        function, arguments = pickle.loads(tasks.get())
        try:
            reply = _ENDED, function(*arguments, report)
        except MemoryError:  # fewer workers may have enough
            os._exit(1)
        except Exception as error:
            reply = _RAISED, error
        _send(answers, pickle.dumps(reply))
