"""Run ``tensoropt curve``: print a curve's file as a table, or write it for a cluster scheduler."""

from __future__ import annotations

import argparse
from pathlib import Path

from ....common.errors import InputError
from ....common.files import check_writable, reading_value
from ..answers import printable

# A copy of those in curve_files.py, so that help is quick.
TARGETS = ("gavel", "sia", "csv")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("curve", metavar="CURVE.json", help="what search --option profiling --json wrote")
    parser.add_argument("--to", choices=TARGETS, default="csv", help="for whom: Gavel, Sia, or a table; default: csv")
    parser.add_argument("-o", dest="folder", type=Path, default=Path(), metavar="FOLDER", help="default: the current one")


def run(arguments: argparse.Namespace) -> int:
    """Run ``tensoropt curve`` and return the exit code."""
    from ....report.curve_files import files_of
    from ....report.reading import read_curve

    value = read_curve(arguments.curve)
    with reading_value("curve", arguments.curve):
        files = files_of(value, arguments.to)
    if not arguments.folder.is_dir():
        raise InputError(f"there is no folder '{arguments.folder}'; make it, or leave out -o")
    for name in files:
        check_writable(arguments.folder / name, "table")
    for name, text in files.items():
        (arguments.folder / name).write_text(text, encoding="utf-8")
        print(printable(f"wrote {arguments.folder / name}"))
    return 0
