"""Show plans, frontiers and curves in a notebook: small tables and a picture, as HTML without a script."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

from tabulate import tabulate

from ...common.memory_units import memory_text
from ...common.words import listed
from ..sentences import time_text

MOST_ROWS = 8
WIDTH, HEIGHT, MARGIN = 460, 220, 12
SUM, SUM_GOES = "paper's sum per device", "where the paper's sum goes"


def plan_html(facts: dict[str, Any]) -> str:
    """Return an explanation as HTML: the stages, where time and memory go, and the layers."""
    stages = facts["stages"]
    rows = [
        [str(number), listed(stage["devices"]), memory_text(stage["peak_bytes"] or stage["sum_bytes"]),
         time_text(stage["time_us"]), f"{stage['idle_share']:.0%}"]
        for number, stage in enumerate(stages)
    ]  # fmt: skip
    table = _table(rows, ("stage", "devices", "memory per device", "time", "idle"))
    return f"<p>{html.escape(facts['summary'])}</p>{table}{''.join(map(_stage_html, stages))}"


def _stage_html(facts: dict[str, Any]) -> str:
    """Return what the time and the memory of a stage are spent on."""
    time = [[row["name"], time_text(row["time_us"])] for row in facts["time"][:MOST_ROWS]]
    memory = [[row["name"], memory_text(round(row["bytes"]))] for row in facts["memory"][:MOST_ROWS]]
    layers = [
        [row["name"], time_text(row["time_us"]), time_text(row["network_time_us"]), memory_text(row["sum_bytes"])]
        for row in facts["layers"][:MOST_ROWS]
    ]
    return (
        f"{_table(time, ('where the time goes', 'per step'))}{_table(memory, (SUM_GOES, 'per device'))}"
        f"{_table(layers, ('layer', 'compute', 'network', 'memory'))}"
    )


def frontier_html(summary: str, points: Sequence[Any], marked: dict[str, int], numbers: Sequence[int]) -> str:
    """Return a frontier as HTML: a picture of time against memory, and a table of some points.

    Args:
        points: with ``sum_bytes`` and ``time_us``.
        marked: numbers of points to mark, by what they are.
        numbers: those of the points in the table.
    """
    names = {number: name for name, number in marked.items()}
    rows = [[str(i + 1), memory_text(points[i].sum_bytes), time_text(points[i].time_us), names.get(i, "")] for i in numbers]
    picture = _picture([(point.sum_bytes, point.time_us) for point in points], marked)
    return f"<p>{html.escape(summary)}</p>{picture}{_table(rows, ('point', SUM, 'time per step', ''))}"


def curve_html(cluster: str, points: Sequence[Any]) -> str:
    """Return a curve over device counts as HTML.

    Args:
        points: with ``parallelism``, ``peak_bytes`` and ``time_us``, None where nothing fits.
    """
    rows = [
        [
            point.cluster,
            str(point.parallelism),
            memory_text(point.peak_bytes),
            "does not fit" if point.time_us is None else time_text(point.time_us),
            "" if point.samples_per_s is None else f"{point.samples_per_s:,.0f}",
        ]
        for point in points
    ]
    fitting = [point for point in points if point.time_us is not None]
    is_line = len({point.cluster for point in fitting}) == 1
    picture = _picture([(point.parallelism, point.time_us) for point in fitting] if is_line else [], {})
    table = _table(rows, ("cluster", "devices", "memory per device", "time per step", "samples/s"))
    return f"<p>{html.escape(cluster)}</p>{picture}{table}"


def _table(rows: Sequence[Sequence[str]], headers: Sequence[str]) -> str:
    # This format escapes what is in the cells.
    text: str = tabulate(rows, headers, tablefmt="html", disable_numparse=True)
    return text


def _picture(points: Sequence[tuple[float, float]], marked: dict[str, int]) -> str:
    """Return a line through some points as SVG, with some of them marked; nothing for less than two."""
    if len(points) < 2:
        return ""
    (left, right), (low, high) = ((min(values), max(values)) for values in zip(*points, strict=True))
    inner_width, inner_height = WIDTH - 2 * MARGIN, HEIGHT - 2 * MARGIN

    def at(point: tuple[float, float]) -> tuple[float, float]:
        x = (point[0] - left) / (right - left) if right > left else 0.0
        y = (point[1] - low) / (high - low) if high > low else 0.0
        return MARGIN + x * inner_width, HEIGHT - MARGIN - y * inner_height

    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(at, points))
    marks = ""
    for name, number in marked.items():
        x, y = at(points[number])
        title = f"<title>{html.escape(name)}</title>"
        marks += f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="none" stroke="#d9822b" stroke-width="2">{title}</circle>'
    return (
        f'<svg width="{WIDTH}" height="{HEIGHT}" role="img" aria-label="time per step, downwards less">'
        f'<polyline points="{line}" fill="none" stroke="#4c8bd6" stroke-width="2"/>{marks}</svg>'
    )
