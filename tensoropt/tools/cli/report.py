"""Run ``tensoropt report``: one HTML file on a frontier or a plan, for a browser. It doesn't import TensorFlow."""

from __future__ import annotations

import argparse
import gc
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...common.errors import InputError
from ...common.files import check_writable, read_json, reading_value
from ...common.formats import CHECK
from .answers import PRINTED, add_json_argument, answer, check_apart, check_json_path

if TYPE_CHECKING:
    from ...report.frontier_rows import FrontierRows
    from ...report.plan_rows import PlanRows


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``tensoropt report``."""
    parser.usage = "tensoropt report FRONTIER.json|PLAN.json [-o OUT.html] [OPTION ...]"
    parser.add_argument("file", metavar="FILE.json", help="what search --frontier or --plan wrote, or save of either")
    parser.add_argument("-o", "--output", type=Path, metavar="OUT.html", help="default: FILE.html, beside FILE.json")
    parser.add_argument("--measured", metavar="CHECK.json", help="what check --json wrote, shown beside the predictions")
    parser.add_argument("--curve", metavar="CURVE.json", help="a curve over device counts, shown beside the frontier")
    add_json_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run ``tensoropt report`` and return the exit code."""
    is_collecting = gc.isenabled()
    gc.disable()  # all that is read lives until the page is written: looking for garbage takes a sixth of the time
    try:
        return _report(arguments)
    finally:
        if is_collecting:
            gc.enable()


def _report(arguments: argparse.Namespace) -> int:
    from ...report.frontier_rows import FrontierRows
    from ...report.page import write_report
    from ...report.reading import read_explained
    from ...report.stage_rows import StageRows
    from ...report.staged_frontier_page import report_of_file
    from ...report.staged_page_data import stages_report

    file = Path(arguments.file)
    output = arguments.output or file.with_suffix(".html")
    if output.resolve() == file.resolve():
        raise InputError(f"the report would replace '{file}', which it is of; give another file by -o")
    check_writable(output, "report")
    check_apart(output, "-o", arguments.measured, arguments.curve)
    check_json_path(arguments, file, output, arguments.measured, arguments.curve)
    rows = read_explained(file)
    if isinstance(rows, StageRows) or (isinstance(rows, FrontierRows) and rows.has_stages):
        for name, given in (("--measured", arguments.measured), ("--curve", arguments.curve)):
            if given is not None:
                raise InputError(f"{name} is shown beside plans without stages, and '{file}' has stages; leave it out")
        with reading_value("file", file):
            if isinstance(rows, StageRows):
                data, n_points = stages_report(rows, file.name), 1
            else:
                data, n_points = report_of_file(rows, file.name), len(rows)
    else:
        data, n_points = _without_stages(arguments, rows)
    write_report(data, output)
    size = output.stat().st_size / 1e6
    told = f"wrote {output}: {n_points} point{'s' * (n_points > 1)}, {size:.1f} MB; open it in a browser"
    if arguments.json == PRINTED:
        return answer(arguments, data, "")
    return answer(arguments, data, told)


def _without_stages(arguments: argparse.Namespace, rows: PlanRows | FrontierRows) -> tuple[dict[str, Any], int]:
    """Return the data of the report of a plan without stages or a frontier, and the number of its points."""
    from ...report.measured import measured_at
    from ...report.page_data import frontier_of_plan, report_data
    from ...report.plan_rows import PlanRows
    from ...report.reading import read_rows

    file = Path(arguments.file)
    check = None if arguments.measured is None else read_json(arguments.measured, "check", *CHECK)
    curve = None if arguments.curve is None else read_rows(arguments.curve, "curve")
    with reading_value("file", file):
        assert curve is None or isinstance(curve, dict)
        frontier = frontier_of_plan(rows) if isinstance(rows, PlanRows) else rows
    with reading_value("check", arguments.measured or ""):
        measured = None if check is None else measured_at(frontier, check, arguments.measured)
    with reading_value("file", file):
        return report_data(frontier, file.name, measured=measured, curve=curve), len(frontier)
