"""End all ranks of a run together: with the right exit code, one error message, and never a hang.

Every rank ends in the run's *ending*, a collective of its own; see :mod:`.ending`:

- A rank that ends normally, or has no work left to do, waits in it without a limit, asleep.
- A rank that fails waits ``AGREEMENT_S``. If all ranks have ended by then, the lowest rank of those with the same error
  prints it, and all exit with its code. If not, the others still work or wait in a collective: the rank prints its error and
  aborts the job, which ends them.

Two cases remain. First, ``sys.exit(3)`` never reaches ``sys.excepthook``: its code is noted when it is called, and the rank
ends as one that failed. Second, a rank may end (``raise SystemExit``, or a script that simply stops) while another waits
for it in a collective. Therefore each rank tells the others, as it ends, how many collectives of each chain it began. A
thread of each rank checks once a second whether this rank has begun more collectives than a rank that ended. The same
thread ends waits that last too long, see :mod:`...common.process.watchdog`.
"""

from __future__ import annotations

import atexit
import dis
import hashlib
import operator
import os
import re
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any, NoReturn

from ...common.errors import InputError, TensorOptError
from ...common.process.watchdog import timeout_s
from ...common.source_lines import code_location, users_line_of
from ..mpi_start import finalize
from . import notes
from .ending import DIGEST_BYTES, KIND_FAILED, KIND_NORMAL
from .interruptions import MOST_STAGGER_S, Interruptions, say
from .watching import RankWatch, WatchedRank

AGREEMENT_S = 5.0
WATCH_INTERVAL_S = 1.0
SPEAKING_S = 2.0
"""Seconds that a rank waits for another one to print why all ranks end."""

LEAVING_S = 0.3
"""Seconds that ranks take to leave mpirun once all have ended MPI, with a margin."""

# The names of errors, since TensorFlow, which has one of them, isn't imported here.
OUT_OF_MEMORY = ("ResourceExhaustedError", "MemoryError")
_LOST = re.compile(r"/job:rank\d|Collective ops is aborted")
"""TensorFlow's words on a collective, one of whose ranks has gone."""
_NAMES_A_LINE = re.compile(r"\.(py|ipynb):\d+|<string>:\d+")

Hook = Callable[[type[BaseException], BaseException, TracebackType | None], Any]


def is_debugging() -> bool:
    """Return whether the user wants traces (TENSOROPT_DEBUG=1)."""
    return os.environ.get("TENSOROPT_DEBUG", "0") not in ("", "0")


def exit_code_of(error: BaseException) -> int:
    """Return the exit code of a process that ends with this error."""
    if isinstance(error, KeyboardInterrupt):
        return 130
    return error.exit_code if isinstance(error, TensorOptError) else 1


