"""Arguments and output that commands share: how a model is trained; a table, or JSON that is printed or written."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

from ...common.errors import InputError
from ...common.files import check_writable, write_json

PRINTED = "-"
# A copy of those in offline.py, which imports TensorFlow.
OPTIMIZERS = ("sgd", "momentum", "adam")
OF_PLANS = {
    "stages": ("N[,N...]", "cut models into N stages; several: the best of them; default: 1 unless more pay, or alone fit"),
    "schedule": ("NAME", "the order of passes: 1f1b, gpipe, zero-bubble, interleaved; default: 1f1b or zero-bubble"),
    "micro_batches": ("K", "split a batch into K micro-batches; default: 1, and 2, 4, ... where --memory asks for that"),
    "without": ("CHOICE[,...]", "what plans must not use, of reuse, remat, zero, accumulate, stages: see how-to/search.md"),
    "profile_budget": ("TIME", "measure for about this long, such as 60s, the operators that can change the result"),
}
"""Options of plans that are those of ``find_strategy``: the word for a value, and what it does."""
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def add_json_argument(parser: argparse.ArgumentParser) -> None:
    """Add ``--json [FILE]``."""
    parser.add_argument(
        "--json", nargs="?", const=PRINTED, metavar="FILE", help="print the answer as JSON, or write it to FILE"
    )


def add_training_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that say how a model is trained that doesn't say so itself."""
    parser.add_argument(
        "--optimizer",
        choices=OPTIMIZERS,
        help=f"the optimizer of a model that names none (a loss, a Keras model not compiled); default: {OPTIMIZERS[0]}",
    )
    parser.add_argument(
        "--batch", type=int, metavar="N", help="samples per step of a Keras model, default 256, or of a model of the zoo"
    )


def check_json_path(arguments: argparse.Namespace, *others: str | Path | None) -> None:
    """Refuse a file for JSON that couldn't be written, before the work.

    Args:
        others: the other files that the command reads or writes; None for one that isn't given.

    Raises:
        InputError: it couldn't be written, or is one of them.
    """
    if arguments.json in (None, PRINTED):
        return
    check_writable(arguments.json, "result")
    check_apart(arguments.json, "--json", *others)


def check_apart(output: str | Path, option: str, *others: str | Path | None) -> None:
    """Refuse an output that would replace another file of the same command; raise InputError if it would."""
    for other in others:
        if other is not None and Path(output).resolve() == Path(other).resolve():
            raise InputError(f"{option} '{output}' would replace '{other}', which the same command names; give another file")


def files_read(arguments: argparse.Namespace) -> list[str | Path]:
    """Return the names of the model's file and the hardware's; a zoo model's and shipped hardware's are no file's."""
    named = (arguments.model, arguments.model.rpartition(":")[0], arguments.cluster)
    return [name for name in named if name]


def printable(text: str) -> str:
    """Return a text with control characters written out: names in files could move a terminal's cursor by them."""
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def answer(arguments: argparse.Namespace, value: dict[str, Any], text: str) -> int:
    """Print an answer as text, or as JSON, or write the JSON and print the text; return the exit code."""
    if arguments.json == PRINTED:
        print(json.dumps(value, indent=1))
        return 0
    print(printable(text))
    if arguments.json is not None:
        write_json(Path(arguments.json), value, "result")
        print(f"wrote {arguments.json}")
    return 0
