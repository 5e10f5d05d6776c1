"""The fewest devices that meet a memory limit and a deadline, and why not fewer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tabulate import tabulate

from ..common.memory_units import memory_text
from ..common.words import counted
from ..reschedule.mesh import mesh_of
from .frontier_rows import FrontierRows
from .plan_rows import Row

FORMAT, VERSION = "tensoropt/recommendation", 1


def of_curve(curve: Row, limit_bytes: int, deadline_us: float | None) -> dict[str, Any]:
    """Return the recommendation that a curve leads to.

    A curve has one plan for each number of devices, the fastest. Where that meets the deadline but needs more than the
    limit, a slower plan may need less: then it isn't known whether that many devices do.
    """
    searched = curve["memory_limit_bytes"]
    judged = []
    for point in sorted(curve["curve"], key=lambda point: point["parallelism"]):
        row = {key: point[key] for key in ("parallelism", "memory_bytes", "time_us", "samples_per_s")}
        judged.append({**row, **_judged(point, searched, limit_bytes, deadline_us)})
    return _recommendation(judged, curve["cluster"], limit_bytes, deadline_us)


def of_frontier(frontier: FrontierRows, limit_bytes: int, deadline_us: float | None) -> dict[str, Any]:
    """Return the recommendation that the frontier of one number of devices leads to."""
    at = frontier.fastest_within(limit_bytes)
    shown = frontier.least_point() if at is None else at
    point = {
        "parallelism": mesh_of(frontier.value["mesh"]).n_devices,
        "fits": at is not None,
        "memory_bytes": frontier.needed_bytes(shown),
        "time_us": None if at is None else frontier.points[at]["time_us"],
        "samples_per_s": None,
    }
    row = {key: value for key, value in point.items() if key != "fits"}
    judged = [{**row, **_judged(point, limit_bytes, limit_bytes, deadline_us)}]
    return _recommendation(judged, frontier.value["hardware"], limit_bytes, deadline_us)


def _judged(point: Row, searched: int | None, limit_bytes: int, deadline_us: float | None) -> dict[str, Any]:
    """Return whether a number of devices does (None where it isn't known), and why not."""
    count = point["parallelism"]
    devices = counted(count, "device")
    is_within = searched is not None and searched < limit_bytes
    unknown = {"does": None, "why": f"{devices}: the curve was found within {memory_text(searched or 0)} only"}
    needed, limit = memory_text(point["memory_bytes"]), memory_text(limit_bytes)
    if not point["fits"]:
        if point["memory_bytes"] <= limit_bytes:
            return unknown
        return {"does": False, "why": f"{devices}: needs {needed} per device, the limit is {limit}"}
    if deadline_us is not None and point["time_us"] > deadline_us:
        # No plan is faster than the fastest, be it within the limit or not.
        takes, most = (f"{time_us / 1e3:,.4g} ms" for time_us in (point["time_us"], deadline_us))
        return unknown if is_within else {"does": False, "why": f"{devices}: {takes} per step, the deadline is {most}"}
    if point["memory_bytes"] > limit_bytes:
        return {"does": None, "why": f"{devices}: its fastest plan needs {needed}, and the curve doesn't tell of others"}
    return {"does": True, "why": ""}


def _recommendation(
    judged: Sequence[dict[str, Any]], cluster: str, limit_bytes: int, deadline_us: float | None
) -> dict[str, Any]:
    chosen = next((row for row in judged if row["does"]), None)
    fewer = [row for row in judged if chosen is None or row["parallelism"] < chosen["parallelism"]]
    return {
        "format": FORMAT,
        "version": VERSION,
        "cluster": cluster,
        "memory_limit_bytes": limit_bytes,
        "deadline_us": deadline_us,
        "devices": None if chosen is None else chosen["parallelism"],
        "memory_bytes": None if chosen is None else chosen["memory_bytes"],
        "time_us": None if chosen is None else chosen["time_us"],
        "samples_per_s": None if chosen is None else chosen["samples_per_s"],
        "why_not_fewer": [row["why"] for row in fewer],
        "candidates": list(judged),
    }


def row_text(told: Mapping[str, Any]) -> str:
    """Return in a line whether the only number of devices of a recommendation does, and at what cost or why not."""
    (row,) = told["candidates"]
    if not row["does"]:
        return str(row["why"])
    devices = counted(row["parallelism"], "device")
    return f"{devices}: {row['time_us'] / 1e3:,.4g} ms per step, {memory_text(row['memory_bytes'])} per device"


def recommendation_text(told: Mapping[str, Any]) -> str:
    """Return the recommendation in words, with the numbers of devices as a table."""
    limit = f"within {memory_text(told['memory_limit_bytes'])} per device"
    limit += "" if told["deadline_us"] is None else f" and {told['deadline_us'] / 1e3:,.4g} ms per step"
    if told["devices"] is None:
        lines = [f"no number of devices of {told['cluster']} is known to train it {limit}"]
    else:
        count = told["devices"]
        lines = [
            f"{counted(count, 'device')} of {told['cluster']}: {told['time_us'] / 1e3:,.4g} ms per step, "
            f"{memory_text(told['memory_bytes'])} per device, {limit}"
        ]
    lines += [f"why not {'fewer' if told['devices'] else ''}".rstrip() + ":"] if told["why_not_fewer"] else []
    lines += [f"  {why}" for why in told["why_not_fewer"]]
    rows = [
        [
            row["parallelism"],
            memory_text(row["memory_bytes"]),
            "does not fit" if row["time_us"] is None else f"{row['time_us']:,.1f}",
            "" if row["samples_per_s"] is None else f"{row['samples_per_s']:,.0f}",
            {True: "yes", False: "no", None: "not known"}[row["does"]],
        ]
        for row in told["candidates"]
    ]
    table = tabulate(
        rows, ("devices", "memory per device", "time (us)", "samples/s", "does"), disable_numparse=True,
        colalign=(*("right",) * 4, "left"),
    )  # fmt: skip
    return "\n".join(lines) + f"\n\n{table}"
