"""Save and load a frontier of plans with stages and without: each point with its plan, as a plan's file has it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from ..common.files import read_json_of, reading_value, write_atomically
from ..common.formats import FRONTIER
from ..common.progress import Progress
from ..ft.frontier import Frontier
from ..ft.lower_bound import LowerBound
from ..report.checksum import check_signed, signed
from ..report.frontier_rows import FrontierRows
from ..report.plan_page import report_of
from ..report.plan_rows import device_bytes_of
from ..reschedule.mesh import Mesh, mesh_of
from ..search.problem.objectives import MEMORY_TIME, Objectives, StrategyCosts
from .frontier import PlanFrontier
from .frontier_file import SavedFrontier
from .plan import Plan
from .points import FrontierPoint, Passes

FORMAT, VERSION = FRONTIER
COSTS = ("sum_bytes", "time_us", "compute_time_us", "network_time_us", "overlap_time_us", "exact")


def save_with_stages(
    file: str | os.PathLike[str],
    frontier: PlanFrontier[Any],
    bound_us: float,
    chosen: int | None = None,
) -> None:
    """Write a frontier of plans with stages and without.

    Args:
        bound_us: a time that none of the searched plans beats.
        chosen: the number of the point that was chosen; None for the fastest one.

    Raises:
        InputError: the file can't be written.
    """
    plans = [frontier.plan(number).to_json() for number in range(len(frontier))]
    value = {
        "format": FORMAT,
        "version": VERSION,
        "hardware": frontier.hardware_name,
        "mesh": [{"name": level.name, "count": level.count} for level in frontier.mesh.levels],
        "model_digest": plans[0]["model_digest"],
        "assumed": plans[0]["assumed"],
        "summary": frontier.summary(),
        "objectives": list(frontier.objectives),
        "bound_time_us": bound_us,
        "details": {} if chosen is None else {"chosen": chosen},
        "points": [
            {**frontier.row(number), "plan": {**plan, "frontier": []}} for number, plan in enumerate(plans)
        ],
    }
    text = signed(json.dumps(value))
    write_atomically(file, lambda partial: Path(partial).write_text(text, encoding="utf-8"), "frontier")


@dataclass(frozen=True, eq=False, repr=False)
class SavedStagedFrontier(PlanFrontier[Plan]):
    """A frontier of plans with stages and without, as it is saved.

    Attributes:
        value: its JSON value.
    """

    value: Mapping[str, Any]
    objectives: Objectives = MEMORY_TIME

    @cached_property
    def found(self) -> Frontier:  # type: ignore[override]
        """The points as arrays, with the bound of their times."""
        costs, least_ns = self.costs, np.array([int(self.value["bound_time_us"] * 1e3)], np.int64)
        bound = LowerBound(np.zeros(1, np.int64), least_ns, "the operators' least times")
        return Frontier(costs.mem_bytes, costs.time_ns, np.zeros((len(costs.time_ns), 0), np.int32), {}, "stages", bound)

    @cached_property
    def costs(self) -> StrategyCosts:
        rows = self.value["points"]
        time_ns, compute_ns, overlap_ns = (
            np.array([round(row[key] * 1e3) for row in rows], np.int64)
            for key in ("time_us", "compute_time_us", "overlap_time_us")
        )
        return StrategyCosts(np.array([row["peak_bytes"] for row in rows], np.int64), time_ns, compute_ns, overlap_ns)

    @cached_property
    def points(self) -> tuple[FrontierPoint, ...]:
        """The costs of the points, by ascending peak."""
        return tuple(FrontierPoint(**{key: row[key] for key in COSTS}) for row in self.value["points"])

    def passes(self, point: int) -> Passes:
        row = self.value["points"][point]
        return Passes(row["stages"], row["micro_batches"], row["idle_share"])

    @property
    def all_peaks(self) -> np.ndarray:
        return self.costs.mem_bytes

    def peak_bytes(self, point: int) -> int:
        return int(self.value["points"][self.check_point(point)]["peak_bytes"])

    @property
    def mesh(self) -> Mesh:
        return mesh_of(self.value["mesh"])

    @property
    def hardware_name(self) -> str:
        return str(self.value["hardware"])

    def summary(self) -> str:
        """Return one line on the search, as it was told; see :class:`PlanFrontier`."""
        return str(self.value["summary"])

    def plan(self, point: int, option: str = "point") -> Plan:
        number = self.check_point(point)
        plan = Plan.from_json(self.value["points"][number]["plan"])
        return replace(plan, option=option, frontier=self, point=number, frontier_text=self.table(number))

    def fastest_within(self, limit_bytes: int | None, progress: Progress | None = None) -> Any:
        """Return the number of the fastest point that fits; see :class:`PlanFrontier`."""
        fitting = [n for n in range(len(self)) if limit_bytes is None or self.peak_bytes(n) <= limit_bytes]
        return fitting[-1] if fitting else None

    def least_point(self, progress: Progress | None = None) -> int:
        """Return the number of the point that needs the least memory."""
        return 0

    def save(
        self, file: str | os.PathLike[str], progress: Progress | None = None, chosen: int | None = None
    ) -> None:
        """Write the frontier to a file; see :class:`PlanFrontier`."""
        text = signed(json.dumps(dict(self.value)))
        write_atomically(file, lambda partial: Path(partial).write_text(text, encoding="utf-8"), "frontier")

    def report_value(self, title: str, chosen: int | None = None, model: str = "") -> dict[str, Any]:
        """Return the data of the frontier's report; see :class:`PlanFrontier`."""
        return report_of(FrontierRows(self.value), title)


def load_any_frontier(file: str | os.PathLike[str]) -> SavedFrontier | SavedStagedFrontier:
    """Read a frontier, with stages or without, from a file.

    Raises:
        InputError: the file can't be read, is cut off, isn't a frontier, has another version, or was changed.
    """
    checks = {"frontier": partial(check_signed, "frontier", file)}
    _, value = read_json_of(file, {"frontier": FRONTIER}, checks)
    with reading_value("frontier", file):
        if not any("plan" in point for point in value["points"]):
            return SavedFrontier.load(file)
        device_bytes_of(value["assumed"])
        found = SavedStagedFrontier(value)
        _ = found.found, found.mesh, [Plan.from_json(point["plan"]) for point in value["points"]]
        return found
