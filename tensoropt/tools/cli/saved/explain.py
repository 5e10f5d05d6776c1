"""Run ``tensoropt explain``: what the time and memory of a plan, or of a frontier's point, are spent on.

It doesn't import TensorFlow.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ....common.errors import InputError, short
from ....common.files import reading_value
from ....common.memory_units import parse_memory
from ..answers import add_json_argument, answer, check_json_path

if TYPE_CHECKING:
    from ....report.frontier_rows import FrontierRows


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "tensoropt explain PLAN.json|FRONTIER.json [--point N | --memory SIZE] [--json [FILE]]"
    parser.add_argument("file", metavar="FILE.json", help="what search --plan or --frontier wrote, or save of either")
    one = parser.add_mutually_exclusive_group()
    one.add_argument("--point", metavar="N", help="a frontier's point, as its table numbers them; default: the chosen one")
    one.add_argument("--memory", metavar="SIZE", help="a frontier's fastest point within a limit: 16GB (10^9), 15GiB (2^30)")
    add_json_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run ``tensoropt explain`` and return the exit code."""
    from ....report.explanation import explanation
    from ....report.explanation_text import explanation_text
    from ....report.reading import read_points

    limit = None if arguments.memory is None else parse_memory(arguments.memory)
    check_json_path(arguments, arguments.file)
    rows = read_points(arguments.file)
    with reading_value("file", arguments.file):
        point = _point(rows, arguments.point, limit)
        facts = explanation(rows.plan(point), *rows.facts_of(point))
        text = explanation_text(facts)
    return answer(arguments, facts, text)


def _point(frontier: FrontierRows, number: str | None, limit_bytes: int | None) -> int:
    """Return the number of a point: the given one, the fastest within a limit, or the chosen one."""
    from ....report.reading import nothing_fits_text

    if number is not None:
        if not number.isdecimal() or not 1 <= int(number) <= len(frontier):
            raise InputError(f"--point takes the number of a point from 1 to {len(frontier)}, got {short(number)}")
        return int(number) - 1
    point = frontier.chosen if limit_bytes is None else frontier.fastest_within(limit_bytes)
    if point is None:
        assert limit_bytes is not None
        raise InputError(nothing_fits_text(frontier, limit_bytes))
    return point
