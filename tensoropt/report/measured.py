"""Place what a check measured at the point of a frontier whose plan it ran."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..common.errors import InputError
from ..common.memory_units import memory_text
from .plan_rows import Row
from .timelines import checked_timeline

COMPARED = ("step_us", "compute_us", "network_us", "memory_bytes")


def measured_at(points: Sequence[Row], check: Row, file: str) -> dict[str, Any]:
    """Return what a report shows of a check: predicted and measured costs, the measured step, and the number of its point.

    Args:
        check: the JSON value of the check.
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
