"""Print what ``tensoropt search`` found, and write its files."""

from __future__ import annotations

import argparse

from ...common.files import write_json
from ...common.progress import Display
from ...plan.plan import Plan
from ...plan.scaling_curve import Curve
from ...search.compare import Comparison
from .frontier_outputs import write_frontier
from .search_report import SearchSetup, plot, result_json, result_text


def write_result(
    arguments: argparse.Namespace, setup: SearchSetup, result: Plan | Curve, compared: Comparison | None, display: Display
) -> None:
    """Print what was found, and write the files that are asked for.

    Args:
        compared: the plan's frontier beside what baselines found; None where none were asked.
    """
    print(result_text(setup, result))
    for note in () if compared is None else compared.notes_below():
        print(f"note      {note}")
    if arguments.plan is not None and not isinstance(result, Curve):
        result.save(arguments.plan)
    if not isinstance(result, Curve):
        assert result.frontier is not None, "a plan that was just found has its frontier"
        baselines = None if compared is None else compared.baselines
        write_frontier(arguments, result.frontier, result.point, display, baselines)
    if arguments.json is not None:
        write_json(arguments.json, result_json(setup, result), "result")
    if arguments.plot is not None:
        plot(result, arguments.plot)
    for output in (arguments.plan, arguments.frontier, arguments.json, arguments.plot, arguments.report):
        if output is not None:
            print(f"wrote {output}")
