"""The data of a report: of a plan, whose stages have a report each, or of a frontier whose points have whole plans."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ...common.errors import InputError
from ...common.memory_units import memory_text
from ..explanation import OF_A_STAGE
from ..frontier_rows import FrontierRows
from ..plan_rows import PlanRows, Row, checked_timeline
from .page_data import FORMAT, VERSION, baselines_of, frontier_of_stage, report_data

MOST_PLANS = 20
"""The most points whose plans are in a page."""
COMPARED = ("step_us", "compute_us", "network_us", "memory_bytes")
"""The costs that a check has measured and predicted."""
OF_A_POINT = ("time_us", "sum_bytes", "peak_bytes", "stages", "micro_batches", "idle_share", "gap")


def plan_report(
    plan: PlanRows,
    title: str,
    details: Row | None = None,
    point: int = 0,
    measured: Row | None = None,
    curve: Row | None = None,
) -> dict[str, Any]:
    """Return the data of a report of a plan: of one stage that of its frontier of one point, of several the step of all of
    them, and of each what the report of one has.

    Args:
        title: the name of what is reported, for the page's title.
        details: what its frontier's file has beside the plans.
        point: the number of its point there.
        measured, curve: see :func:`.page_data.report_data`.
    """
    value, details = plan.value, details or {}
    of_operators = {key: details.get(key, {}) for key in ("sources", "shapes")}
    views = [[view] for view in details.get("views", {}).get(str(point), ())]
    measured = measured and {**measured, "point": 0}  # each stage's report has one point
    reports = [
        report_data(
            frontier_of_stage(plan, number, {**of_operators, "views": dict(zip(["0"], views[number:], strict=False))}),
            title,
            measured=measured,
            curve=curve,
            first_rank=stage.value["devices"][0],
        )
        for number, stage in enumerate(plan.stages)
    ]
    if len(reports) == 1:
        return reports[0]
    return {
        "format": FORMAT,
        "version": VERSION,
        "title": title,
        "summary": plan.summary,
        "devices": plan.mesh.n_devices,
        "schedule": value["schedule"],
        **{key: value[key] for key in ("sum_bytes", "peak_bytes", "time_us", "timeline")},
        "stages": [
            {**{key: stage.value[key] for key in OF_A_STAGE}, "report": report}
            for stage, report in zip(plan.stages, reports, strict=True)
        ],
    }


def report_of(
    rows: FrontierRows, title: str, chosen: int | None = None, measured: Row | None = None, curve: Row | None = None
) -> dict[str, Any]:
    """Return the data of a report of a frontier or a plan as its file has it; see :func:`.page_data.report_data`.

    Of points that have whole plans, each of some has the report of its own.
    """
    if rows.only_plan is not None:
        return plan_report(rows.only_plan, title, measured=measured, curve=curve)
    if rows.is_whole:
        return report_data(rows, title, chosen, measured, curve)
    if chosen is None:
        chosen = rows.chosen if measured is None else measured["point"]
    details = rows.value.get("details", {})
    numbers = {chosen, *(round(i * (len(rows) - 1) / (MOST_PLANS - 2)) for i in range(MOST_PLANS - 1))}
    return {
        "format": FORMAT,
        "version": VERSION,
        "title": title,
        "summary": rows.value["summary"],
        "chosen": chosen,
        "frontier": [{key: point[key] for key in OF_A_POINT} for point in rows.points],
        "baselines": baselines_of(details),
        "plans": {
            str(number): plan_report(
                rows.plan(number), title, details, number, measured if number == chosen else None, curve
            )
            for number in sorted(numbers)
        },
    }


def measured_at(points: Sequence[Row], check: Row, file: str) -> dict[str, Any]:
    """Return what a report shows of a check: predicted and measured costs, the measured step, and the number of its point.

    Args:
        file: the check's name, for the message.

    Raises:
        InputError: the check ran another plan.
    """
    costs = {key: {field: check[key][field] for field in ("name", "predicted", "measured")} for key in COMPARED}
    if not all(math.isfinite(row["predicted"]) and math.isfinite(row["measured"]) for row in costs.values()):
        raise ValueError("a cost isn't finite")
    timeline = checked_timeline(check["timeline"])
    predicted_us = costs["step_us"]["predicted"]
    fits = [i for i, point in enumerate(points) if math.isclose(point["time_us"], predicted_us, rel_tol=1e-9)]
    if not fits:
        raise InputError(
            f"check '{file}' ran a plan of {predicted_us:,.1f} us, expected one of those that the report shows, such as "
            f"{points[-1]['time_us']:,.1f} us and {memory_text(points[-1]['sum_bytes'])}; run check --json on the plan of "
            "one of them"
        )
    return {**costs, "timeline": timeline, "point": fits[0]}
