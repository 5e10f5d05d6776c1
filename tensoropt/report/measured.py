"""Place what a check measured at the point of a frontier whose plan it ran."""

from __future__ import annotations

import math
from typing import Any

from ..common.errors import InputError
from ..common.memory_units import memory_text
from .frontier_rows import FrontierRows
from .plan_rows import Row

COMPARED = ("step_us", "compute_us", "network_us", "memory_bytes")
_NUMBERS_OF_A_TASK = 6


def measured_at(frontier: FrontierRows, check: Row, file: str) -> dict[str, Any]:
    """Return what a report shows of a check: predicted and measured costs, the measured step, and the number of its point.

    Args:
        check: the JSON value of the check.
        file: the check's name, for the message.

    Raises:
        InputError: the check ran another plan than those of the frontier.
    """
    told = {key: {what: check[key][what] for what in ("name", "predicted", "measured")} for key in COMPARED}
    if not all(math.isfinite(row["predicted"]) and math.isfinite(row["measured"]) for row in told.values()):
        raise ValueError("a cost isn't finite")
    timeline = {key: check["timeline"][key] for key in ("makespan_ns", "devices", "operators", "kinds", "tasks")}
    for text in filter(None, timeline["tasks"].split(";")):
        numbers = [int(number) for number in text.split(",")]
        if len(numbers) != _NUMBERS_OF_A_TASK:
            raise ValueError(f"a task has {len(numbers)} numbers, expected {_NUMBERS_OF_A_TASK}")
        for column, key in ((0, "devices"), (4, "operators"), (5, "kinds")):
            _ = timeline[key][numbers[column]]
    predicted_us = told["step_us"]["predicted"]
    fits = [i for i, point in enumerate(frontier.points) if math.isclose(point["time_us"], predicted_us, rel_tol=1e-9)]
    if not fits:
        raise InputError(
            f"check '{file}' ran a plan of {predicted_us:,.1f} us, expected one of those that the report shows, such as "
            f"{frontier.points[frontier.chosen]['time_us']:,.1f} us and "
            f"{memory_text(frontier.points[frontier.chosen]['memory_bytes'])}; run check --json on the plan of one of them"
        )
    return {**told, "timeline": timeline, "point": fits[0]}
