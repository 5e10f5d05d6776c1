"""Run the command line ``tensoropt``: one module for each command, imported only when its command is given.

A command is a line in :data:`COMMANDS`. Its module has ``add_arguments(parser)`` and ``run(arguments)``, which returns
the exit code or raises; :func:`main` turns an exception into a sentence and an exit code: 0 done, 1 failed while
running, 2 wrong use or input.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import os
import re
import select
import signal
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

from ... import __version__
from ...common.errors import TensorOptError
from ...common.process.streams import open_closed_streams
from ...runtime.failures.error_handling import exit_code_of, is_debugging
from ...runtime.ranks import launched_as

# name: (module, what it does)
COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("tensoropt.tools.cli.runs.run", "run a script on several ranks"),
    "search": ("tensoropt.tools.cli.searches.search", "find a model's plans for hardware that needn't be at hand"),
    "check": ("tensoropt.tools.cli.runs.check", "hold a plan against what it predicted"),
    "simulate": ("tensoropt.tools.cli.runs.simulate", "simulate a plan's step on a cluster's devices and links"),
    "timeline": ("tensoropt.tools.cli.runs.timeline", "trace where a plan's step goes, for a browser"),
    "doctor": ("tensoropt.tools.cli.runs.doctor", "tell what this installation has, and what is missing in it"),
    "calibrate": ("tensoropt.tools.cli.runs.calibrate", "measure these devices and their links"),
    "explain": ("tensoropt.tools.cli.saved.explain", "tell what a plan's time and memory are spent on"),
    "diff": ("tensoropt.tools.cli.saved.diff", "tell what differs between two plans, or between frontiers"),
    "plans": ("tensoropt.tools.cli.saved.plans", "list a frontier's fastest plans within a memory limit"),
    "recommend": ("tensoropt.tools.cli.searches.recommend", "tell which devices meet limits of memory, time and money"),
    "curve": ("tensoropt.tools.cli.saved.curve", "write a curve over devices for a cluster scheduler"),
    "report": ("tensoropt.tools.cli.saved.report", "write a page on a frontier or a plan, for a browser"),
    "compare": ("tensoropt.tools.cli.searches.compare", "hold a model's frontier against what other algorithms choose"),
}
OF_A_FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Numbers of errors that what is printed ends in where it goes to a file; files that a command writes have sentences."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Print what is wrong with the arguments, and exit with 2."""
        if "are required" in message and "--json" in sys.argv:
            message += "; --json takes the word after it as the file to write: put --json last, or write --json=FILE"
        super().error(message)


def build_parser(chosen: str | None) -> argparse.ArgumentParser:
    """Return the parser; only the chosen command's module is imported, so that help is quick."""
    # --debug may stand before or after the command: tensoropt --debug run, tensoropt run --debug.
    debug = _Parser(add_help=False)
    debug.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help="show traces of errors")
    parser = _Parser(
        prog="tensoropt",
        description="Automatic parallel training for TensorFlow.",
        epilog="Exit codes: 0 done, 1 failed while running, 2 wrong use or input.",
        parents=[debug],
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"tensoropt {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (module, summary) in COMMANDS.items():
        subparser = subparsers.add_parser(name, help=summary, description=summary, parents=[debug], allow_abbrev=False)
        if name == chosen:
            importlib.import_module(module).add_arguments(subparser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code (argparse itself exits with 2 on wrong use)."""
    open_closed_streams()
    argv = sys.argv[1:] if argv is None else argv
    chosen = next((word for word in argv if not word.startswith("-")), None)
    arguments = build_parser(chosen).parse_args(argv if chosen == "run" else _with_negative_values(argv))
    arguments.debug = getattr(arguments, "debug", False) or is_debugging()
    if arguments.debug:
        os.environ["TENSOROPT_DEBUG"] = "1"
    try:
        code = int(importlib.import_module(COMMANDS[arguments.command][0]).run(arguments) or 0)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt as error:
        rank, _ = launched_as() or (0, None)
        if rank == 0:
            print(f"\ntensoropt: {str(error) or 'interrupted'}", file=sys.stderr, flush=True)
        return 130
    except Exception as error:
        if isinstance(error, BrokenPipeError) and _output_is_closed():
            return 128 + signal.SIGPIPE
        if isinstance(error, OSError) and error.filename is None and error.errno in OF_A_FULL_DISK:
            _drop_output()
            error = TensorOptError(f"the output can't be written: {error.strerror}")
        if arguments.debug:
            traceback.print_exc()
        elif isinstance(error, TensorOptError):
            print(f"tensoropt: {error}", file=sys.stderr)
        else:
            print(f"tensoropt: {type(error).__name__}: {error} (--debug shows where)", file=sys.stderr)
        return exit_code_of(error)


def _with_negative_values(argv: Sequence[str]) -> list[str]:
    """Return the arguments with each value like ``-3GB`` joined to its option, since argparse takes it for an option."""
    joined: list[str] = []
    for word in argv:
        if joined and re.match(r"-\.?\d", word) and re.fullmatch(r"--[a-z-]+", joined[-1]):
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


def _output_is_closed() -> bool:
    """Return whether nobody reads the output any more, as after ``| head``; what is left of it is thrown away then."""
    output, poll = sys.stdout.fileno(), select.poll()
    poll.register(output, select.POLLOUT)
    if not any(events & select.POLLERR for _, events in poll.poll(0)):
        return False
    _drop_output()
    return True


def _drop_output() -> None:
    """Throw away what is still to be written to stdout: else Python complains when it flushes at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
