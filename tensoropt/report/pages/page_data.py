"""The data of a report: one JSON value, from which all that the page shows is drawn.

A plan is shown as a frontier of one point. Rows stay in the pools of the frontier's file, with the columns that say which of
them each point has; what is added up of them is added up here, for all points at once.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ...common.memory_units import default_limit
from ...reschedule.mesh import AXIS_NAMES
from ..curve_files import unbeaten
from ..explanation import (
    ACCUMULATED,
    COLLECTIVES,
    COMPUTE,
    COPIES,
    OVERLAP,
    OVERLAPPED,
    PARAMETERS,
    TAKEN,
    TIMES,
    UPDATES,
    ways_text,
)  # fmt: skip
from ..frontier_rows import FrontierRows, one_point
from ..plan_rows import PlanRows, Row, StageRows
from ..sentences import config_words, point_sentences

FORMAT, VERSION = "tensoropt/report", 6
_Amounts = tuple[Hashable, Row, Sequence[float]]  # what is added up by key: a part, and its amounts by choice


def report_data(
    frontier: FrontierRows,
    title: str,
    chosen: int | None = None,
    measured: Row | None = None,
    curve: Row | None = None,
    first_rank: int = 0,
) -> dict[str, Any]:
    """Return the data of a report.

    Args:
        title: the name of what is reported, for the page's title.
        chosen: the number of the point that is shown first; the file's own choice or the fastest one by default.
        measured: what a check measured, see :func:`.plan_page.measured_at`, which is shown beside what was predicted.
        curve: the JSON value of a curve over device counts.
        first_rank: the number of the first of the devices, which isn't 0 in a stage that others come before.
    """
    value, details = frontier.value, frontier.value.get("details", {})
    (search,) = value["searches"]
    plan = frontier.plan(0)
    rows = plan.stages[0]
    mesh = rows.mesh
    other = next((PlanRows(baseline["plan"]) for baseline in details.get("baselines", []) if "plan" in baseline), None)
    words = {number: [ways_text(rows, row) for row in part["pool"]] for number, part in enumerate(search["reshardings"])}
    return {
        "format": FORMAT,
        "version": VERSION,
        "title": title,
        "model": details.get("model", ""),
        "hardware": value["hardware"],
        "devices": mesh.n_devices,
        "first_rank": first_rank,
        "mesh": str(mesh),
        "axes": [
            {"name": AXIS_NAMES[axis], "size": size, "level": mesh.levels[mesh.level_of_axis[axis]].name}
            for axis, size in enumerate(mesh.sizes)
        ],
        "micro_batches": plan.micro_batches,
        "summary": value["summary"],
        "objectives": list(frontier.objectives),
        "assumed": value["assumed"],
        "device_memory_bytes": plan.device_bytes,
        "default_limit_bytes": None if plan.device_bytes is None else default_limit(plan.device_bytes),
        "turning_point": frontier.turning_point,
        "chosen": frontier.chosen if chosen is None else chosen,
        "points": _points(frontier),
        "bound": value["bound"],
        "peak_bound": _peak_bound(frontier, details),
        "baselines": baselines_of(details),
        "columns": list(search["columns"]),
        "operators": _operators(frontier, details),
        "reshardings": _reshardings(frontier, rows, words),
        "time_parts": _time_parts(frontier, words),
        "memory_parts": _memory_parts(frontier),
        "views": {
            point: {**view, "sentences": point_sentences(frontier, int(point), view, other)}
            for point, (view,) in details.get("views", {}).items()
        },
        "peaks": details.get("peaks", {}),
        "measured": measured,
        "curve": None if curve is None else curve["curve"],
        "unbeaten": [] if curve is None else unbeaten(curve["curve"]),
    }


def baselines_of(details: Row) -> list[dict[str, Any]]:
    """Return the names and the points of the baselines that a frontier's details have."""
    return [{key: baseline[key] for key in ("name", "points")} for baseline in details.get("baselines", [])]


def frontier_of_stage(plan: PlanRows, number: int = 0, details: Row | None = None) -> FrontierRows:
    """Return a stage of a plan as a frontier of one point.

    Args:
        details: what a report shows beside the plan, if it is known; see the details of a frontier's file.
    """
    stage = plan.stages[number]
    common = ("name", "type")
    operators = [
        {**{key: op[key] for key in common}, "column": 0, "choices": [{key: op[key] for key in op if key not in common}]}
        for op in stage.operators
    ]
    return FrontierRows({
        **one_point(plan, stage.value),
        "bound": None,
        "searches": [{
            "columns": ["0"],
            "operators": operators,
            "reshardings": [
                {"column": 0, "choices": [list(range(len(stage.reshardings)))], "pool": list(stage.reshardings)}
            ],
        }],
        "details": {"peaks": {} if stage.peak is None else {"0": stage.peak}, **(details or {})},
    })


def _peak_bound(frontier: FrontierRows, details: Row) -> dict[str, int] | None:
    """Return what is proven of peaks and times: the least of either that any plan has; None if nothing is proven.

    A bound of the sum that is searched isn't one of peaks, but for the least time, which it proves whatever the memory.
    """
    least, bound = details.get("least_peak_bytes"), frontier.value["bound"]
    is_proven = bound is not None or all(point["exact"] for point in frontier.points)
    if least is None or not is_proven or frontier.objectives != ("memory", "time"):
        return None
    fastest = min(point["time_us"] for point in frontier.points)
    return {"mem_bytes": least, "time_ns": bound["time_ns"][-1] if bound else round(fastest * 1e3)}


