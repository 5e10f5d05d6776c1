"""Arguments and output that the commands share which answer from files: a table, or JSON that is printed or written."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from ...common.files import check_writable, write_json

PRINTED = "-"


def add_json_argument(parser: argparse.ArgumentParser) -> None:
    """Add ``--json [FILE]``."""
    parser.add_argument(
        "--json", nargs="?", const=PRINTED, metavar="FILE", help="print the answer as JSON, or write it to FILE"
    )


def check_json_path(arguments: argparse.Namespace) -> None:
    """Refuse a file for JSON that couldn't be written, before the work."""
    if arguments.json not in (None, PRINTED):
        check_writable(arguments.json, "result")


def answer(arguments: argparse.Namespace, value: dict[str, Any], text: str) -> int:
    """Print an answer as text, or as JSON, or write the JSON and print the text; return the exit code."""
    if arguments.json == PRINTED:
        print(json.dumps(value, indent=1))
        return 0
    print(text)
    if arguments.json is not None:
        write_json(Path(arguments.json), value, "result")
        print(f"wrote {arguments.json}")
    return 0
