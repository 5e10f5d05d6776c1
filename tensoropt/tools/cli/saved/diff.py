"""Run ``tensoropt diff A B``: what differs between two plans, or between frontiers. It doesn't import TensorFlow."""

from __future__ import annotations

import argparse

from ....common.files import reading_value
from ..answers import add_json_argument, answer, check_json_path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "tensoropt diff A.json B.json [--json [FILE]]"
    parser.add_argument("before", metavar="A.json", help="a plan, or a frontier")
    parser.add_argument("after", metavar="B.json", help="another one, of the same model or not")
    add_json_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run ``tensoropt diff`` and return the exit code."""
    from ....report.differences import differences, differences_text
    from ....report.reading import read_points

    check_json_path(arguments, arguments.before, arguments.after)
    before, after = (read_points(file) for file in (arguments.before, arguments.after))
    with reading_value("file", f"{arguments.before}' or '{arguments.after}"):
        facts = differences(before, after)
        text = differences_text(facts)
    return answer(arguments, facts, text)
