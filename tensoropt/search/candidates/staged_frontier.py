"""One frontier of plans with stages and without, by peak memory per device and predicted time of a step."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from ...common.progress import Progress
from ...common.words import counted
from ...costs.objectives import MEMORY_TIME, Objectives, StrategyCosts
from ...ft import Frontier
from ...ft.lower_bound import LowerBound
from ...plan.frontier import PlanFrontier
from ...plan.frontier_file import SavedFrontier, frontier_value, numbered
from ...plan.plan import Plan
from ...plan.points import FrontierPoint, Passes
from ...profiling.hardware import Hardware
from ...report.plan_page import points_report
from ...report.plan_rows import PlanRows
from ...reschedule.mesh import Mesh
from ..frontiers.details import details_of_stage
from ..frontiers.find_frontier import ModelFrontier
from ..stages.points import SearchedStages
from .staged_frontier_points import PlanPoint


@dataclass(frozen=True, eq=False, repr=False)
class StagedFrontier(PlanFrontier):
    """The minimal points of all that was searched; see :class:`PlanFrontier`.

    Attributes:
        points_of: the points, by ascending peak and descending time.
        hardware: the hardware that the costs are for.
        parallelism: the number of devices.
        searched: the cuts that were searched; among them the model that isn't cut, unless stages are asked for.
        left_out: why some numbers of stages that were asked for weren't searched, one sentence each.
        bounds_us: for each number of stages none of whose cuts was searched, as others beat them, a time that no step beats.
        why_stages: why there are stages where none were asked for; empty where they were.
        assumed: the assumptions that plans record.
        seconds_by_phase: the seconds of all searches by phase.
        is_interrupted: whether Ctrl-C ended the search.
    """

    points_of: tuple[PlanPoint, ...]
    hardware: Hardware
    parallelism: int
    searched: tuple[SearchedStages, ...]
    left_out: tuple[str, ...] = ()
    bounds_us: tuple[float, ...] = ()
    why_stages: str = ""
    assumed: Mapping[str, Any] = field(default_factory=dict)
    seconds_by_phase: Mapping[str, float] = field(default_factory=dict)
    objectives: Objectives = MEMORY_TIME
    is_interrupted: bool = False

    @cached_property
    def found(self) -> Frontier:  # type: ignore[override]
        """The points as arrays, with the bound of their times; none of memory is known, as only some cuts were searched."""
        costs = self.costs
        least_ns = np.array([int(self.bound_us * 1e3)], np.int64)
        bound = LowerBound(np.zeros(1, np.int64), least_ns, "the operators' least times")
        no_states = np.zeros((len(self.points_of), 0), np.int32)
        return Frontier(costs.mem_bytes, costs.time_ns, no_states, {}, "stages", bound)

    @cached_property
    def costs(self) -> StrategyCosts:
        times = np.array([point.costs_ns for point in self.points_of], np.int64).T
        return StrategyCosts(np.array([point.n_bytes for point in self.points_of], np.int64), *times)

    @cached_property
    def points(self) -> tuple[FrontierPoint, ...]:
        """The costs of the points, by ascending peak."""
        return tuple(point.costs for point in self.points_of)

    @property
    def bounds_ns(self) -> np.ndarray:
        return np.array([round(point.bound_us * 1e3) for point in self.points_of], np.int64)

    @cached_property
    def gaps(self) -> np.ndarray:
        return np.array([point.gap for point in self.points_of])

    def passes(self, point: int) -> Passes:
        found = self.points_of[self.check_point(point)]
        return Passes(found.n_stages, found.micro_batches, found.idle_share)

    @property
    def peaks(self) -> np.ndarray:
        return self.costs.mem_bytes

    @property
    def mesh(self) -> Mesh:
        return self.hardware.mesh(self.parallelism)

    @property
    def hardware_name(self) -> str:
        return self.hardware.name

    @property
    def bound_us(self) -> float:
        """The least time of any plan, whatever its memory, with one of the numbers of stages and micro-batches considered.

        With stages it is that of all operators as fast as they can be, on all devices; without, that of the search's bound.
        """
        return min([*self.bounds_us, *(each.bound_us for each in self.searched)])

    def plan(self, point: int, option: str = "point") -> Plan:
        number = self.check_point(point)
        plan = self.points_of[number].plan(option, self.assumed)
        why = self.why_stages if len(plan.stages) > 1 else ""
        return replace(plan, why_stages=why, frontier=self, point=number, frontier_text=self.table(number))

    def summary(self) -> str:
        """Return one line on the searches: their points, what was searched, and what is proven."""
        counts = [point.n_stages for point in self.points_of]
        of_counts = [f"{counts.count(n)} {'without stages' if n == 1 else f'in {n} stages'}" for n in sorted(set(counts))]
        tried: dict[int, list[int]] = {}
        for searched in self.searched:
            tried.setdefault(searched.stages.n, []).append(searched.micro_batches)
        ways = [
            "no stages" if n == 1 else f"{n} stages in {' or '.join(map(str, sorted(set(each))))} micro-batches"
            for n, each in tried.items()
        ]
        told = [
            f"{counted(len(self), 'point')} on {counted(self.parallelism, 'device')} {self.mesh}: {', '.join(of_counts)}",
            f"searched {', '.join(ways)}",
            f"gap at most {self.gaps.max():.2%} (median {np.median(self.gaps):.2%}) in what was searched for each point",
            f"with stages or without no plan takes less than {self.bound_us:,.1f} us",
            *([self.why_stages] if self.why_stages else []),
            *self.left_out,
            f"{sum(self.seconds_by_phase.values()):.2f} s",
        ]
        return "; ".join(told)

    def save(self, file: str | os.PathLike[str], progress: Progress | None = None, chosen: int | None = None) -> None:
        """Write the frontier to a file; see :class:`PlanFrontier`.

        Args:
            chosen: the number of the point that was chosen; None for the fastest one.
        """
        points, rows = [], dict[str, int]()
        for number, point in enumerate(self.points_of):
            if progress is not None:
                progress("plans", number, len(self))
            points.append({**self.row(number), "plan": numbered(point.plan("point", self.assumed).to_json(), rows)})
        details = {} if chosen is None else {"chosen": chosen}
        value = frontier_value(self, points[0]["plan"]["assumed"], points[0]["plan"]["model_digest"], points, details)
        SavedFrontier({**value, "rows": [json.loads(row) for row in rows]}).save(file)

    def report_value(self, title: str, chosen: int | None = None, model: str = "") -> dict[str, Any]:
        """Return the data of the frontier's report, with the step and the decisions of the chosen point's plan."""
        chosen = self.fastest_within(None) if chosen is None else self.check_point(chosen)
        plan = self.points_of[chosen].plan("point", self.assumed)
        return points_report(
            [self.row(number) for number in range(len(self))],
            lambda number: PlanRows(self.plan(number).to_json()),
            self.summary(),
            title,
            chosen,
            [details_of_stage(stage) for stage in plan.stages],
        )

    @property
    def without_stages(self) -> tuple[ModelFrontier, ...]:
        return tuple(each.frontiers[0] for each in self.searched if each.is_uncut)

    def parts(self, point: int) -> list[tuple[ModelFrontier, int]]:
        found = self.points_of[self.check_point(point)]
        return list(zip(found.frontiers, found.numbers, strict=True))

    def peak_json(self, point: int) -> Mapping[str, Any] | None:
        parts = self.parts(point)
        return parts[0][0].peak_json(parts[0][1]) if len(parts) == 1 else None
