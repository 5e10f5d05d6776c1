"""A frontier as its file has it: points, and the rows of each point's plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from ..common.memory_units import default_limit
from ..common.turning_point import turning_point
from ..reschedule.mesh import mesh_of
from .explanation import TIMES, Neighbours
from .plan_rows import PlanRows, Row, device_bytes_of, layers_of

COSTS = ("sum_bytes", "peak_bytes", *TIMES)
KINDS = ("operators", "reshardings")
_OBJECTIVES = {"memory": "sum_bytes", "time": "time_us", "network": "network_time_us"}


class FrontierRows:
    """A frontier's JSON value, and the plans that are in it.

    Attributes:
        value: the value; its points ascend in the first objective and descend in the second.
        only_plan: the plan of a plan's own file, which is told of as a frontier of one point; None of a frontier's file.
    """

    def __init__(self, value: Row, only_plan: PlanRows | None = None) -> None:
        device_bytes_of(value["assumed"])
        self.value, self.only_plan = value, only_plan
        points: Sequence[Row] = value["points"]
        if not points:
            raise ValueError("a frontier has at least one point")
        self.points = points

    @classmethod
    def of_plan(cls, value: Row) -> FrontierRows:
        plan = PlanRows(value)
        plan.check()
        idle_shares = [float(stage.value["idle_share"]) for stage in plan.stages]
        share = sum(idle_shares) / len(idle_shares)
        return cls(one_point(plan, {**value, "peak_bytes": plan.needed_bytes, "idle_share": share}, len(plan.stages)), plan)

    def __len__(self) -> int:
        return len(self.points)

    @property
    def objectives(self) -> tuple[str, str]:
        first, second = self.value["objectives"]
        return first, second

    @cached_property
    def turning_point(self) -> int:
        """The number of the point at which the frontier bends: by peak, where points are in order by it."""
        first, second = (np.array([point[_OBJECTIVES[name]] for point in self.points], float) for name in self.objectives)
        peaks = np.array([point["peak_bytes"] for point in self.points], float)
        if self.objectives[0] == "memory" and (np.diff(peaks) > 0).all():
            first = peaks
        return turning_point(first, second)

    def needed_bytes(self, point: int) -> int:
        """Return the bytes that a limit applies to: the peak."""
        return int(self.points[point]["peak_bytes"])

    @cached_property
    def comparable(self) -> Sequence[int]:
        """The points by ascending time."""
        return sorted(range(len(self)), key=lambda i: (self.points[i]["time_us"], self.points[i]["sum_bytes"]))

    def within(self, limit_bytes: int | None) -> Sequence[int]:
        """Return the numbers of the points within a limit, the fastest first; without one, those of all points."""
        return [point for point in self.comparable if limit_bytes is None or self.needed_bytes(point) <= limit_bytes]

    def fastest_within(self, limit_bytes: int | None) -> int | None:
        """Return the number of the fastest point within a limit, None if none fits; without one, of the fastest point."""
        return next(iter(self.within(limit_bytes)), None)

    def least_point(self) -> int:
        """Return the number of the point that needs the least memory."""
        return min(self.comparable, key=self.needed_bytes)

    @property
    def chosen(self) -> int:
        """The number of the point that was chosen when the file was written; of the fastest one if none was."""
        number = self.value.get("details", {}).get("chosen")
        return int(self.comparable[0] if number is None else number)

    def facts_of(self, point: int) -> tuple[Neighbours | None, tuple[int, Row] | None]:
        """Return what :func:`.explanation` takes of a point beside its plan: its neighbours, and what fits the device."""
        if self.only_plan is not None:
            return None, None
        smaller, faster = (self.points[i] if 0 <= i < len(self) else None for i in (point - 1, point + 1))
        device_bytes = device_bytes_of(self.value["assumed"])
        fitting = None if device_bytes is None else self.fastest_within(default_limit(device_bytes))
        return (smaller, faster), None if fitting is None else (fitting, self.points[fitting])

    def peak(self, point: int) -> Row | None:
        """Return the instant of a point's peak, see ``Peak.to_json``; None if its step isn't stored, or has stages."""
        details = self.value.get("details", {})
        views = details.get("views", {}).get(str(point), ())
        stored: Row | None = views[0].get("memory") if len(views) == 1 else None
        return stored or details.get("peaks", {}).get(str(point))

    @cached_property
    def is_whole(self) -> bool:
        """Whether all points come from one search without stages, in which a point's plan has the point's number."""
        return len(self.value["searches"]) == 1 and not any("plan" in point for point in self.points)

    @cached_property
    def columns(self) -> Sequence[Sequence[np.ndarray]]:
        """The choice of each plan of a search, int[P], by number of the search and of the column."""
        n_plans = [0] * len(self.value["searches"])
        for point in range(len(self)):
            for stage in self._stages(point)[1]:
                if stage["search"] < 0 or stage["number"] < 0:
                    raise ValueError(f"there is no plan {stage['number']} of search {stage['search']}")
                n_plans[stage["search"]] = max(n_plans[stage["search"]], stage["number"] + 1)
        searches = zip(self.value["searches"], n_plans, strict=True)
        return [[column_of(text, n) for text in search["columns"]] for search, n in searches]

    @cached_property
    def layers(self) -> Mapping[str, str]:
        """The layer of each operator by its name, by what any of the plans reshards."""
        operators, reshardings = ([part for search in self.value["searches"] for part in search[kind]] for kind in KINDS)
        named = [(part["name"], part["type"]) for part in operators]
        return layers_of(named, [row for part in reshardings for row in part["pool"]])

    def _stages(self, point: int) -> tuple[Row, Sequence[Row]]:
        """Return a point's plan and its stages, without their rows."""
        plan, entry = plan_of_whole(self.value, point), self.points[point].get("plan", {})
        (usual,), stages = plan["stages"], entry.get("stages", [{}])
        return {**plan, **entry}, [{**usual, **stage} for stage in stages]

    def plan(self, point: int, option: str = "point") -> PlanRows:
        """Return the plan of a point, with the rows that the parts have for it."""
        if self.only_plan is not None:
            return self.only_plan
        plan, stages = self._stages(point)
        peak = self.peak(point) if len(stages) == 1 else None
        shown = {} if peak is None else {"peak": peak}
        return PlanRows(
            {**plan, "option": option, "stages": [{**self._with_rows(**stage), **shown} for stage in stages]}, self.layers
        )

    def _with_rows(self, search: int, number: int, **stage: Any) -> Row:
        """Return a stage with the rows of its plan."""
        columns, parts = self.columns[search], self.value["searches"][search]
        operators, reshardings = (
            [(part, part["choices"][columns[part["column"]][number]]) for part in parts[kind]] for kind in KINDS
        )
        return {
            **stage,
            "operators": [{"name": part["name"], "type": part["type"], **row} for part, row in operators],
            "reshardings": [part["pool"][i] for part, rows in reshardings for i in rows],
        }


