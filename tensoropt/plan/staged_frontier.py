"""One frontier of plans with stages and without, by peak memory per device and predicted time of a step.

Peaks of micro-batches are replayed one by one, and those of thousands of points in stages would take longer than the search.
So some from end to end are evaluated, :data:`MOST_EVALUATED` of them, and more next to a memory limit. Only what was
evaluated is on the frontier.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from tabulate import tabulate

from ..common.memory_units import memory_text
from ..common.progress import Progress
from ..ft import Frontier
from ..ft.lower_bound import LowerBound
from ..ft.pareto import reduce_unsorted
from ..profiling.hardware import Hardware
from ..program.schedule import StepOrder
from ..report.staged_frontier_page import staged_frontier_report
from ..reschedule.mesh import Mesh
from ..search.problem.objectives import MEMORY_TIME, Objectives, StrategyCosts
from .details import details_of_plan
from .find_frontier import ModelFrontier
from .frontier import PlanFrontier, thinned
from .plan import Plan
from .stage_points import SearchedStages, needed_bytes
from .staged_frontier_file import rows_of_points, save_with_stages
from .staged_plan import PlannedStage, StagedPlan

MOST_EVALUATED = 16
"""The most points in stages whose peaks are replayed, apart from those next to a memory limit."""


@dataclass(frozen=True, eq=False)
class UnstagedPoint:
    """A point of a frontier without stages."""

    frontier: ModelFrontier
    number: int

    n_stages = 1
    idle_share = 0.0

    @property
    def frontiers(self) -> tuple[ModelFrontier, ...]:
        """The frontier that it is a point of, as of a single stage."""
        return (self.frontier,)

    @property
    def numbers(self) -> tuple[int, ...]:
        """The number of the point there."""
        return (self.number,)

    @property
    def micro_batches(self) -> int:
        return self.frontier.model.graph.n_micro_batches

    @cached_property
    def n_bytes(self) -> int:
        """The peak, to which memory limits apply."""
        return self.frontier.needed_bytes(self.number)

    @property
    def costs_ns(self) -> tuple[int, int, int]:
        """The time of a step, of compute, and that in which compute and network overlap."""
        costs = self.frontier.costs
        return int(costs.time_ns[self.number]), int(costs.compute_ns[self.number]), int(costs.overlap_ns[self.number])

    def plan(self, option: str, assumed: Mapping[str, Any]) -> Plan:
        return replace(self.frontier, assumed=assumed).plan(self.number, option)


@dataclass(frozen=True, eq=False)
class StagedPoint:
    """A point in stages: a point of each stage's frontier.

    Attributes:
        order: the order of the step's passes.
        numbers: for each stage, the number of its point in its frontier.
    """

    searched: SearchedStages
    order: StepOrder
    numbers: tuple[int, ...]
    time_us: float

    @property
    def n_stages(self) -> int:
        return self.searched.stages.n

    @property
    def frontiers(self) -> tuple[ModelFrontier, ...]:
        """The frontier of each stage."""
        return self.searched.frontiers

    @property
    def micro_batches(self) -> int:
        return self.searched.micro_batches

    @cached_property
    def stage_bytes(self) -> tuple[int, ...]:
        """The peak of each stage, to which memory limits apply."""
        chosen = enumerate(zip(self.searched.frontiers, self.numbers, strict=True))
        return tuple(needed_bytes(frontier, number, stage, self.order) for stage, (frontier, number) in chosen)

    @property
    def n_bytes(self) -> int:
        """The peak of the device that needs the most."""
        return max(self.stage_bytes)

    @property
    def idle_shares(self) -> list[float]:
        """The share of the step in which each stage waits for others."""
        return [1 - each / self.time_us for each in self.searched.busy_us(self.numbers)]

    @property
    def idle_share(self) -> float:
        """The share of all devices' time in which they wait for other stages."""
        return sum(self.idle_shares) / self.n_stages

    @property
    def costs_ns(self) -> tuple[int, int, int]:
        """The time of a step, the compute of the stage that computes longest, and that of the step's overlap: not told."""
        chosen = zip(self.searched.frontiers, self.numbers, strict=True)
        compute_ns = max(int(frontier.costs.compute_ns[number]) for frontier, number in chosen)
        return round(self.time_us * 1e3), compute_ns, 0

    def plan(self, option: str, assumed: Mapping[str, Any]) -> StagedPlan:
        stages, first = self.searched.stages, 0
        planned = []
        for frontier, last_operator, number, in_flight, deferred, n_bytes, idle_share in zip(
            self.searched.frontiers, (*stages.cuts, ""), self.numbers, self.order.in_flight, self.order.deferred,
            self.stage_bytes, self.idle_shares, strict=True,
        ):  # fmt: skip
            devices = tuple(range(first, first + frontier.mesh.n_devices))
            first += frontier.mesh.n_devices
            plan = replace(frontier, assumed=assumed).plan(number, "mini_time")
            planned.append(PlannedStage(devices, last_operator, in_flight, deferred, plan, n_bytes, idle_share))
        return StagedPlan(
            stages=tuple(planned),
            schedule=self.order.schedule,
            micro_batches=self.micro_batches,
            time_us=self.time_us,
            model_digest=stages.whole.graph.digest,
            option=option,
            assumed=dict(assumed),
            timeline=self.searched.timeline(self.numbers, self.order),
        )


