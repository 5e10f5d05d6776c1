"""The data of a report of a plan with stages: the step of all stages, and of each what the report of a plan has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .page_data import FORMAT, VERSION, frontier_of_plan, report_data
from .plan_rows import Row
from .stage_rows import OF_A_STAGE, StageRows


def stages_report(rows: StageRows, title: str, details: Sequence[Row | None] | None = None) -> dict[str, Any]:
    """Return the data of a report of a plan with stages: the step of all of them, and of each what a plan's report has.

    Args:
        title: the name of what is reported, for the page's title.
        details: for each stage what is known beside its plan; see :func:`.page_data.frontier_of_plan`.
    """
    value = rows.value
    stages = []
    for stage, plan, known in zip(value["stages"], rows.plans, details or [None] * len(rows.plans), strict=True):
        data = report_data(frontier_of_plan(plan, known), title, first_rank=stage["devices"][0])
        told = {key: stage[key] for key in OF_A_STAGE}
        stages.append({**told, "deferred": stage.get("deferred", 0), "report": data})
    return {
        "format": FORMAT,
        "version": VERSION,
        "title": title,
        "summary": rows.summary(),
        "devices": rows.devices,
        "schedule": value["schedule"],
        "micro_batches": value["micro_batches"],
        **rows.interleaved,
        "memory_bytes": value["memory_bytes"],
        "time_us": value["time_us"],
        "timeline": value["timeline"],
        "stages": stages,
    }
