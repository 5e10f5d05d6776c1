"""Run a script or a module as Python does, on each rank: ``python -m tensoropt.unchanged OPTIONS [-m] PROGRAM ...``."""

from __future__ import annotations

import json
import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from traceback import walk_tb
from typing import Any, NoReturn

from ..common.errors import InputError
from .copied_input import COPY_AT, opened_copy
from .effects import noting_files
from .start import start, untrained

REFUSED_AT, AS_WRITTEN, TO_FILE = "refused_at", "as_written", "to_file"
"""The keys in the options: a file to make if the script is refused; if it runs as written; if its output goes to a file."""


def command(options: dict[str, Any], program: Sequence[str]) -> list[str]:
    """Return the arguments of Python that run a program, a script or ``-m`` and a module, with its arguments."""
    return ["-m", __package__, json.dumps(options), *program]


def main(arguments: Sequence[str]) -> None:
    """Run the program that :func:`command` was given."""
    options = json.loads(arguments[0])
    refused_at, copy_at = options.pop(REFUSED_AT, None), options.pop(COPY_AT, None)
    is_module = arguments[1] == "-m"
    program = list(arguments[2 if is_module else 1 :])
    if copy_at is not None:
        sys.stdin = opened_copy(copy_at)
    if options.pop(AS_WRITTEN, False):
        return _run(program, is_module)
    if options.pop(TO_FILE, False):
        sys.stdout.isatty = lambda: False  # type: ignore[method-assign]  # mpirun gives ranks terminals all the same
    try:
        processes = start(options)
        tell_of_files = noting_files(processes)
        _run(program, is_module)
        if refusal := untrained():
            raise refusal
        tell_of_files()
    except SystemExit as exit_error:
        modules = (str(frame.f_globals.get("__name__")) for frame, _ in walk_tb(exit_error.__traceback__))
        is_led = any(name.startswith("tensoropt.trainer") for name in modules)
        if not exit_error.code and not is_led:  # else the other ranks may wait for rank 0, in a generator
            tell_of_files()
        sys.exit(exit_error.code)  # which tells the other ranks
    except BaseException as error:
        if refused_at is not None and isinstance(error, InputError):
            Path(refused_at).touch()
        _report(error)


def _run(program: list[str], is_module: bool) -> None:
    sys.argv = program
    if is_module:
        sys.path[0] = os.getcwd()
        runpy.run_module(program[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = os.path.dirname(os.path.abspath(program[0]))
        runpy.run_path(program[0], run_name="__main__")


def _report(error: BaseException) -> NoReturn:
    """Report an exception of the script's as Python does, with the script's own frames, and end."""
    own_trace, metadata = error.__traceback__, getattr(error, "ag_error_metadata", None)
    while own_trace is not None and own_trace.tb_frame.f_globals.get("__name__") != "__main__":
        own_trace = own_trace.tb_next
    own_trace = own_trace or error.__traceback__  # all of it if none of it is the script's
    if isinstance(error, InputError) and metadata is not None:  # AutoGraph has put the sentence into a trace
        error = InputError(str(metadata.cause_message).removeprefix(f"{type(error).__name__}: "))
    sys.excepthook(type(error), error.with_traceback(own_trace), own_trace)
    sys.exit(1)
