"""Show on stderr how far a command has got: bars on a terminal, lines elsewhere."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Any

from tqdm import tqdm

FIRST_S, EACH_S = 2.0, 10.0
QUIET = "TENSOROPT_QUIET"


class Bars:
    """A display on stderr of how far a command has got: on a terminal a bar for each phase that takes longer than a second.

    Elsewhere, as in a log, it writes a line after ``FIRST_S`` seconds and then one every ``EACH_S`` seconds. With
    ``TENSOROPT_QUIET=1`` there are no lines.
    """

    def __init__(self) -> None:
        self._phase, self._done, self._total = "", 0, 0
        self._bar: Any = None
        self._closing = ExitStack()
        self._is_terminal = sys.stderr.isatty()
        self._started, self._has_ended = time.monotonic(), threading.Event()

    def __enter__(self) -> Bars:
        if not self._is_terminal and os.environ.get(QUIET) != "1":
            # A thread, since some phases report nothing for long.
            thread = threading.Thread(target=self._write_lines, daemon=True)
            self._closing.callback(thread.join)
            self._closing.callback(self._has_ended.set)
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close_bar()
        self._closing.close()

    def update(self, phase: str, done: int, total: int) -> None:
        """Show that ``done`` of ``total`` parts of a phase are done."""
        if self._is_terminal:
            if phase != self._phase or done < self._done:
                self._close_bar()
                self._bar = tqdm(total=total, desc=phase, delay=1.0, leave=False, file=sys.stderr)
            self._bar.update(done - self._bar.n)
        self._phase, self._done, self._total = phase, done, total

    def _close_bar(self) -> None:
        if self._bar is not None:
            self._bar.close()

    def _write_lines(self) -> None:
        wait_s = FIRST_S
        while not self._has_ended.wait(wait_s):
            if self._phase:
                seconds = time.monotonic() - self._started
                at = f"{self._phase}, {self._done} of {self._total}"
                print(f"tensoropt: after {seconds:.0f} s: {at}", file=sys.stderr, flush=True)
            wait_s = EACH_S


Progress = Callable[[str, int, int], None]
"""A function that long work calls with the name of what it does, how many parts are done, and how many there are."""
