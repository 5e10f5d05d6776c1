"""The data of a report: one JSON value, from which all that the page shows is drawn.

A plan is shown as a frontier of one point. Rows stay in the pools of the frontier's file, with the columns that say which of
them each point has; what is added up of them is added up here, for all points at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..common.memory_units import default_limit
from ..reschedule.mesh import AXIS_NAMES
from .config_words import config_words
from .explanation import (
    ACCUMULATED,
    COLLECTIVES,
    COMPUTE,
    COPIES,
    OVERLAP,
    OVERLAPPED,
    PARAMETERS,
    TAKEN,
    UPDATES,
    ways_text,
)  # fmt: skip
from .frontier_rows import FrontierRows
from .plan_rows import PlanRows, Row
from .sentences import differing_sentences, plan_sentences

FORMAT, VERSION = "tensoropt/report", 2
_TIMES = ("time_us", "compute_time_us", "network_time_us", "overlap_time_us")


def report_data(
    frontier: FrontierRows, title: str, chosen: int | None = None, measured: Row | None = None, curve: Row | None = None
) -> dict[str, Any]:
    """Return the data of a report.

    Args:
        title: the name of what is reported, for the page's title.
        chosen: the number of the point that is shown first; the file's own choice or the fastest one by default.
        measured: what a check measured, see :mod:`.measured`, which is shown beside what was predicted.
        curve: the JSON value of a curve over device counts.
    """
    value, details = frontier.value, frontier.value.get("details", {})
    rows = frontier.plan(0)
    mesh = rows.mesh
    baselines = details.get("baselines", [])
    other = next((PlanRows(each["plan"]) for each in baselines if "plan" in each), None)
    return {
        "format": FORMAT,
        "version": VERSION,
        "title": title,
        "model": details.get("model", ""),
        "hardware": value["hardware"],
        "devices": mesh.n_devices,
        "mesh": str(mesh),
        "axes": [
            {"name": AXIS_NAMES[axis], "size": size, "level": mesh.levels[mesh.level_of_axis[axis]].name}
            for axis, size in enumerate(mesh.sizes)
        ],
        "micro_batches": rows.micro_batches,
        "summary": value["summary"],
        "objectives": list(frontier.objectives),
        "assumed": value["assumed"],
        "device_memory_bytes": rows.device_bytes,
        "default_limit_bytes": None if rows.device_bytes is None else default_limit(rows.device_bytes),
        "turning_point": frontier.turning_point,
        "chosen": frontier.chosen if chosen is None else chosen,
        "points": _points(frontier),
        "bound": value["bound"],
        "baselines": [{"name": each["name"], "points": each["points"]} for each in baselines],
        "columns": list(value["columns"]),
        "operators": _operators(frontier, details),
        "reshardings": _reshardings(frontier, rows),
        "time_parts": _time_parts(frontier, rows),
        "memory_parts": _memory_parts(frontier),
        "views": {point: _view(frontier, int(point), view, other) for point, view in _views(details).items()},
        "measured": measured,
        "curve": None if curve is None else curve["curve"],
    }


def frontier_of_plan(plan: PlanRows) -> FrontierRows:
    """Return a plan as a frontier of one point."""
    value = plan.value
    common = ("name", "type")
    operators = [
        {**{key: op[key] for key in common}, "column": 0, "choices": [{key: op[key] for key in op if key not in common}]}
        for op in plan.operators
    ]
    point = {"memory_bytes": value["memory_bytes"], "time_us": value["time_us"], "compute_time_us": value["compute_time_us"],
             "network_time_us": plan.network_time_us, "overlap_time_us": plan.overlap_time_us, "exact": value["exact"],
             "peak_bytes": plan.peak_bytes}  # fmt: skip
    return FrontierRows({
        "hardware": str(value["assumed"].get("hardware", "unknown hardware")),
        "mesh": value["mesh"],
        "model_digest": value["model_digest"],
        "micro_batches": plan.micro_batches,
        "assumed": value["assumed"],
        "summary": plan.summary(),
        "objectives": ["memory", "time"],
        "bound": None,
        "points": [point],
        "columns": ["0"],
        "operators": operators,
        "reshardings": [{"column": 0, "choices": [list(range(len(plan.reshardings)))], "pool": list(plan.reshardings)}],
    })


def _views(details: Row) -> Mapping[str, Row]:
    views: Mapping[str, Row] = details.get("views", {})
    return views


def _points(frontier: FrontierRows) -> dict[str, list[Any]]:
    """Return the costs of all points as columns."""
    points = frontier.points
    return {
        "memory_bytes": [point["memory_bytes"] for point in points],
        "peak_bytes": [point.get("peak_bytes") for point in points],
        **{key: [point.get(key, 0.0) for point in points] for key in _TIMES},
        "exact": [point["exact"] for point in points],
    }


def _operators(frontier: FrontierRows, details: Row) -> list[dict[str, Any]]:
    """Return the operators with the rows that occur, each with its config in words."""
    sources, shapes = details.get("sources", {}), details.get("shapes", {})
    parts = frontier.value["operators"]
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
                {**row, "words": config_words(part["type"], row["config"], row["results"])} for row in part["choices"]
            ],
        }
        for part in parts
    ]


def _reshardings(frontier: FrontierRows, rows: PlanRows) -> list[dict[str, Any]]:
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
                    "words": ways_text(rows, row),
                    "time_us": row["time_us"],
                    "copy_bytes": row.get("copy_bytes", 0),
                    "accumulator_bytes": row.get("accumulator_bytes", 0),
                    "is_regathered": row.get("is_regathered", False),
                }
                for row in part["pool"]
            ],
        }
        for part in frontier.value["reshardings"]
    ]


def _by_point(frontier: FrontierRows, part: Row, amounts: Sequence[float]) -> np.ndarray:
    """Return the amount of each point, number[P], from the amount of each choice of a part."""
    return np.array(amounts)[frontier.columns[part["column"]]]


def _time_parts(frontier: FrontierRows, rows: PlanRows) -> list[dict[str, Any]]:
    """Return what the time of each point is spent on; see :func:`.explanation.time_parts`."""
    sums: dict[tuple[str, str], np.ndarray] = {}

    def add(key: tuple[str, str], amounts: np.ndarray) -> None:
        sums[key] = sums.get(key, 0.0) + amounts

    for part in frontier.value["operators"]:
        name = UPDATES if part["type"] == "Variable" else part["type"]
        add((COMPUTE, name), _by_point(frontier, part, [row["time_us"] for row in part["choices"]]))
    for part in frontier.value["reshardings"]:
        words = [ways_text(rows, row) for row in part["pool"]]
        for kind in dict.fromkeys(words):
            amounts = [
                math.fsum(part["pool"][i]["time_us"] for i in choice if words[i] == kind) for choice in part["choices"]
            ]
            add((COLLECTIVES, kind), _by_point(frontier, part, amounts))
    hidden = np.array([point.get("overlap_time_us", 0.0) for point in frontier.points])
    if hidden.any():
        add((OVERLAP, OVERLAPPED), -hidden)
    return _ordered([{"part": part, "name": name, "time_us": amounts} for (part, name), amounts in sums.items()], "time_us")


def _memory_parts(frontier: FrontierRows) -> list[dict[str, Any]]:
    """Return what the memory of each point is spent on; see :func:`.explanation.memory_parts`."""
    sums: dict[str, np.ndarray] = {}

    def add(name: str, amounts: np.ndarray) -> None:
        sums[name] = sums.get(name, 0) + amounts

    for part in frontier.value["operators"]:
        name = PARAMETERS if part["type"] == "Variable" else f"saved for the backward pass of {part['type']}"
        add(name, _by_point(frontier, part, [row["memory_bytes"] for row in part["choices"]]))
    for part in frontier.value["reshardings"]:
        pool = part["pool"]
        summed = [row.get("accumulator_bytes", 0) for row in pool]
        copies = [0 if row.get("is_regathered", False) else row.get("copy_bytes", 0) for row in pool]
        add(ACCUMULATED, _by_point(frontier, part, [sum(summed[i] for i in choice) for choice in part["choices"]]))
        add(COPIES, _by_point(frontier, part, [sum(copies[i] for i in choice) for choice in part["choices"]]))
    total = np.array([point["memory_bytes"] for point in frontier.points])
    sums[TAKEN] = total - sum(sums.values())
    return _ordered([{"name": name, "bytes": amounts} for name, amounts in sums.items()], "bytes")


def _ordered(parts: list[dict[str, Any]], what: str) -> list[dict[str, Any]]:
    """Return parts by their largest amount in any point, as lists; those that are always 0 are left out."""
    kept = [part for part in parts if part[what].any()]
    kept.sort(key=lambda part: -part[what].max())
    return [{**part, what: np.round(part[what], 6).tolist()} for part in kept]


def _view(frontier: FrontierRows, point: int, view: Row, other: PlanRows | None) -> dict[str, Any]:
    """Return what is stored of a point, with the sentences on its choices, beside those of another plan."""
    plan = frontier.plan(point)
    differing = [] if other is None else differing_sentences(plan, other)
    return {**view, "sentences": [*plan_sentences(plan, view), *differing]}
