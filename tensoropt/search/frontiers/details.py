"""Collect what a report needs beside the plans: steps and decisions of some points of a frontier, and baselines."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from ...common.progress import Progress
from ...costs.held_bytes import least_held_bytes
from ...ft import InfeasibleError
from ...ir.graph import Graph
from .decisions import decisions, user_source
from .found_points import FoundPoints
from .step_views import step_view

MOST_POINTS = 20
STORED_BASELINES = ("data-parallel", "optcnn", "tofu", "mesh-tensorflow")
COMPARED = "data-parallel"
"""The baseline whose plan is stored too, for what differs from it."""


def viewed_points(n_points: int, wanted: set[int]) -> list[int]:
    """Return the points whose steps are stored: all of few, else those that are wanted, the ends, some evenly between."""
    if n_points <= MOST_POINTS:
        return list(range(n_points))
    n_between = max(2, MOST_POINTS - len(wanted))
    evenly = {round(i * (n_points - 1) / (n_between - 1)) for i in range(n_between)}
    return sorted(wanted | evenly)


def details_of(
    frontier: FoundPoints,
    model: str = "",
    chosen: int | None = None,
    baselines: tuple[str, ...] = STORED_BASELINES,
    progress: Progress | None = None,
    known: Mapping[str, FoundPoints] | None = None,
) -> dict[str, Any]:
    """Return the details of a frontier as a JSON value.

    Args:
        model: the model's name.
        chosen: the number of the point that was chosen.
        baselines: the names of baselines to search.
        progress: called with (phase, done, total) now and then; the phases are ``steps`` and ``baselines``.
        known: baselines that were found already, by name.
    """
    graph = frontier.model.graph.full_batch
    wanted = {frontier.turning_number, *(() if chosen is None else (chosen,))}
    points = viewed_points(len(frontier), wanted)
    views = {}
    for done, point in enumerate(points):
        if progress is not None:
            progress("steps", done, len(points))
        views[str(point)] = _view(frontier, point)
    found = []
    for done, name in enumerate(baselines if graph is frontier.model.graph else ()):
        if progress is not None:
            progress("baselines", done, len(baselines))
        with contextlib.suppress(InfeasibleError):  # a baseline may have no strategy
            found.append(_baseline(name, (known or {}).get(name) or frontier.baseline(name)))
    return {
        "model": model,
        "chosen": chosen,
        "views": views,
        "baselines": found,
        **_of_operators(graph),
        "least_peak_bytes": least_held_bytes(graph, frontier.mesh.n_devices),
    }


def details_of_stage(frontier: FoundPoints, point: int) -> dict[str, Any]:
    """Return the details of a stage with a point of its frontier, for a report of that alone."""
    return {"views": {"0": _view(frontier, point)}, **_of_operators(frontier.model.graph.full_batch)}


def _view(frontier: FoundPoints, point: int) -> dict[str, Any]:
    return {**step_view(frontier, point), "decisions": decisions(frontier, point)}


def _of_operators(graph: Graph) -> dict[str, Any]:
    """Return the user's lines, and the shapes of results, by operator."""
    own = [op for op in graph.operators.values() if op.updates is None]
    return {
        "sources": {op.name: user_source(op) for op in own if user_source(op)},
        "shapes": {op.name: list(op.result.shape) for op in own if op.outputs},
    }


def _baseline(name: str, found: FoundPoints) -> dict[str, Any]:
    """Return the points that a baseline found, with its plan if that is compared."""
    points = [
        {"sum_bytes": point.sum_bytes, "time_us": point.time_us, "peak_bytes": found.peak_bytes(number)}
        for number, point in enumerate(found.points)
    ]
    told: dict[str, Any] = {"name": name, "points": points}
    if name == COMPARED:
        plan = found.plan(0)
        told["plan"] = {**plan.to_json(), "frontier": []}
    return told
