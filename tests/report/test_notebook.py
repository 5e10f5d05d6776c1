"""What a notebook shows of plans, frontiers and curves: well-formed HTML with their numbers, no name as an element."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

import nbformat
from nbclient import NotebookClient

import tensoropt
from tensoropt.common.memory_units import memory_text
from tensoropt.plan.scaling_curve import Curve, CurvePoint
from tensoropt.report.sentences import time_text


def cells(shown) -> set[str]:
    """The texts of all table cells."""
    tree = ElementTree.fromstring(f"<div>{shown._repr_html_()}</div>")
    assert not list(tree.iter("img")) and not list(tree.iter("script"))
    return {"".join(cell.itertext()).strip() for cell in tree.iter() if cell.tag in ("td", "th", "p")}


def test_a_plan_shows_where_time_and_memory_go(found):
    plan = found.turning_point()
    told = plan.explanation()["stages"][0]
    shown = cells(plan)
    assert {plan.summary(), told["time"][0]["name"], time_text(told["time"][0]["time_us"])} <= shown
    assert memory_text(told["memory"][0]["bytes"]) in shown


def test_a_frontier_shows_its_points(found, frontier_file):
    for frontier in (found, tensoropt.load_frontier(frontier_file)):
        shown = cells(frontier)
        first, last = frontier.points[0], frontier.points[-1]
        assert {time_text(first.time_us), memory_text(last.sum_bytes), "turning point"} <= shown
        assert "<polyline" in frontier._repr_html_()


def test_a_curve_shows_what_fits():
    points = (CurvePoint(1, False, 4000, None, None, True), CurvePoint(2, True, 2000, 1500.0, 64.0, True))
    curve = Curve((replace(points[0], cluster="<img src=x onerror=alert(1)>"), points[1]))
    assert {"does not fit", "1.5 ms", "4 kB", "<img src=x onerror=alert(1)>"} <= cells(curve)
    assert "<polyline" in replace(curve, points=(points[1], replace(points[1], parallelism=4)))._repr_html_()


CURVE = """
from tensoropt.plan.scaling_curve import Curve, CurvePoint
Curve((CurvePoint(1, False, 4000, None, None, True), CurvePoint(2, True, 2000, 1500.0, 64.0, True)))
"""


def test_a_notebooks_kernel_shows_them(found, frontier_file):
    """Jupyter's own kernel runs the cells, and what ends a cell is shown as HTML, without TensorFlow."""
    cells = [
        f"import tensoropt\nfrontier = tensoropt.load_frontier({str(frontier_file)!r})\nfrontier",
        "frontier.plan(1)", CURVE, "import sys\n'tensorflow' in sys.modules",
    ]  # fmt: skip
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
    shown = [cell.outputs[-1]["data"] for cell in notebook.cells]
    loaded = tensoropt.load_frontier(frontier_file)
    assert shown[0] == {"text/plain": repr(loaded), "text/html": loaded._repr_html_()}
    assert shown[1] == {"text/plain": repr(loaded.plan(1)), "text/html": loaded.plan(1)._repr_html_()}
    assert "does not fit" in shown[2]["text/html"] and "does not fit" in shown[2]["text/plain"]
    assert shown[3] == {"text/plain": "False"}