AnyPoint = UnstagedPoint | StagedPoint


@dataclass(frozen=True, eq=False, repr=False)
class StagedFrontier(PlanFrontier["Plan | StagedPlan"]):
    """The minimal points of all that was searched; see :class:`PlanFrontier`.

    Attributes:
        points_of: the points, by ascending peak and descending time.
        hardware: the hardware that the costs are for.
        parallelism: the number of devices.
        unstaged: the frontiers without stages that were searched; empty where stages are asked for.
        searched: the cuts that were searched.
        left_out: why some numbers of stages that were asked for weren't searched, one sentence each.
        assumed: the assumptions that plans record.
        seconds_by_phase: the seconds of all searches by phase.
    """

    points_of: tuple[AnyPoint, ...]
    hardware: Hardware
    parallelism: int
    unstaged: tuple[ModelFrontier, ...]
    searched: tuple[SearchedStages, ...]
    left_out: tuple[str, ...] = ()
    assumed: Mapping[str, Any] = field(default_factory=dict)
    seconds_by_phase: Mapping[str, float] = field(default_factory=dict)
    objectives: Objectives = MEMORY_TIME

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

    @property
    def all_peaks(self) -> np.ndarray:
        return self.costs.mem_bytes

    def peak_bytes(self, point: int) -> int:
        return self.points_of[self.check_point(point)].n_bytes

    @property
    def mesh(self) -> Mesh:
        return self.hardware.mesh(self.parallelism)

    @property
    def hardware_name(self) -> str:
        return self.hardware.name

    @property
    def bound_us(self) -> float:
        """The least time of any plan, whatever its memory, with one of the numbers of stages and micro-batches searched.

        With stages it is that of all operators as fast as they can be, on all devices; without, that of the search's bound.
        """
        proven = [each.certified for each in self.unstaged]
        alone = [int((each.time_ns if each.bound is None else each.bound.time_ns).min()) / 1e3 for each in proven]
        return min([*alone, *(each.bound_us for each in self.searched)])

    @property
    def is_interrupted(self) -> bool:
        """Whether Ctrl-C ended one of the searches."""
        frontiers = [*self.unstaged, *(each for searched in self.searched for each in searched.frontiers)]
        return any(each.is_interrupted for each in frontiers)

    def plan(self, point: int, option: str = "point") -> Plan | StagedPlan:
        number = self.check_point(point)
        plan = self.points_of[number].plan(option, self.assumed)
        return replace(plan, frontier=self, point=number, frontier_text=self.table(number))

    def fastest_within(self, limit_bytes: int | None, progress: Progress | None = None) -> Any:
        """Return the number of the fastest point that fits; see :class:`PlanFrontier`."""
        fitting = [n for n, point in enumerate(self.points_of) if limit_bytes is None or point.n_bytes <= limit_bytes]
        return fitting[-1] if fitting else None

    def least_point(self, progress: Progress | None = None) -> int:
        """Return the number of the point that needs the least memory."""
        return 0

    def table(self, chosen: int | None = None, with_peaks: bool = True) -> str:
        """Return the points as a table of text, numbered, with their stages and micro-batches; see :class:`PlanFrontier`."""
        turning = self.turning_number
        shown = thinned(len(self), {turning, *({chosen} if chosen is not None else ())})
        rows = []
        for number in shown:
            point = self.points_of[number]
            marks = [text for at, text in ((turning, "turning point"), (chosen, "chosen")) if at == number]
            idle = f"{point.idle_share:.0%}" if point.n_stages > 1 else ""
            times = [f"{each / 1e3:,.1f}" for each in point.costs_ns[:2]]
            counts = [str(point.n_stages), str(point.micro_batches)]
            rows.append([str(number + 1), *counts, memory_text(point.n_bytes), *times, idle, ", ".join(marks)])
        headers = ["point", "stages", "micro-batches", "peak per device", "time (us)", "compute (us)", "idle", ""]
        alignment = (*("right",) * (len(headers) - 1), "left")
        text: str = tabulate(rows, headers, tablefmt="simple", disable_numparse=True, colalign=alignment)
        return text if len(shown) == len(self) else f"{text}\n{len(shown)} of {len(self)} points"

    def summary(self) -> str:
        """Return one line on the searches: their points, what was searched, and what is proven."""
        counts = [point.n_stages for point in self.points_of]
        of_counts = [f"{counts.count(n)} {'without stages' if n == 1 else f'in {n} stages'}" for n in sorted(set(counts))]
        n_points = f"{len(self)} point{'s' * (len(self) > 1)}"
        tried: dict[int, list[int]] = {}
        for searched in self.searched:
            tried.setdefault(searched.stages.n, []).append(searched.micro_batches)
        ways = [f"{n} stages in {' or '.join(map(str, sorted(set(each))))} micro-batches" for n, each in tried.items()]
        proven = [f"without stages: {each.certified.certificate}" for each in self.unstaged[:1]]
        told = [
            f"{n_points} on {self.parallelism} devices {self.mesh}: {', '.join(of_counts)}",
            f"searched {', '.join(['no stages'] * bool(self.unstaged) + ways)}",
            *proven,
            f"with stages or without no plan takes less than {self.bound_us:,.1f} us",
            *self.left_out,
            f"{sum(self.seconds_by_phase.values()):.2f} s",
        ]
        return "; ".join(told)

    def save(
        self, file: str | os.PathLike[str], progress: Progress | None = None, chosen: int | None = None
    ) -> None:
        """Write the frontier to a file; see :class:`PlanFrontier`.

        Args:
            chosen: the number of the point that was chosen; None for the fastest one.
        """
        save_with_stages(file, self, self._of_points, self.bound_us, chosen)

    @property
    def _of_points(self) -> list[dict[str, Any]]:
        """The stages, micro-batches and idle share of each point's plan, as the frontier's file has them."""
        return [
            {"stages": point.n_stages, "micro_batches": point.micro_batches, "idle_share": point.idle_share}
            for point in self.points_of
        ]

    def report_value(self, title: str, chosen: int | None = None, model: str = "") -> dict[str, Any]:
        """Return the data of the frontier's report, with the step and the decisions of the chosen point's plan."""
        chosen = self.fastest_within(None) if chosen is None else self.check_point(chosen)
        plan = self.points_of[chosen].plan("point", self.assumed)
        parts = [stage.plan for stage in plan.stages] if isinstance(plan, StagedPlan) else [plan]
        return staged_frontier_report(
            rows_of_points(self, self._of_points),
            lambda number: self.plan(number).to_json(),
            self.summary(),
            title,
            chosen,
            [details_of_plan(part) for part in parts],
        )

    def alone(self, point: int) -> tuple[PlanFrontier[Any], int]:
        """Return the frontier without stages that a point belongs to, and its number there; see :class:`PlanFrontier`."""
        found = self.points_of[self.check_point(point)]
        return (found.frontier, found.number) if isinstance(found, UnstagedPoint) else (self, point)


