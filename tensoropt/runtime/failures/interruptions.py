"""Print why a rank ends by a signal, by ``os._exit``, or because mpirun ends all ranks, where nothing else would say so.

A signal's own handler runs in the main thread, which may be in a collective for long. So the interpreter also writes signals
into a pipe, which a thread reads. SIGTERM comes also from mpirun when it ends ranks: after SIGCONT, and to all ranks that
still run. Then the lowest of them prints the line, unless a rank has said already why all end.

An mpirun that was interrupted no longer shows what ranks write. Then the line goes to the terminal, if there is one.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from ...common.source_lines import code_location
from .notes import TERMINATED as TERMINATED_NOTE
from .notes import note

if TYPE_CHECKING:
    from .ending import Ending

TERMINATED = 128 + signal.SIGTERM
GATHERING_S = 0.05
"""Seconds for which a rank checks which others are terminated: mpirun kills them a quarter of a second after SIGTERM."""
RECENT_S, PAUSE_OF_INTERRUPTED_S = 1.0, 0.1
"""Bounds on the seconds from SIGCONT to SIGTERM.

mpirun takes a quarter of a second between them if it is interrupted, else a millisecond.
"""
MOST_STAGGER_S = 0.5
REPEATED_S = 2.0
"""Seconds after a request to stop from which on another SIGTERM is a second one."""


class Interruptions:
    """A rank's handling of signals and of ``os._exit``, which end it."""

    def __init__(self, ending: Ending, rank: int) -> None:
        self.ending, self.rank = ending, rank
        self._is_over = threading.Lock()
        self._continued_s = -RECENT_S
        self._original_exit = os._exit
        self._wakeup = -1
        self._ask: Callable[[], None] | None = None
        self._asked_s: float | None = None
        self._forking = threading.local()

    def install(self) -> None:
        """Handle SIGTERM, unless the user's code does; notice ``os._exit``."""
        os._exit = self._on_exit
        is_main = threading.current_thread() is threading.main_thread()
        if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            return
        for number in (signal.SIGTERM, signal.SIGCONT):
            signal.signal(number, self._on_signal)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # mpirun may have been started with it blocked
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        descriptor = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        if descriptor != -1:
            signal.set_wakeup_fd(descriptor)  # it belongs to other code, such as asyncio
            return
        self._wakeup = writing
        # A signal to a child that has just been forked must not go into this process's pipe: it waits until that is left.
        os.register_at_fork(before=self._hold, after_in_parent=self._release, after_in_child=self._release)
        threading.Thread(target=self._read, args=[reading], name="tensoropt-signals", daemon=True).start()

    def ask_to_stop(self, ask: Callable[[], None]) -> None:
        """Take SIGTERM and SIGUSR1 as requests to stop between two steps, where the user's code doesn't handle them.

        A second SIGTERM ends this rank as the first would have. After mpirun's own, which may look like a batch system's,
        mpirun kills this rank anyway.
        """
        self._ask = ask
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL:
            signal.signal(signal.SIGUSR1, self._on_signal)

    def _is_request(self, number: int) -> bool:
        """Return whether a signal asks to stop. One request may come as both signals, by the batch system and by mpirun."""
        if self._ask is None:
            return False
        now_s = time.monotonic()
        if number == signal.SIGTERM:
            note(TERMINATED_NOTE)
        is_repeated = self._asked_s is not None and now_s - self._asked_s > REPEATED_S
        self._asked_s = self._asked_s or now_s
        self._ask()
        return number != signal.SIGTERM or not is_repeated

    def remove(self) -> None:
        """Restore the default handling of signals that are still handled here, and the original ``os._exit``."""
        os._exit = self._original_exit
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGCONT, signal.SIGUSR1):
                # Compared with ==, not with is: each access makes a new bound method.
                if signal.getsignal(number) == self._on_signal:
                    signal.signal(number, signal.SIG_DFL)

    def remove_in_child(self) -> None:
        """Restore what :meth:`remove` does, and leave the pipe, in a process that this one has forked."""
        self.remove()
        if self._wakeup != -1:
            current = signal.set_wakeup_fd(-1)
            if current not in (-1, self._wakeup):
                signal.set_wakeup_fd(current)

    def _hold(self) -> None:
        self._forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGCONT))

    def _release(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._forking.mask)

    def _read(self, pipe: int) -> None:
        while True:
            for number in os.read(pipe, 64):
                if signal.getsignal(number) == self._on_signal:
                    self._on_signal(number, None)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGCONT:
            # The signal comes twice, by the pipe and by the interpreter, which may be late.
            if time.monotonic() - self._continued_s > RECENT_S:
                self._continued_s = time.monotonic()
        elif self._ask is not None and self._wakeup != -1 and frame is not None:
            return  # the thread that reads the pipe has seen it already
        elif self._is_request(number):
            return
        elif self._is_over.acquire(blocking=False):
            self._end_terminated()

    def _end_terminated(self) -> NoReturn:
        ending, pause_s = self.ending, time.monotonic() - self._continued_s
        if ending.has_joined:
            self._original_exit(TERMINATED)
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        while frame is not None and frame.f_code.co_filename == __file__:
            frame = frame.f_back  # the handler itself
        place = code_location(frame)
        note(TERMINATED_NOTE)
        ending.tell_terminated()
        until_s, ranks = time.monotonic() + GATHERING_S, set()
        while time.monotonic() < until_s and not ending.others_speak():
            ranks |= ending.receive_terminated()
            time.sleep(GATHERING_S / 10)
        if ending.others_speak() or min(ranks, default=self.rank) < self.rank:
            time.sleep(PAUSE_OF_INTERRUPTED_S)
            self._original_exit(TERMINATED)
        if pause_s > RECENT_S and not ranks:
            ending.speak()
            say(f"rank {self.rank}: ended by SIGTERM, from another process, while it was {place}")
            ending.abort(TERMINATED)
        say(
            "mpirun ends all ranks: it was interrupted (Ctrl-C) or told to end, or a rank was killed or has crashed",
            has_pause=PAUSE_OF_INTERRUPTED_S < pause_s <= RECENT_S,
        )
        self._original_exit(TERMINATED)

    def _on_exit(self, status: int) -> Any:
        """Print that ``os._exit`` was called, and exit. Replaces ``os._exit``."""
        if not self.ending.has_joined and self._is_over.acquire(blocking=False):
            line = code_location(sys._getframe(1)).line
            time.sleep(min(0.1 * self.rank, MOST_STAGGER_S))  # if all ranks exit so, only one prints it
            if not self.ending.others_speak():
                self.ending.speak()
                place = f" at {line}" if line else ""
                say(f"rank {self.rank}: os._exit({status}){place} ends this process at once, and with it all ranks")
        self._original_exit(status)


def say(text: str, has_pause: bool = False) -> None:
    """Print a line of TensorOpt's; also to the terminal, if mpirun doesn't forward it."""
    with contextlib.suppress(OSError, ValueError):
        print(f"tensoropt: {text}", file=sys.stderr, flush=True)
    if has_pause and not os.environ.get(STARTED_BY_RUN) and not os.isatty(2):
        with contextlib.suppress(OSError), open("/dev/tty", "w") as terminal:
            terminal.write(f"tensoropt: {text}\n")


STARTED_BY_RUN = "TENSOROPT_RUN"
"""An environment variable set for ranks that ``tensoropt run`` started, which prints the last message itself."""
