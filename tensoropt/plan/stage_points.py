"""Find the points of a model that is cut one way: a point of each stage's frontier, by memory per device and time of a step.

A step isn't faster where a stage is slower. So within a memory limit each stage takes its fastest point; the limits that
matter are the bytes of the stages' points. Each limit gives one combination of points, and all are timed at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from ..ft.pareto import reduce_unsorted
from ..program.schedule import StepOrder, Times, tried_orders
from ..sharding.stages import Stages
from .find_frontier import ModelFrontier
from .stage_memory import StageCosts
from .stage_timeline import stage_timeline
from .stage_times import PassTimes, Transfers, step_us

WORTH_MEMORY = 0.01
"""More micro-batches in flight or deferred take memory, and so must save this share of a step."""


class StageCombinations(NamedTuple):
    """Points of all stages with one order of the step's passes, C combinations by ascending bytes.

    Attributes:
        order: the order.
        points: the number of each stage's point in its frontier, int64[stages, C].
        stage_bytes: the bytes per device of each stage, as the searches counted them, int64[stages, C].
        time_us: the time of a step, float64[C].
    """

    order: StepOrder
    points: np.ndarray
    stage_bytes: np.ndarray
    time_us: np.ndarray

    @property
    def mem_bytes(self) -> np.ndarray:
        """The bytes of the device that needs the most, int64[C]."""
        most: np.ndarray = self.stage_bytes.max(axis=0)
        return most


@dataclass(frozen=True, eq=False)
class SearchedStages:
    """A model that is cut one way, with the frontier of each stage in a number of micro-batches.

    Attributes:
        schedule: the name of the order of passes, see :mod:`..program.schedule`; None where it is chosen.
        works, beside, transfers: what the times of stages follow from, whatever the points: see :mod:`.stage_times`.
        bound_us: a time that no step in so many stages beats, wherever the model is cut, in any of the numbers of
            micro-batches that were considered.
        costs: the costs of the points of each stage; None for those that the searches counted.
    """

    stages: Stages
    frontiers: tuple[ModelFrontier, ...]
    micro_batches: int
    schedule: str | None
    works: tuple[PassTimes, ...]
    beside: tuple[PassTimes, ...]
    transfers: Transfers
    bound_us: float
    costs: tuple[StageCosts, ...] | None = None

    @cached_property
    def combinations(self) -> tuple[StageCombinations, ...]:
        """The combinations of points, for each order that is tried.

        Those of later orders are faster by WORTH_MEMORY than all within as many bytes of those before.
        """
        first, *others = tried_orders(self.schedule, self.stages.n, self.micro_batches)
        found = [self._combined(first)]
        for order in others:
            combined = self._combined(order)
            least = np.min([_least_time(each, combined.mem_bytes) for each in found], axis=0)
            kept = np.flatnonzero(combined.time_us < (1 - WORTH_MEMORY) * least)
            found.append(
                StageCombinations(order, combined.points[:, kept], combined.stage_bytes[:, kept], combined.time_us[kept])
            )
        return tuple(found)

    @cached_property
    def least_us(self) -> float:
        """The least time of a step, with each operator split as it is fastest and nothing communicated inside of stages."""
        passes = [work + other for work, other in zip(self.works, self.beside, strict=True)]
        orders = tried_orders(self.schedule, self.stages.n, self.micro_batches)
        return min(float(step_us(passes, self.transfers, order)) for order in orders)

    def busy_us(self, points: Sequence[int]) -> list[float]:
        """Return for a point of each stage the time of all that it does in a step."""
        return [each.total(self.micro_batches) for each in self._times_of(points)]

    def timeline(self, points: Sequence[int], order: StepOrder) -> dict[str, Any]:
        """Return when each stage does what with a point of each stage; see :func:`.stage_timeline.stage_timeline`."""
        sizes = [frontier.mesh.n_devices for frontier in self.frontiers]
        return stage_timeline(self._times_of(points), self.transfers, order, sizes)

    def _times_of(self, points: Sequence[int]) -> list[PassTimes]:
        chosen = zip(self.frontiers, points, strict=True)
        return self._times([float(frontier.costs.time_ns[point]) / 1e3 for frontier, point in chosen])

    def step_us(self, searched_us: Sequence[Times], order: StepOrder) -> Times:
        """Return the time of a step, given the time of each stage as it was searched, of all micro-batches."""
        return step_us(self._times(searched_us), self.transfers, order)

    def _times(self, searched_us: Sequence[Times]) -> list[PassTimes]:
        of_stages = zip(self.works, self.beside, searched_us, strict=True)
        return [_taking(time_us, work, self.micro_batches) + other for work, other, time_us in of_stages]

    def _combined(self, order: StepOrder) -> StageCombinations:
        """Return all combinations in which each stage has its fastest point within some bytes."""
        minimal = []
        for stage, costs in enumerate(self.stage_costs):
            n_bytes = costs.bytes_of(stage, order)
            kept = reduce_unsorted(n_bytes, costs.time_ns)
            minimal.append((kept, n_bytes[kept], costs.time_ns[kept]))
        least = max(int(n_bytes[0]) for _, n_bytes, _ in minimal)
        limits = np.unique(np.concatenate([n_bytes for _, n_bytes, _ in minimal]))
        limits = limits[limits >= least]
        at = [np.searchsorted(n_bytes, limits, side="right") - 1 for _, n_bytes, _ in minimal]
        time_us = self.step_us([time_ns[i] / 1e3 for (_, _, time_ns), i in zip(minimal, at, strict=True)], order)
        points = np.array([numbers[i] for (numbers, _, _), i in zip(minimal, at, strict=True)])
        stage_bytes = np.array([n_bytes[i] for (_, n_bytes, _), i in zip(minimal, at, strict=True)])
        return StageCombinations(order, points, stage_bytes, time_us)

    @cached_property
    def stage_costs(self) -> tuple[StageCosts, ...]:
        """The costs of all points of each stage."""
        return self.costs or tuple(StageCosts.of(frontier).near_peaks() for frontier in self.frontiers)


def _taking(time_us: Times, work: PassTimes, n_micro_batches: int) -> PassTimes:
    """Return the times of a stage's parts that together take so long, in proportion to its operators'.

    Where these are predicted to take no time, a third is that of forward passes: a backward pass computes two gradients for
    each product.
    """
    total_us = work.total(n_micro_batches)
    if total_us:
        return work.scaled(time_us / total_us)
    return PassTimes(time_us / (3 * n_micro_batches), 2 * time_us / (3 * n_micro_batches))


def _least_time(combinations: StageCombinations, mem_bytes: np.ndarray) -> np.ndarray:
    """Return the least time of the combinations within so many bytes, float64[len(mem_bytes)]."""
    if not len(combinations.time_us):
        return np.full(len(mem_bytes), np.inf)
    fastest = np.minimum.accumulate(combinations.time_us)
    at = np.searchsorted(combinations.mem_bytes, mem_bytes, side="right") - 1
    return np.where(at < 0, np.inf, fastest[np.maximum(at, 0)])
