"""Say that a plan needs more memory than the device has that it was found for."""

from __future__ import annotations

from ..common.memory_units import default_limit, memory_text
from .plan_rows import PlanRows, Row


def too_large_text(plan: PlanRows, fitting: tuple[int, Row] | None = None) -> str | None:
    """Return the sentence that a plan needs more memory than its device has, and what would fit; None if it doesn't.

    Args:
        fitting: the number and the costs of the fastest point of its frontier that fits the device; None if none is known.
    """
    needed, has = plan.needed_bytes, plan.device_bytes
    if has is None or needed <= has:
        return None
    device = plan.value["assumed"].get("device", "the device")
    said = f"this plan needs {memory_text(needed)} per device, but {device} has {memory_text(has)}: it won't run there"
    limit = default_limit(has)
    if fitting is None:
        ways = f"within {limit} bytes (--memory, or memory=), which tries micro-batches, too, or on more devices"
        return f"{said}; search {ways}"
    point, costs = fitting
    fits = memory_text(costs.get("peak_bytes") or costs["sum_bytes"])
    return f"{said}; point {point + 1} fits with {fits} and {costs['time_us'] / 1e3:,.4g} ms per step (--memory {limit})"