def _points(frontier: FrontierRows) -> dict[str, list[Any]]:
    points = frontier.points
    return {
        "sum_bytes": [point["sum_bytes"] for point in points],
        "peak_bytes": [point.get("peak_bytes") for point in points],
        **{key: [point.get(key, 0.0) for point in points] for key in TIMES},
        "exact": [point["exact"] for point in points],
        "gap": [point.get("gap") for point in points],
    }


def _operators(frontier: FrontierRows, details: Row) -> list[dict[str, Any]]:
    """Return the operators with the rows that occur, each with its config in words."""
    sources, shapes = details.get("sources", {}), details.get("shapes", {})
    parts = frontier.value["searches"][0]["operators"]
    layers = frontier.layers
    return [
        {
            "name": part["name"],
            "type": part["type"],
            "layer": layers[part["name"]],
            "source": sources.get(part["name"], ""),
            "shape": shapes.get(part["name"]),
            "column": part["column"],
            "choices": [
                {**row, "words": config_words(part["type"], row["config"], tuple(row["results"]))} for row in part["choices"]
            ],
        }
        for part in parts
    ]


def _reshardings(frontier: FrontierRows, rows: StageRows, words: Mapping[int, Sequence[str]]) -> list[dict[str, Any]]:
    """Return the reshardings that occur, in words."""
    return [
        {
            "column": part["column"],
            "choices": [list(choice) for choice in part["choices"]],
            "pool": [
                {
                    "tensor": row["tensor"],
                    "consumer": row["consumers"][0],
                    "consumers": len(row["consumers"]),
                    "layer": rows.layer_of(row),
                    "shape": row["shape"],
                    "forward": [row["forward"][0], row["forward"][-1]],
                    "ways": [way.text for way in rows.executed(row)],
                    "words": text,
                    "time_us": row["time_us"],
                    "copy_bytes": row.get("copy_bytes", 0),
                    "accumulator_bytes": row.get("accumulator_bytes", 0),
                    "is_regathered": row.get("is_regathered", False),
                }
                for row, text in zip(part["pool"], words[number], strict=True)
            ],
        }
        for number, part in enumerate(frontier.value["searches"][0]["reshardings"])
    ]


def _time_parts(frontier: FrontierRows, words: Mapping[int, Sequence[str]]) -> list[dict[str, Any]]:
    """Return what the time of each point is spent on; see :func:`..explanation.time_parts`."""
    terms: list[_Amounts] = []
    for part in frontier.value["searches"][0]["operators"]:
        name = UPDATES if part["type"] == "Variable" else part["type"]
        terms.append(((COMPUTE, name), part, [row["time_us"] for row in part["choices"]]))
    for number, part in enumerate(frontier.value["searches"][0]["reshardings"]):
        pool, kinds = part["pool"], words[number]
        for kind in dict.fromkeys(kinds):
            amounts = [math.fsum(pool[i]["time_us"] for i in choice if kinds[i] == kind) for choice in part["choices"]]
            terms.append(((COLLECTIVES, kind), part, amounts))
    sums = _sums(frontier, terms)
    parts = [{"part": part, "name": name, "time_us": amounts} for (part, name), amounts in sums.items()]
    hidden = np.array([point.get("overlap_time_us", 0.0) for point in frontier.points])
    return _ordered([*parts, {"part": OVERLAP, "name": OVERLAPPED, "time_us": -hidden}], "time_us")


def _memory_parts(frontier: FrontierRows) -> list[dict[str, Any]]:
    """Return what the memory of each point is spent on; see :func:`..explanation.memory_parts`."""
    terms: list[_Amounts] = []
    for part in frontier.value["searches"][0]["operators"]:
        name = PARAMETERS if part["type"] == "Variable" else f"saved for the backward pass of {part['type']}"
        terms.append((name, part, [row["sum_bytes"] for row in part["choices"]]))
    for part in frontier.value["searches"][0]["reshardings"]:
        pool = part["pool"]
        summed = [row.get("accumulator_bytes", 0) for row in pool]
        copies = [0 if row.get("is_regathered", False) else row.get("copy_bytes", 0) for row in pool]
        terms.append((ACCUMULATED, part, [sum(summed[i] for i in choice) for choice in part["choices"]]))
        terms.append((COPIES, part, [sum(copies[i] for i in choice) for choice in part["choices"]]))
    amounts = _sums(frontier, terms)
    total = np.array([point["sum_bytes"] for point in frontier.points])
    amounts[TAKEN] = total - sum(amounts.values())
    return _ordered([{"name": name, "bytes": n_bytes} for name, n_bytes in amounts.items()], "bytes")


def _sums(frontier: FrontierRows, amounts: Iterable[_Amounts]) -> dict[Any, np.ndarray]:
    """Return sums of amounts by key at each point, number[P].

    A part has one of a few choices at each point, and most parts change at the same points: they have one column. Amounts
    are added up by choice first and spread over the points once for each column, which is a tenth of the work of doing so
    for each part.
    """
    by_column: dict[tuple[Hashable, int, int], Any] = {}
    for key, part, of_choices in amounts:
        column = key, part["column"], len(of_choices)
        by_column[column] = by_column.get(column, 0) + np.array(of_choices)
    sums: dict[Any, Any] = {}
    for (key, number, _), of_choices in by_column.items():
        sums[key] = sums.get(key, 0) + of_choices[frontier.columns[0][number]]
    return sums


def _ordered(parts: list[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    """Return parts by their largest amount in any point, as lists; those that are always 0 are left out."""
    nonzero = [part for part in parts if part[key].any()]
    nonzero.sort(key=lambda part: -part[key].max())
    return [{**part, key: np.round(part[key], 6).tolist()} for part in nonzero]