def one_point(plan: PlanRows, costs: Row, n_stages: int = 1) -> Row:
    """Return a frontier of one point, without its rows: of a plan, or of what has the mesh and the costs of one stage."""
    point = {key: costs[key] for key in (*COSTS, "idle_share")}
    return {
        "hardware": str(plan.value["assumed"].get("hardware", "unknown hardware")),
        "mesh": costs["mesh"],
        "model_digest": plan.value["model_digest"],
        "assumed": plan.value["assumed"],
        "summary": plan.summary,
        "objectives": ["memory", "time"],
        "points": [{**point, "exact": plan.value["exact"], "stages": n_stages, "micro_batches": plan.micro_batches}],
    }


def plan_of_whole(value: Row, point: int) -> Row:
    """Return the plan of a point of a model that isn't cut, without its rows: what the file leaves out of each plan."""
    costs = value["points"][point]
    network_us = costs["time_us"] + costs["overlap_time_us"] - costs["compute_time_us"]  # rounded as a plan's is
    shared = {key: value[key] for key in ("mesh", "model_digest")} | {key: costs[key] for key in COSTS}
    shared["network_time_us"] = network_us
    stage = {
        "devices": list(range(mesh_of(value["mesh"]).n_devices)),
        "last_operator": "",
        "in_flight": 1,
        "deferred": 0,
        "idle_share": 0.0,
        **shared,
        "search": 0,
        "number": point,
    }
    return {
        "option": "point",
        **shared,
        "exact": costs["exact"],
        "schedule": {"name": "plain", "micro_batches": costs["micro_batches"]},
        "assumed": value["assumed"],
        "frontier": [],
        "stages": [stage],
    }


def column_of(text: str, n_points: int) -> np.ndarray:
    """Return the choices of all points from the text of a column's runs: int32[P].

    Raises:
        ValueError: the runs don't cover the points.
    """
    runs = [(part.partition("x")) for part in text.split()]
    choices, counts = [int(run[0]) for run in runs], [int(run[2] or 1) for run in runs]
    if sum(counts) != n_points or min(counts) < 1 or min(choices) < 0:
        raise ValueError(f"column '{text[:20]}' doesn't tell the choices of {n_points} points")
    return np.repeat(np.array(choices, np.int32), counts)
