"""Run ``tensoropt explain PLAN``: what a plan's time and memory are spent on. It doesn't import TensorFlow."""

from __future__ import annotations

import argparse

from ...common.files import reading_value
from .answers import add_json_argument, answer, check_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``tensoropt explain``."""
    parser.usage = "tensoropt explain PLAN.json [--json [FILE]]"
    parser.add_argument("plan", metavar="PLAN.json", help="what search --plan or plan.save wrote")
    add_json_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run ``tensoropt explain`` and return the exit code."""
    from ...report.explanation import Around, explanation
    from ...report.explanation_text import explanation_text
    from ...report.reading import read_plan

    check_json(arguments)
    plan = read_plan(arguments.plan)
    with reading_value("plan", arguments.plan):
        told = explanation(plan, Around())
        text = explanation_text(told)
    return answer(arguments, told, text)
