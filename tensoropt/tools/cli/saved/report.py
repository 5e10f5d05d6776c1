"""Run ``tensoropt report``: one HTML file on a frontier or a plan, for a browser. It doesn't import TensorFlow."""

from __future__ import annotations

import argparse
from pathlib import Path

from ....common.errors import InputError
from ....common.files import CHECK, check_writable, read_json, reading_value
from ....common.process.garbage import nothing_collected
from ....common.words import counted
from ..answers import add_json_argument, answer, check_apart, check_json_path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "tensoropt report FRONTIER.json|PLAN.json [-o OUT.html] [OPTION ...]"
    parser.add_argument("file", metavar="FILE.json", help="what search --frontier or --plan wrote, or save of either")
    parser.add_argument("-o", "--output", type=Path, metavar="OUT.html", help="default: FILE.html, beside FILE.json")
    parser.add_argument("--measured", metavar="CHECK.json", help="what check --json wrote, shown beside the predictions")
    parser.add_argument("--curve", metavar="CURVE.json", help="a curve over device counts, shown beside the frontier")
    add_json_argument(parser)


@nothing_collected()
def run(arguments: argparse.Namespace) -> int:
    """Run ``tensoropt report`` and return the exit code."""
    from ....report.pages.page import write_report
    from ....report.pages.plan_page import measured_at, report_of
    from ....report.reading import read_curve, read_points

    file = Path(arguments.file)
    output = arguments.output or file.with_suffix(".html")
    if output.resolve() == file.resolve():
        raise InputError(f"the report would replace '{file}', which it is of; give another file by -o")
    check_writable(output, "report")
    check_apart(output, "-o", arguments.measured, arguments.curve)
    check_json_path(arguments, file, output, arguments.measured, arguments.curve)
    rows = read_points(file)
    check = None if arguments.measured is None else read_json(arguments.measured, "check", *CHECK)
    curve = None if arguments.curve is None else read_curve(arguments.curve)
    with reading_value("check", arguments.measured or ""):
        measured = None if check is None else measured_at(rows.points, check, arguments.measured)
    with reading_value("file", file):
        data = report_of(rows, file.name, measured=measured, curve=curve)
    write_report(data, output)
    size = output.stat().st_size / 1e6
    text = f"wrote {output}: {counted(len(rows), 'point')}, {size:.1f} MB; open it in a browser"
    return answer(arguments, data, text)
