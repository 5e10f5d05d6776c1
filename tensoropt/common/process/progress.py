"""Show on stderr what long work is doing and how far it has got: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import math
import os
import select
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import TextIO

FIRST_S, EACH_S, BAR_S = 2.0, 10.0, 0.5
"""The seconds until something is shown, then between lines, and between bars on a terminal."""
REPEATED_S = 0.3
"""A signal that comes again within these seconds is the same one, which a launcher has passed on."""
BAR = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}]"
QUIET = "TENSOROPT_QUIET"
Progress = Callable[[str, int, int], None]
"""A function that long work calls with the name of what it does, how many parts are done, and how many there are."""
BENEATH: list[str] = []
"""The things that any phase may wait for and doesn't know of, such as compilation, the innermost last."""


@contextmanager
def ended_soon(message: str) -> Iterator[None]:
    """Have a second Ctrl-C end the process at once, and the first one while loops are compiled, though C code runs."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are the main thread's
        return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    ending, is_over = threading.RLock(), threading.Event()

    def watch() -> None:
        first_s = math.inf
        while True:
            if select.select([reading], [], [], 0.5 if first_s < math.inf else None)[0]:
                if not (received := os.read(reading, 1)):
                    return os.close(reading)
                if received[0] == signal.SIGINT:
                    if time.monotonic() - first_s > REPEATED_S:
                        end()
                    first_s = min(first_s, time.monotonic())
            if BENEATH and first_s < math.inf:
                end()

    def end() -> None:
        with ending:  # of two threads, one
            if not is_over.is_set():
                with suppress(OSError, RuntimeError):  # who reads it may have ended, or this thread be writing
                    print(f"\ntensoropt: {message}", file=sys.stderr, flush=True)
                os._exit(128 + signal.SIGINT)

    def interrupted(number: int, frame: FrameType | None) -> None:
        if BENEATH:  # the compiler drops an exception, or fails by it
            end()
        if callable(handler):
            handler(number, frame)

    threading.Thread(target=watch, daemon=True).start()
    others, handler = signal.set_wakeup_fd(writing), signal.getsignal(signal.SIGINT)
    if callable(handler):
        signal.signal(signal.SIGINT, interrupted)
    try:
        yield
    finally:
        with ending:
            is_over.set()
        if callable(handler):
            signal.signal(signal.SIGINT, handler)
        signal.set_wakeup_fd(others)
        os.close(writing)


def under(progress: Progress, name: str) -> Progress:
    """Return a progress callback that puts a name before each phase."""
    return lambda phase, done, total: progress(f"{name}, {phase}", done, total)


@dataclass(frozen=True, slots=True)
class _Phase:
    """A piece of long work, ``done`` of ``total`` parts of it done; a total of 0 stands for work that has no parts."""

    name: str
    done: int = 0
    total: int = 0


class Display:
    """A display on stderr of what this process is doing.

    After ``FIRST_S`` seconds in a phase it writes a line, then one every ``EACH_S`` seconds; on a terminal it draws one bar
    again and again, and wipes it at the end. With ``TENSOROPT_QUIET=1`` it shows nothing.

    Args:
        is_shown: whether this process shows anything: of all ranks, rank 0 alone.
        stream: where to write; by default stderr.
    """

    def __init__(self, is_shown: bool = True, stream: TextIO | None = None) -> None:
        self.is_shown = is_shown and os.environ.get(QUIET) != "1"
        self._given = stream
        self._phase: _Phase | None = None
        self._started_s = 0.0

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Say that this is being done until the context ends; afterwards the phase around it goes on, if there is one."""
        outer, self._phase = self._phase, _Phase(name)
        try:
            if outer is None and self.is_shown:
                with self._showing():
                    yield
            else:
                yield
        finally:
            self._phase = outer

    def update(self, name: str, done: int, total: int) -> None:
        """Say that ``done`` of ``total`` parts are done of something within the current phase."""
        if self._phase is not None:
            self._phase = _Phase(name, done, total)

    def say(self, text: str) -> None:
        """Write lines, each with the project's name before it."""
        if self.is_shown:
            lines = (f"tensoropt: {line}\n" for line in text.splitlines())
            self._write("".join(lines))

    @contextmanager
    def _showing(self) -> Iterator[None]:
        # A thread, since some phases report nothing for long.
        self._started_s, ended = time.monotonic(), threading.Event()
        thread = threading.Thread(target=self._show_until, args=(ended,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _show_until(self, ended: threading.Event) -> None:
        is_terminal, wait_s, has_bar = (self._given or sys.stderr).isatty(), FIRST_S, False
        while not ended.wait(wait_s):
            phase, seconds = self._phase, time.monotonic() - self._started_s
            if phase is None:
                continue
            if BENEATH:
                phase = _Phase(f"{phase.name}: {BENEATH[-1]}")
            if is_terminal:
                self._write(f"\r\x1b[K{_bar(phase, seconds)}")
                wait_s, has_bar = BAR_S, True
            else:
                of = f", {phase.done} of {phase.total}" if phase.total else ""
                self.say(f"after {seconds:.0f} s: {phase.name}{of}")
                wait_s = EACH_S
        if has_bar:
            self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        stream = self._given or sys.stderr
        stream.write(text)
        stream.flush()


NOT_SHOWN = Display(is_shown=False)
"""A display that shows nothing."""


def _bar(phase: _Phase, seconds: float) -> str:
    if not phase.total:
        return f"tensoropt: {phase.name}, {seconds:.0f} s"
    from tqdm import tqdm  # here, since most commands draw no bar

    width, prefix = shutil.get_terminal_size().columns - 1, f"tensoropt: {phase.name}"
    text: str = tqdm.format_meter(phase.done, phase.total, seconds, ncols=width, prefix=prefix, bar_format=BAR)
    return text
