"""Answer for one parallelism: the point of a scaling curve."""

from __future__ import annotations

from dataclasses import replace

from ..plan.frontier import Frontier
from ..plan.scaling_curve import CurvePoint
from .asked import Request

MORE = 1.1
"""How much more memory than the limit is asked about, too."""


def unreachable_point(request: Request, parallelism: int, least_bytes: int, exact: bool) -> CurvePoint:
    """Return the point of a parallelism at which nothing fits, and the least that would be needed is known."""
    hardware, levels = request.hardware, request.hardware.mesh(parallelism).levels
    machines = levels[0].count if len(levels) > 1 else 1
    rates = hardware.price_per_hour, hardware.device.watts
    price, watts = (None if rate is None else rate * parallelism for rate in rates)
    return CurvePoint(
        parallelism, False, least_bytes, None, None, exact, cluster=hardware.name, machines=machines,
        batch=request.model.graph.batch, limit_bytes=request.limit_bytes, price_per_hour=price, watts=watts,
    )  # fmt: skip


def curve_point(frontier: Frontier, request: Request) -> CurvePoint:
    """Return the point for a frontier: its fastest plan that fits, or the one of least memory."""
    limit, points = request.limit_bytes, frontier.points
    number, smallest, margin_bytes = frontier.fastest_within(limit), frontier.least_point(), limit and round(limit * MORE)
    numbers = {smallest, number, frontier.fastest_within(margin_bytes), frontier.fastest_within(None)}
    ends = sorted((frontier.peak_bytes(i), points[i].time_us) for i in numbers if i is not None)
    count, exact = frontier.mesh.n_devices, frontier.found.exact
    blank = replace(unreachable_point(request, count, ends[0][0], exact), ends=tuple(ends))
    if number is None:
        return replace(blank, stages=frontier.passes(smallest).stages)
    time_us, compute_us = points[number].time_us, points[number].compute_time_us
    return replace(
        blank, fits=True, peak_bytes=frontier.peak_bytes(number), stages=frontier.passes(number).stages,
        time_us=time_us, compute_time_us=compute_us, network_time_us=max(time_us - compute_us, 0.0),
        samples_per_s=blank.batch / time_us * 1e6 if blank.batch and time_us else None,
    )  # fmt: skip
