"""Make a frontier of plans of what one search found for a model that isn't cut, with what its file and its report have."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

from ...common.process.progress import Progress
from ...costs.held_bytes import least_held_bytes
from ...ft import InfeasibleError
from ...plan.frontier import Frontier
from ...plan.plan import Plan
from ...plan.points import thinned
from ..frontiers.compress import shared_parts
from ..frontiers.decisions import of_operators, view_of
from ..frontiers.find_other import find_baseline
from ..frontiers.model_frontier import ModelFrontier
from ..stages.points import SearchedWhole
from .staged_frontier_points import PlanPoint

MOST_POINTS = 20
"""The most points whose steps are stored."""
STORED_BASELINES = ("data-parallel", "optcnn", "tofu", "mesh-tensorflow")
COMPARED = "data-parallel"
"""The baseline whose plan is stored too, for what differs from it."""


def frontier_of_whole(frontier: ModelFrontier, assumed: Mapping[str, Any] = MappingProxyType({})) -> Frontier[PlanPoint]:
    """Return all points that a search found for a model that isn't cut, with what is proven of them by that search."""
    result = SearchedWhole.of(frontier)
    (combined,) = result.combinations
    costs = enumerate(zip(combined.stage_bytes[0].tolist(), combined.time_us.tolist(), strict=True))
    return Frontier(
        points_of=tuple(PlanPoint(result, combined.order, (number,), (peak,), time_us) for number, (peak, time_us) in costs),
        mesh=frontier.mesh,
        hardware_name=frontier.hardware.name,
        told=frontier.told,
        bound=frontier.found.bound,
        objectives=frontier.objectives,
        algorithm=frontier.found.algorithm,
        eliminations=frontier.found.eliminations,
        assumed=assumed,
        seconds_by_phase=frontier.seconds_by_phase,
        note=frontier.note,
        searched=(result,),
        is_interrupted=frontier.is_interrupted,
        shared_parts=partial(shared_parts, frontier),
        details_of=partial(details_of, frontier),
    )


def plan_beside(frontier: Frontier[Any], whole: ModelFrontier, number: int, option: str) -> Plan:
    """Return the plan of a point of a model that isn't cut, which is taken though it is no point of a frontier."""
    plan = frontier_of_whole(whole, frontier.assumed).plan(number, option)
    return replace(plan, frontier=frontier, frontier_text=frontier.table(), point=None)


def details_of(
    frontier: ModelFrontier,
    model: str = "",
    chosen: int | None = None,
    baselines: tuple[str, ...] = STORED_BASELINES,
    progress: Progress | None = None,
    known: Mapping[str, ModelFrontier] | None = None,
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
    required = {frontier.turning_number, *(() if chosen is None else (chosen,))}
    points = thinned(len(frontier), required, MOST_POINTS, MOST_POINTS - len(required))
    views = {}
    for i, point in enumerate(points):
        if progress is not None:
            progress("steps", i, len(points))
        views[str(point)] = view_of(frontier, point)
    entries = []
    for i, name in enumerate(baselines if graph is frontier.model.graph else ()):
        if progress is not None:
            progress("baselines", i, len(baselines))
        with contextlib.suppress(InfeasibleError):  # a baseline may have no strategy
            entries.append(_baseline(name, (known or {}).get(name) or find_baseline(frontier, name)))
    return {
        "model": model,
        "chosen": chosen,
        "views": views,
        "baselines": entries,
        **of_operators(graph),
        "least_peak_bytes": least_held_bytes(graph, frontier.mesh.n_devices),
    }


def _baseline(name: str, frontier: ModelFrontier) -> dict[str, Any]:
    """Return the points that a baseline found, with its plan if that is compared."""
    points = [
        {"sum_bytes": point.sum_bytes, "time_us": point.time_us, "peak_bytes": frontier.peak_bytes(number)}
        for number, point in enumerate(frontier.points)
    ]
    entry: dict[str, Any] = {"name": name, "points": points}
    if name == COMPARED:
        entry["plan"] = {**frontier_of_whole(frontier).plan(0).to_json(), "frontier": []}
    return entry
