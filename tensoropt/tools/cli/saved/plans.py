"""Run ``tensoropt plans FRONTIER``: the fastest plans of a frontier within a memory limit. It doesn't import TensorFlow."""

from __future__ import annotations

import argparse

from ....common.errors import InputError, short
from ....common.files import reading_value
from ....common.memory_units import parse_memory
from ..answers import add_json_argument, answer, check_json_path

TOP = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "tensoropt plans FRONTIER.json [--memory SIZE] [--top K] [--json [FILE]]"
    parser.add_argument("frontier", metavar="FRONTIER.json", help="what search --frontier or plan.frontier.save wrote")
    parser.add_argument("--memory", metavar="SIZE", help="limit per device: 16GB (10^9), 15GiB (2^30); default: none")
    parser.add_argument("--top", metavar="K", default=str(TOP), help=f"how many plans; default: {TOP}")
    add_json_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run ``tensoropt plans`` and return the exit code."""
    from ....report.reading import read_frontier, selected, selected_text

    limit = None if arguments.memory is None else parse_memory(arguments.memory)
    if not arguments.top.isdecimal() or int(arguments.top) < 1:
        raise InputError(f"--top takes a number of plans from 1 up, got {short(arguments.top)}")
    check_json_path(arguments, arguments.frontier)
    frontier = read_frontier(arguments.frontier)
    with reading_value("frontier", arguments.frontier):
        facts = selected(frontier, limit, int(arguments.top))
        text = selected_text(facts)
    return answer(arguments, facts, text)
