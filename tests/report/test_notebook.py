"""What a notebook shows of plans, frontiers and curves: well-formed HTML with their numbers, no name as an element."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

import tensoropt
from tensoropt.common.memory_units import memory_text
from tensoropt.plan.scaling_curve import Curve, CurvePoint
from tensoropt.report.sentences import time_text


def cells(shown) -> set[str]:
    """The texts of all table cells."""
    bundle = shown._repr_mimebundle_(include=None, exclude=None)
    assert bundle == {"text/plain": repr(shown), "text/html": shown._repr_html_()}
    tree = ElementTree.fromstring(f"<div>{bundle['text/html']}</div>")
    assert not list(tree.iter("img")) and not list(tree.iter("script"))
    return {"".join(cell.itertext()).strip() for cell in tree.iter() if cell.tag in ("td", "th", "p")}


def test_a_plan_shows_where_time_and_memory_go(found):
    plan = found.turning_point()
    told = plan.explanation()
    shown = cells(plan)
    assert {plan.summary(), told["time"][0]["name"], time_text(told["time"][0]["time_us"])} <= shown
    assert memory_text(told["memory"][0]["bytes"]) in shown


def test_a_frontier_shows_its_points(found, frontier_file):
    for frontier in (found, tensoropt.load_frontier(frontier_file)):
        shown = cells(frontier)
        first, last = frontier.points[0], frontier.points[-1]
        assert {time_text(first.time_us), memory_text(last.memory_bytes), "turning point"} <= shown
        assert "<polyline" in frontier._repr_html_()


def test_a_curve_shows_what_fits():
    points = (CurvePoint(1, False, 4000, None, None, True), CurvePoint(2, True, 2000, 1500.0, 64.0, True))
    curve = Curve(points, "<img src=x onerror=alert(1)>", 64, None)
    assert {"does not fit", "1.5 ms", "4 kB", "<img src=x onerror=alert(1)>"} <= cells(curve)
    assert "<polyline" in replace(curve, points=(points[1], replace(points[1], parallelism=4)))._repr_html_()