def minimal_points(
    unstaged: Sequence[ModelFrontier],
    searched: Sequence[SearchedStages],
    limit_bytes: int | None,
    progress: Progress | None = None,
) -> list[AnyPoint]:
    """Return the minimal of all points that were evaluated, by ascending peak.

    Args:
        limit_bytes: more points are evaluated next to this memory limit.
        progress: called with ("peaks", done, total) now and then.
    """
    points: list[AnyPoint] = []
    for frontier in unstaged:
        own = [UnstagedPoint(frontier, number) for number in range(len(frontier))]
        points += own if frontier.all_peaks is not None else _evaluated(own, limit_bytes, progress)
    points += _evaluated(_staged_points(searched), limit_bytes, progress)
    return _reduced(points)


def _reduced(points: Sequence[AnyPoint]) -> list[AnyPoint]:
    """Return the points that no other one beats in peak and time; of equal ones the first."""
    mem_bytes = np.array([point.n_bytes for point in points], np.int64)
    time_ns = np.array([point.costs_ns[0] for point in points], np.int64)
    return [points[i] for i in reduce_unsorted(mem_bytes, time_ns)]


def _staged_points(searched: Sequence[SearchedStages]) -> list[StagedPoint]:
    """Return the minimal points in stages, by bytes as the searches counted them, ascending."""
    all_of = [(of_cut, combined) for of_cut in searched for combined in of_cut.combinations]
    if not all_of:
        return []
    mem_bytes = np.concatenate([combined.mem_bytes for _, combined in all_of])
    time_us = np.concatenate([combined.time_us for _, combined in all_of])
    starts = np.cumsum([0, *(len(combined.time_us) for _, combined in all_of)])
    found = []
    for i in reduce_unsorted(mem_bytes, np.rint(time_us * 1e3).astype(np.int64)):
        number = int(np.searchsorted(starts, i, side="right")) - 1
        of_cut, combined = all_of[number]
        at = i - starts[number]
        numbers = tuple(combined.points[:, at].tolist())
        found.append(StagedPoint(of_cut, combined.order, numbers, float(combined.time_us[at])))
    return found


def _evaluated(
    points: Sequence[AnyPoint], limit_bytes: int | None, progress: Progress | None
) -> list[AnyPoint]:
    """Return some of the points, by ascending memory, whose peaks are then known: all of few, and those next to a limit.

    Peaks grow with memory but for little, so the fastest point within the limit is found by halving.
    """
    n, done = len(points), 0
    if n == 0:
        return []
    at = {round(i * (n - 1) / (MOST_EVALUATED - 1)) for i in range(MOST_EVALUATED)}
    total = len(at) + (n // len(at)).bit_length() * (limit_bytes is not None)

    def n_bytes(number: int) -> int:
        nonlocal done
        done += 1
        if progress is not None:
            progress("peaks", min(done, total), total)
        return points[number].n_bytes

    known = {number: n_bytes(number) for number in sorted(at)}
    if limit_bytes is not None:
        low = max((number for number in known if known[number] <= limit_bytes), default=None)
        high = None if low is None else min((number for number in known if number > low), default=None)
        while low is not None and high is not None and high - low > 1:
            middle = (low + high) // 2
            known[middle] = n_bytes(middle)
            low, high = (middle, high) if known[middle] <= limit_bytes else (low, middle)
    return [points[number] for number in sorted(known)]
