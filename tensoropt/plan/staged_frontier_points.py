"""The points of a frontier of plans with stages and without, and which of them are evaluated.

Peaks of micro-batches are replayed one by one, and those of thousands of points in stages would take longer than the search.
So some from end to end are evaluated, :data:`MOST_EVALUATED` of them, and more next to a memory limit. Only what was
evaluated is on the frontier.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import add
from typing import Any

import numpy as np

from ..common.garbage import older_objects_kept
from ..common.progress import Progress
from ..ft.pareto import reduce_unsorted
from ..program.schedule import PLAIN, StepOrder, of_submeshes
from .find_frontier import ModelFrontier
from .plan import Plan
from .points import FrontierPoint
from .stage_memory import needed_of_devices
from .stage_points import SearchedStages

MOST_EVALUATED = 16
"""The most points in stages whose peaks are replayed, apart from those next to a memory limit."""

GAP_UNIT = 1e-5
"""Gaps are told up to this share."""


@dataclass(frozen=True, eq=False)
class PlanPoint:
    """A point of a frontier of plans: a point of each stage's frontier.

    Attributes:
        searched: the cut of which it is, with the stages' frontiers.
        order: the order of the step's passes.
        numbers: for each stage, the number of its point in its frontier.
        time_us: the time of a step.
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
        """The peak of each stage's devices, to which memory limits apply."""
        return needed_of_devices(self.searched.frontiers, self.numbers, self.order)

    @property
    def n_bytes(self) -> int:
        """The peak of the device that needs the most."""
        return max(self.stage_bytes)

    @property
    def idle_shares(self) -> list[float]:
        """The share of the step in which each stage's devices wait for others."""
        submeshes = self.order.submeshes
        busy_us = of_submeshes(self.searched.busy_us(self.numbers), submeshes, add)
        return [1 - busy_us[submesh] / self.time_us for submesh in submeshes]

    @property
    def idle_share(self) -> float:
        """The share of all devices' time in which they wait for other stages."""
        return sum(self.idle_shares) / self.n_stages

    @property
    def costs_ns(self) -> tuple[int, int, int]:
        """The time of a step, and the compute and the overlap of the devices of which they are longest."""
        return round(self.time_us * 1e3), self._most("compute_ns"), self._most("overlap_ns")

    @property
    def costs(self) -> FrontierPoint:
        """The costs of a step: each but its time is that of the devices of which it is largest."""
        compute, network, overlap = (self._most(name) / 1e3 for name in ("compute_ns", "network_ns", "overlap_ns"))
        exact = self.searched.is_uncut and bool(self.frontiers[0].found.exact_points[self.numbers[0]])
        return FrontierPoint(self._most("mem_bytes"), self.time_us, compute, network, overlap, exact)

    @cached_property
    def bound_us(self) -> float:
        """The time that no step beats in the same stages, micro-batches and order, in no more memory of any stage."""
        return min(self.time_us, self.searched.bound_of(self.numbers, self.order))

    @cached_property
    def gap(self) -> float:
        """The least e such that none of these steps has both 1 / (1 + e) of the memory, in each stage, and of the time."""
        low, high = 0.0, self.time_us / self.bound_us - 1 if self.bound_us else 0.0
        while high - low > GAP_UNIT:
            middle = (low + high) / 2
            is_proven = self.searched.bound_of(self.numbers, self.order, middle) * (1 + middle) >= self.time_us
            low, high = (low, middle) if is_proven else (middle, high)
        return high

    def _most(self, name: str) -> int:
        """Return the largest amount of a submesh's stages together."""
        chosen = zip(self.searched.frontiers, self.numbers, strict=True)
        of_stages = [int(getattr(frontier.costs, name)[number]) for frontier, number in chosen]
        return int(max(of_submeshes(of_stages, self.order.submeshes, add)))

    def plan(self, option: str, assumed: Mapping[str, Any]) -> Plan:
        stages, planned = self.searched.stages, []
        own = stages.whole.graph.operators
        mesh = self.searched.frontiers[0].hardware.mesh(sum(block.size for block in set(self.searched.blocks)))
        for frontier, block, last_operator, number, in_flight, deferred, n_bytes, idle_share in zip(
            self.searched.frontiers, self.searched.blocks, (*stages.cuts, ""), self.numbers, self.order.in_flight,
            self.order.deferred, self.stage_bytes, self.idle_shares, strict=True,
        ):  # fmt: skip
            stage = frontier.stage(number)
            operators = (replace(op, is_stand_in=op.name not in own) for op in stage.operators)
            planned.append(replace(
                stage, devices=block.devices, operators=tuple(operators), last_operator=last_operator, in_flight=in_flight,
                deferred=deferred, peak_bytes=n_bytes, idle_share=idle_share,
            ))
        return Plan(
            stages=tuple(planned),
            mesh=mesh,
            exact=self.searched.is_uncut and self.frontiers[0].found.exact,
            schedule=self.order.schedule,
            interleaving=self.order.interleaving,
            micro_batches=self.micro_batches,
            time_us=self.time_us,
            model_digest=stages.whole.graph.digest,
            option=option,
            assumed=dict(assumed),
            timeline=self.searched.timeline(self.numbers, self.order),
        )


@older_objects_kept()
def minimal_points(
    searched: Sequence[SearchedStages], limit_bytes: int | None, progress: Progress | None = None
) -> list[PlanPoint]:
    """Return the minimal of all points that were evaluated, by ascending peak.

    Args:
        limit_bytes: more points are evaluated next to this memory limit.
        progress: called with ("peaks", done, total) now and then.
    """
    points: list[PlanPoint] = []
    for each in searched:
        if each.is_uncut:
            own = points_of_whole(each)
            points += own if each.frontiers[0].all_peaks is not None else evaluated(own, limit_bytes, progress)
    points += evaluated(staged_points([each for each in searched if not each.is_uncut]), limit_bytes, progress)
    return reduced(points)


def points_of_whole(searched: SearchedStages) -> list[PlanPoint]:
    """Return the points of a frontier of a model that isn't cut."""
    times_us = (searched.frontiers[0].costs.time_ns / 1e3).tolist()
    order = StepOrder(PLAIN, searched.micro_batches, (1,), (0,))
    return [PlanPoint(searched, order, (number,), time_us) for number, time_us in enumerate(times_us)]


def reduced(points: Sequence[PlanPoint]) -> list[PlanPoint]:
    """Return the points that no other one beats in peak and time; of equal ones the first."""
    mem_bytes = np.array([point.n_bytes for point in points], np.int64)
    time_ns = np.array([point.costs_ns[0] for point in points], np.int64)
    return [points[i] for i in reduce_unsorted(mem_bytes, time_ns)]


def staged_points(searched: Sequence[SearchedStages]) -> list[PlanPoint]:
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
        found.append(PlanPoint(of_cut, combined.order, numbers, float(combined.time_us[at])))
    return found


def evaluated(
    points: Sequence[PlanPoint], limit_bytes: int | None, progress: Progress | None, most: int = MOST_EVALUATED
) -> list[PlanPoint]:
    """Return some of the points, by ascending memory, whose peaks are then known: all of few, and those next to a limit.

    Peaks grow with memory but for little, so the fastest point within the limit is found by halving.

    Args:
        most: so many from end to end are evaluated apart from those next to a limit, 2 or more.
    """
    n, done = len(points), 0
    if n == 0:
        return []
    at = {round(i * (n - 1) / (most - 1)) for i in range(most)}
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
