"""The data of a report of a frontier with stages: its points, and of some of them what the report of their plan has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .frontier_rows import FrontierRows
from .page_data import FORMAT, VERSION, frontier_of_plan, report_data
from .plan_rows import PlanRows, Row
from .stage_rows import StageRows
from .staged_page_data import stages_report

MOST_PLANS = 20
"""The most points whose plans are in a page."""
OF_A_POINT = ("time_us", "memory_bytes", "peak_bytes", "stages", "micro_batches", "idle_share")


def staged_frontier_report(
    points: Sequence[Row],
    plan_of: Callable[[int], Row],
    summary: str,
    title: str,
    chosen: int,
    details: Sequence[Row | None] | None = None,
) -> dict[str, Any]:
    """Return the data of a report of a frontier with stages.

    Args:
        points: the costs of each point, its numbers of stages and of micro-batches, and its idle share.
        plan_of: returns the JSON value of a point's plan, given the point's number.
        title: the name of what is reported, for the page's title.
        chosen: the number of the point that is shown first.
        details: for each stage of the chosen point what is known beside its plan; see :func:`.page_data.frontier_of_plan`.
    """
    shown = {chosen, *(round(i * (len(points) - 1) / (MOST_PLANS - 2)) for i in range(MOST_PLANS - 1))}
    return {
        "format": FORMAT,
        "version": VERSION,
        "title": title,
        "summary": summary,
        "chosen": chosen,
        "frontier": [{key: point[key] for key in OF_A_POINT} for point in points],
        "plans": {
            str(number): _plan_report(plan_of(number), title, details if number == chosen else None)
            for number in sorted(shown)
        },
    }


def report_of_file(rows: FrontierRows, title: str, chosen: int | None = None) -> dict[str, Any]:
    """Return the data of a report of a frontier with stages, as its file has it; see :func:`staged_frontier_report`."""
    chosen = rows.chosen if chosen is None else chosen
    return staged_frontier_report(
        rows.points, lambda number: rows.points[number]["plan"], rows.value["summary"], title, chosen
    )


def _plan_report(plan: Mapping[str, Any], title: str, details: Sequence[Row | None] | None) -> dict[str, Any]:
    if "stages" in plan:
        return stages_report(StageRows(plan), title, details)
    return report_data(frontier_of_plan(PlanRows(plan), details[0] if details else None), title)
