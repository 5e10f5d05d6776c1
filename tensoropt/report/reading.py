"""Read the files that can be explained: plans, which are told of as frontiers of one point, frontiers and curves; select
points within limits, the fastest first.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from ..common.errors import InputError
from ..common.files import CURVE, FRONTIER, PLAN, check_signed, read_json_of, reading_value
from ..common.memory_units import memory_text
from .frontier_rows import COSTS, FrontierRows
from .tables import COSTS_HEADERS, memory_or_blank, table

_KINDS = {"plan": PLAN, "frontier": FRONTIER, "curve": CURVE}
File = str | os.PathLike[str]
Result = TypeVar("Result")


def read_as(file: File, **by_kind: Callable[[Any], Result]) -> Result:
    """Read a file of one of some kinds, ``plan``, ``frontier`` and ``curve``; return what is made of its value.

    Args:
        by_kind: for each kind, what to make of the JSON value of such a file; damage may raise whatever error it leads to.

    Raises:
        InputError: the file can't be read, is cut off, changed, damaged, or of another kind or version.
    """
    checks = {"frontier": partial(check_signed, "frontier", file)}
    kind, value = read_json_of(file, {kind: _KINDS[kind] for kind in by_kind}, checks)
    with reading_value(kind, file):
        return by_kind[kind](value)


def read_points(file: File) -> FrontierRows:
    """Read a plan or a frontier; see :func:`read_as`."""
    return read_as(file, plan=FrontierRows.of_plan, frontier=FrontierRows)


def read_frontier(file: File) -> FrontierRows:
    """Read a frontier; see :func:`read_as`."""
    return read_as(file, frontier=FrontierRows)


def read_curve(file: File) -> dict[str, Any]:
    """Read a curve, which stays a JSON value; see :func:`read_as`."""
    return read_as(file, curve=dict)


FORMAT, VERSION = "tensoropt/plans", 4
IN_PASSES = {"stages": "stages", "micro_batches": "micro-\nbatches"}


def selected(frontier: FrontierRows, limit_bytes: int | None, most: int) -> dict[str, Any]:
    """Return the fastest points within a limit as a JSON value, the fastest first.

    Args:
        limit_bytes: the memory limit per device; None without a limit.
        most: how many points at most.

    Raises:
        InputError: no point fits; the message says which memory would do.
    """
    fitting = frontier.within(limit_bytes)
    if not fitting:
        assert limit_bytes is not None
        raise InputError(nothing_fits_text(frontier, limit_bytes))
    shown = [(number, frontier.points[number]) for number in fitting[:most]]
    least_us = shown[0][1]["time_us"]
    return {
        "format": FORMAT,
        "version": VERSION,
        "hardware": frontier.value["hardware"],
        "summary": frontier.value["summary"],
        "memory_limit_bytes": limit_bytes,
        "fitting": len(fitting),
        "plans": [
            {
                "point": number,
                **{key: point[key] for key in (*COSTS, *IN_PASSES, "idle_share", "gap")},
                "slower": point["time_us"] / least_us - 1 if least_us else 0.0,
                "is_turning_point": number == frontier.turning_point,
            }
            for number, point in shown
        ],
    }


def nothing_fits_text(frontier: FrontierRows, limit_bytes: int) -> str:
    """Return the sentence that no point fits, with the least memory that would do."""
    least = frontier.needed_bytes(frontier.least_point())
    return (
        f"no plan of this frontier fits {limit_bytes:,} bytes ({memory_text(limit_bytes)}) per device: the least is "
        f"{least:,} bytes ({memory_text(least)}); ask for --memory {least} or more, or search within the limit (search "
        f"--memory {limit_bytes}), which tries micro-batches, too, or on more devices"
    )


def selected_text(facts: dict[str, Any]) -> str:
    passes = [key for key in IN_PASSES if any(row[key] > 1 for row in facts["plans"])]
    rows = [
        [
            row["point"] + 1,
            memory_text(row["sum_bytes"]),
            memory_or_blank(row["peak_bytes"]),
            *(f"{row[key]:,.1f}" for key in ("time_us", "compute_time_us", "network_time_us")),
            f"{row['slower']:+.1%}",
            f"{row['gap']:.1%}",
            *(str(row[key]) for key in passes),
            "turning point" if row["is_turning_point"] else "",
        ]
        for row in facts["plans"]
    ]
    headers = ("point", *COSTS_HEADERS, "slower", "gap", *map(IN_PASSES.__getitem__, passes), "")
    limit = facts["memory_limit_bytes"]
    within = "" if limit is None else f" within {memory_text(limit)} per device"
    return f"{table(rows, headers, 0)}\n{len(rows)} of {facts['fitting']} points{within}; {facts['summary']}"