class ErrorHandling:
    """This process's handling of errors and of its end; there is one object per process."""

    def __init__(self, processes: WatchedRank, previous_hook: Hook) -> None:
        self.processes = processes
        self.previous_hook = previous_hook
        self.previous_thread_hook = threading.excepthook
        self._requested_exit: tuple[int, tuple[int, ...]] | None = None
        self._stop_watching = threading.Event()
        self._watcher: threading.Thread | None = None
        self.watch: RankWatch | None = None
        self.interruptions: Interruptions | None = None
        self.last: list[Callable[[], object]] = []
        self.refusal: Callable[[], InputError | None] = lambda: None
        self.outermost: FrameType | None = None
        self._exit_code = 0

    def on_exception(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> NoReturn:
        """Report an uncaught exception and end all ranks. Replaces ``sys.excepthook``."""
        ending = self.processes.ending
        error = _explain(error)
        kind = type(error)
        if ending is None:
            self._say(kind, error, trace, prefix="")
            raise SystemExit(exit_code_of(error))
        if isinstance(error, Exception) and _LOST.search(str(error)):
            time.sleep(SPEAKING_S)  # that rank's end ends this one, too, and says why
            self._end_all(f"rank {self.processes.rank} has lost the connection to another rank in a collective")
        if issubclass(kind, KeyboardInterrupt):
            self._end_all(f"rank {self.processes.rank}: {_error_text(error)}", 130)
        code = exit_code_of(error)
        notes.note(notes.REFUSED if isinstance(error, InputError) else notes.FAILED, error=_error_text(error))
        # Types are compared by name, since the ranks agree on the text that would be printed.
        digest = hashlib.sha256(f"{kind.__qualname__}: {error}".encode()).digest()[:DIGEST_BYTES]
        self._stop()
        if not ending.join(KIND_FAILED, code, digest, limit_s=AGREEMENT_S):
            ending.speak()
            self._say(kind, error, trace, prefix=f"rank {self.processes.rank}: ")
            ending.abort(code)
        failures = ending.failures()
        ranks = [rank for rank, rank_digest in failures if rank_digest == digest]
        if self.processes.rank == min(ranks):
            is_unanimous = len(ranks) == ending.n_working()
            self._say(kind, error, trace, prefix="" if is_unanimous else f"rank {self.processes.rank}: ")
        raise SystemExit(code)

    def on_thread_exception(self, arguments: threading.ExceptHookArgs) -> None:
        """End all ranks for a TensorOptError in a thread, as in the main thread. Replaces ``threading.excepthook``."""
        error = arguments.exc_value
        if not isinstance(error, TensorOptError):
            self.previous_thread_hook(arguments)
            return
        code = error.exit_code
        try:
            self.on_exception(type(error), error, error.__traceback__)
        except SystemExit:
            if self.processes.ending is None:
                os._exit(code)
            time.sleep(min(0.1 * self.processes.rank, MOST_STAGGER_S))  # the first to print ends the others
            self.processes.ending.abort(code)

    def _say(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None, prefix: str) -> None:
        if isinstance(error, TensorOptError) and not is_debugging():
            print(f"tensoropt: {prefix}{sentence_of(error)}", file=sys.stderr, flush=True)
        elif kind.__name__ in OUT_OF_MEMORY and not is_debugging():
            print(f"tensoropt: {prefix}{_out_of_memory(error)}", file=sys.stderr, flush=True)
        else:
            if prefix:
                print(f"tensoropt: {prefix}{_error_text(error)}", file=sys.stderr)
            self.previous_hook(kind, error, trace)
            sys.stderr.flush()

    def note_exit(self, code: object) -> None:
        """Note a call of ``sys.exit(code)``, which may still be caught."""
        number = 0 if code is None else code & 0xFF if isinstance(code, int) else 1
        self._requested_exit = (number, self.processes.collectives_begun)

    def on_exit(self) -> None:
        """End this rank as the interpreter ends: together with the others or, after a failure, before them."""
        ending = self.processes.ending
        if ending is None:
            return
        if ending.has_joined:
            self._stop()
            return
        code, collectives_then = self._requested_exit or (0, ())
        # A later collective means that the SystemExit was caught and the work went on.
        if code and collectives_then == self.processes.collectives_begun:
            notes.note(notes.FAILED, error=f"exit code {code}")
            self._stop()
            digest = f"exit {code}".encode().ljust(DIGEST_BYTES, b"\0")
            if not ending.join(KIND_FAILED, code, digest, limit_s=AGREEMENT_S):
                rank = self.processes.rank
                ending.speak()
                print(f"tensoropt: rank {rank} ended with exit code {code} before the others.", file=sys.stderr)
                ending.abort(code)
            if self.processes.rank == next(rank for rank, rank_digest in ending.failures() if rank_digest == digest):
                sys.stderr.write("")  # it shows what was kept back
            return
        refusal = self.refusal() if self._requested_exit is None and self._has_returned() else None
        if refusal is not None:
            self._exit_code = refusal.exit_code
            with suppress(SystemExit):
                self.on_exception(type(refusal), refusal, None)
            return
        ending.say_farewell(self.processes.collectives_begun)
        ending.join(KIND_NORMAL)
        notes.note(notes.DONE)
        self._stop()

    def _has_returned(self) -> bool:
        """Return whether the program has come to its end, and not left by a SystemExit that it raises itself."""
        frame = self.outermost
        return frame is None or dis.opname[frame.f_code.co_code[frame.f_lasti]].startswith("RETURN")

    def after_all(self) -> None:
        """Run the last actions of this process, after the other ranks have ended too."""
        for action in self.last:
            action()
        ending = self.processes.ending
        if ending is not None and ending.has_failures:
            from mpi4py import MPI

            # When the first rank exits with a code, mpirun ends the others, and complains if they haven't left it yet.
            MPI.Finalize()
            if self._requested_exit is None or self._requested_exit[0]:  # a rank that leaves with 0 goes first
                time.sleep(LEAVING_S)
        if self._exit_code:  # by now Python would exit with 0
            sys.stdout.flush()
            os._exit(self._exit_code)

    def start_watching(self) -> None:
        """Start the thread that looks for waits on ranks that have ended, and for waits that last too long.

        Raises:
            InputError: ``TENSOROPT_TIMEOUT`` isn't a number of seconds.
        """
        assert self.processes.ending is not None
        self.watch = RankWatch(self.processes, self.processes.ending.comm, timeout_s())
        self._watcher = threading.Thread(target=self._watch, name="tensoropt-watch", daemon=True)
        self._watcher.start()

    def _watch(self) -> None:
        ending = self.processes.ending
        assert ending is not None
        farewells: dict[int, tuple[int, ...]] = {}
        assert self.watch is not None
        while not self._stop_watching.wait(WATCH_INTERVAL_S):
            verdict = self.watch.look(ending.joined_s)
            if verdict is not None:
                self._end_all(verdict)
            farewells.update(ending.receive_farewells())
            own_counts = self.processes.collectives_begun
            missing = [rank for rank, counts in farewells.items() if any(map(operator.lt, counts, own_counts))]
            if missing:
                self._end_all(self._ended_early(missing[0]))

    def _ended_early(self, rank: int) -> str:
        """Return the sentence about a rank that has ended while this one waits for it, with the last calls of both."""
        own_rank, frames = self.processes.rank, sys._current_frames()
        call = code_location(frames.get(threading.main_thread().ident or 0)).call
        last = self.processes.last_calls.get(rank)
        calls = [f"rank {own_rank} is in {call}"] * bool(call) + [f"rank {rank} was last known in {last}"] * bool(last)
        place = f": {', '.join(calls)}" if calls else ""
        return (
            f"rank {own_rank} waits in a collective for rank {rank}, which has ended{place}. All ranks must run the same "
            "steps, as many times."
        )

    def _end_all(self, sentence: str, exit_code: int = 1) -> NoReturn:
        """Print why the ranks end, unless another rank is about to, and end all ranks."""
        ending = self.processes.ending
        assert ending is not None
        notes.note(notes.FAILED, error=sentence)
        time.sleep(min(0.1 * self.processes.rank, MOST_STAGGER_S))
        if not ending.others_speak():
            ending.speak()
            say(sentence)
            ending.abort(exit_code)
        time.sleep(SPEAKING_S)
        ending.abort(exit_code)

    def leave_in_child(self) -> None:
        """Make a process that this one has forked end by itself, as without TensorOpt: MPI belongs to its parent."""
        if self.interruptions is not None:
            self.interruptions.remove_in_child()
        if sys.excepthook == self.on_exception:
            sys.excepthook = self.previous_hook
        if threading.excepthook == self.on_thread_exception:
            threading.excepthook = self.previous_thread_hook
        for action in (self.on_exit, self.after_all, finalize):
            atexit.unregister(action)

    def _stop(self) -> None:
        self._stop_watching.set()
        if self.interruptions is not None:
            self.interruptions.remove()
        if self._watcher is not None and self._watcher is not threading.current_thread():
            self._watcher.join(WATCH_INTERVAL_S)


def sentence_of(error: TensorOptError) -> str:
    """Return an error's message, followed by the user's line where the message names none."""
    message = str(error)
    line = "" if _NAMES_A_LINE.search(message) else users_line_of(error)
    end = "." * message.endswith(".")
    return f"{message.removesuffix('.')} (at {line}){end}" if line else message


def _error_text(error: BaseException) -> str:
    """Return an error's type, its message and the user's line."""
    message, line = str(error), users_line_of(error)
    return f"{type(error).__name__}{f': {message}' if message else ''}{f' (at {line})' if line else ''}"


def _out_of_memory(error: BaseException) -> str:
    """Return a message that says which allocation of Python or TensorFlow failed, without the trace."""
    lines = (line.strip() for line in str(error).splitlines())
    failure = next((line for line in lines if "OOM" in line or "allocate" in line), "")
    return (
        f"out of memory{': ' * bool(failure)}{failure.rstrip('.')}; find a plan that needs less per device, with "
        "find_strategy(memory=...) or on more devices"
    )


_installed: ErrorHandling | None = None
_explanations: list[Callable[[BaseException], str | None]] = []


def explain_errors(explanation: Callable[[BaseException], str | None]) -> None:
    """Register an explanation of other libraries' errors that are caused by wrong use.

    Args:
        explanation: returns the sentence to print for an error, or None if it doesn't know the error.
    """
    if explanation not in _explanations:
        _explanations.append(explanation)


def _explain(error: BaseException) -> BaseException:
    """Return the error to print for an uncaught one: the first explanation as InputError, or else the error itself."""
    sentence = next((text for text in (explain(error) for explain in _explanations) if text is not None), None)
    if sentence is None:
        return error
    explanation = InputError(sentence)
    explanation.__cause__ = error
    return explanation.with_traceback(error.__traceback__)


def install_error_handling(processes: WatchedRank) -> None:
    """Make an error on any rank end all ranks: with a sentence, a non-zero exit code, and within 30 seconds.

    Installs ``sys.excepthook`` and ``threading.excepthook`` (not in an interactive Python), and under MPI wraps ``sys.exit``
    and registers the ending with ``atexit``. Does nothing the second time.
    """
    global _installed
    if _installed is not None:
        return
    handling = ErrorHandling(processes, _plain_hook())
    _installed = handling
    if not hasattr(sys, "ps1"):
        sys.excepthook = handling.on_exception
        threading.excepthook = handling.on_thread_exception
    if processes.ending is None:
        return
    sys.exit = _noting_exit(handling, sys.exit)
    atexit.register(handling.after_all)  # runs after the function that is registered next
    atexit.register(handling.on_exit)
    os.register_at_fork(after_in_child=handling.leave_in_child)
    from mpi4py import MPI

    if processes.size > 1 and MPI.Query_thread() == MPI.THREAD_MULTIPLE:
        handling.start_watching()
        handling.interruptions = Interruptions(processes.ending, processes.rank)
        handling.interruptions.install()


def interruptions_of_process() -> Interruptions | None:
    """Return this rank's handling of signals; None if it has none."""
    return None if _installed is None else _installed.interruptions


def at_the_very_end(action: Callable[[], object]) -> bool:
    """Run an action when this rank ends, after the others have ended; return False if error handling isn't installed."""
    if _installed is None:
        return False
    _installed.last.append(action)
    return True


def refuse_at_end(refusal: Callable[[], InputError | None]) -> None:
    """Have this rank, if it ends without an error, ask for one that the run ends with then."""
    if _installed is not None:
        _installed.refusal, frame = refusal, sys._getframe()
        while frame.f_back is not None:
            frame = frame.f_back
        _installed.outermost = frame


def _noting_exit(handling: ErrorHandling, original: Callable[..., NoReturn]) -> Callable[..., NoReturn]:
    def exit(status: object = None, /) -> NoReturn:
        handling.note_exit(status)
        original(status)

    return exit


def install_lone_error_handling(rank: int) -> None:
    """Install a hook for errors before ranks can talk to each other, which all meet: only rank 0 prints them."""
    plain_hook = _plain_hook()

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not isinstance(error, TensorOptError) or is_debugging():
            plain_hook(kind, error, trace)
            return
        notes.note(notes.REFUSED, error=str(error))
        if rank == 0:
            print(f"tensoropt: {error}", file=sys.stderr, flush=True)
        raise SystemExit(error.exit_code)

    hook.plain = plain_hook  # type: ignore[attr-defined]
    if not hasattr(sys, "ps1"):
        sys.excepthook = hook


def _plain_hook() -> Hook:
    """Return the hook that prints a traceback: the one installed before ours, such as the user's own."""
    hook: Hook = sys.excepthook
    plain_hook: Hook = getattr(hook, "plain", hook)
    return plain_hook
