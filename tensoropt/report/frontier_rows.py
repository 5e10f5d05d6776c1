"""A frontier as its file has it: points, and the rows of each point's plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np

from ..common.memory_units import default_limit
from ..common.turning_point import turning_point
from ..reschedule.mesh import mesh_of
from .explanation import TIMES, Neighbours
from .plan_rows import PlanRows, Row, device_bytes_of, layers_of

COSTS = ("sum_bytes", "peak_bytes", *TIMES)
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
        point = {
            **{key: value[key] for key in COSTS}, "peak_bytes": plan.needed_bytes, "exact": value["exact"],
            "stages": len(plan.stages), "micro_batches": plan.micro_batches,
            "idle_share": sum(idle_shares) / len(idle_shares),
        }  # fmt: skip
        shared = {key: value[key] for key in ("mesh", "model_digest", "assumed")}
        hardware = str(value["assumed"].get("hardware", "unknown hardware"))
        objectives = ["memory", "time"]
        return cls(
            {**shared, "hardware": hardware, "summary": plan.summary, "objectives": objectives, "points": [point]}, plan
        )

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
    def columns(self) -> Sequence[np.ndarray]:
        """The choice of each point, int[P], by number of the column."""
        return [column_of(text, len(self)) for text in self.value["columns"]]

    @cached_property
    def layers(self) -> Mapping[str, str]:
        """The layer of each operator by its name, by what any of the plans reshards."""
        named = [(part["name"], part["type"]) for part in self.value["operators"]]
        return layers_of(named, [row for part in self.value["reshardings"] for row in part["pool"]])

    def plan(self, point: int, option: str = "point") -> PlanRows:
        """Return the plan of a point: the point's own, or that which the parts have for it."""
        costs, value = self.points[point], self.value
        if self.only_plan is not None:
            return self.only_plan
        if "rows" in value:
            kinds = ("operators", "reshardings")
            stages = [
                {**stage, **{kind: [_row(value["rows"], number) for number in stage[kind]] for kind in kinds}}
                for stage in costs["plan"]["stages"]
            ]
            return PlanRows({**costs["plan"], "option": option, "stages": stages})
        columns = self.columns
        operators = []
        for part in value["operators"]:
            row = part["choices"][columns[part["column"]][point]]
            operators.append({"name": part["name"], "type": part["type"], **row})
        reshardings = []
        for part in value["reshardings"]:
            reshardings += [part["pool"][i] for i in part["choices"][columns[part["column"]][point]]]
        peak = self.peak(point)
        shared = {"mesh": value["mesh"], "model_digest": value["model_digest"], **{key: costs[key] for key in COSTS}}
        stage = {
            "devices": list(range(mesh_of(value["mesh"]).n_devices)),
            "last_operator": "",
            "in_flight": 1,
            "deferred": 0,
            "idle_share": 0.0,
            **shared,
            **({} if peak is None else {"peak": peak}),
            "operators": operators,
            "reshardings": reshardings,
        }
        return PlanRows({
            "option": option,
            **shared,
            "exact": costs["exact"],
            "schedule": {"name": "plain", "micro_batches": costs["micro_batches"]},
            "assumed": value["assumed"],
            "frontier": [],
            "stages": [stage],
        }, self.layers)


def _row(rows: Sequence[Row], number: int) -> Row:
    if not 0 <= number < len(rows):
        raise ValueError(f"a plan names row {number} of {len(rows)}")
    return rows[number]


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
