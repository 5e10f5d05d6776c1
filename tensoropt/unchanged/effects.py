"""Have what a script does besides training happen once: its random numbers, its output and its input are rank 0's."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import random
import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TextIO

from ..common.errors import InputError, short
from ..common.process.progress import Display
from ..common.source_lines import line_at, running_line
from ..runtime.failures.notes import SEED
from ..runtime.ranks import Processes, current_processes

ALL_OUTPUT = "TENSOROPT_ALL_OUTPUT"
SHOWN, MOST_KEPT = ("tensoropt", "traceback", "threading", "logging"), 10_000
"""The packages whose code writes errors, and the characters that are kept of what else a rank writes to stderr."""


@cache
def say_once(sentence: str) -> None:
    """Have rank 0 say a sentence, the first time that it is to."""
    Display(current_processes().rank == 0).say(sentence)


@cache
def say_unsaved(call: str) -> None:
    """Have rank 0 say, if the run is kept in checkpoints, that what such a call of the script's trains isn't."""
    if SEED in os.environ:
        say_once(
            f"--checkpoint saves what fit trains, and {call} ({running_line()}) isn't saved: use fit, or import tensoropt "
            "in the script and take steps of what parallelize or training_step returns from tensoropt.Survive(folder).steps"
        )


def noting_files(processes: Processes) -> Callable[[], None]:
    """Note which files Python's code opens to write from now on.

    Return a function that all ranks call at the script's end, by which rank 0 tells of files that others wrote as well.
    """
    lines: dict[str, str] = {}

    def see(event: str, arguments: Sequence[Any]) -> None:
        if event == "open" and isinstance(arguments[0], str) and not set(arguments[1] or "").isdisjoint("wax+"):
            with contextlib.suppress(Exception):  # which would keep the file from being opened
                lines.setdefault(os.path.abspath(arguments[0]), line_at("", sys._getframe(1)))

    def end_script() -> None:  # this name is in messages of ranks that wait
        first, *other_ranks = processes.gather(lines, "the files that the script has written")
        twice = [path for path in first if os.path.isfile(path) and any(path in files for files in other_ranks)]
        if twice:
            names = short(", ".join(map(os.path.basename, twice)))
            say_once(
                f"each rank has written {names} ({first[twice[0]]}), as it does all that the script writes itself; write in "
                "a callback, which rank 0 alone runs"
            )

    sys.addaudithook(see)
    return end_script


def share_seed(processes: Processes) -> int:
    """Seed Python's and NumPy's random numbers alike on all ranks, and return the seed: rank 0's, or that of a kept run."""
    import numpy as np

    own_seed = int(os.environ.get(SEED) or int.from_bytes(os.urandom(4), "little"))
    seed: int = processes.broadcast(own_seed, "the seed of random numbers")
    random.seed(seed)
    np.random.seed(seed)
    return seed


def share_streams(processes: Processes) -> None:
    """Drop what ranks other than 0 print and log, but not errors, and give all ranks the input of rank 0.

    With ``TENSOROPT_ALL_OUTPUT=1`` each line that is printed is shown, behind its rank.
    """
    if os.environ.get(ALL_OUTPUT, "0") not in ("", "0"):
        sys.stdout = Tagged(sys.stdout, f"[rank {processes.rank}] ")
    elif processes.rank:
        sys.stdout.flush()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.stderr = Kept(sys.stderr, "")
        logging.StreamHandler.emit = _emitting(logging.StreamHandler.emit)  # type: ignore[method-assign]
    sys.stdin = SharedInput(sys.stdin, processes)


def _emitting(emit: Callable[..., None]) -> Callable[..., None]:
    """Return the method by which handlers of logs write, without the script's warnings, which rank 0 writes too."""

    def emit_own(handler: Any, record: logging.LogRecord) -> None:
        is_own = record.levelno >= logging.ERROR or record.name.startswith("tensoropt")
        if is_own or handler.stream not in (sys.stderr, sys.__stderr__):
            emit(handler, record)

    return emit_own


class Tagged(io.TextIOBase):
    """A stream that writes whole lines, each behind a tag."""

    def __init__(self, stream: TextIO, tag: str) -> None:
        self._stream, self._tag, self._line, self._kept = stream, tag, "", ""

    def write(self, text: str) -> int:
        *lines, self._line = (self._line + text).split("\n")
        for line in lines:
            self._stream.write(f"{self._tag}{line}\n")
        return len(text)

    def flush(self) -> None:
        if self._line:
            self.write("\n")
        self._stream.flush()

    def fileno(self) -> int:
        return self._stream.fileno()

    def writable(self) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class Kept(Tagged):
    """A stream that shows errors, and what a script prints to it only ahead of an error of TensorOpt's."""

    def write(self, text: str) -> int:
        writer = getattr(sys._getframe().f_back, "f_globals", {}).get("__name__", "").partition(".")[0]  # none at exit
        if writer not in SHOWN:
            self._kept = (self._kept + text)[-MOST_KEPT:]
            return len(text)
        if writer == "tensoropt":
            text, self._kept = self._kept + text, ""
        return self._stream.write(text)


class SharedInput(io.TextIOBase):
    """Standard input, which rank 0 reads for all ranks."""

    def __init__(self, stream: TextIO | None, processes: Processes) -> None:
        self._stream, self._processes = stream, processes

    def readable(self) -> bool:
        return True

    def readline(self, size: int | None = -1, /) -> str:  # type: ignore[override]
        return self._read("readline", size)

    def read(self, size: int | None = -1, /) -> str:
        return self._read("read", size)

    def _read(self, method: str, size: int | None) -> str:
        text, refusal = "", ""
        if self._processes.rank == 0:
            try:
                text = getattr(self._stream, method)(-1 if size is None else size)
            except (OSError, ValueError, AttributeError) as error:
                refusal = str(error)
        text, refusal = self._processes.broadcast((text, refusal), "what rank 0 reads from standard input")
        if refusal:
            raise InputError(f"standard input of rank 0 can't be read ({refusal}); give the script some, as by < FILE")
        return text

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
