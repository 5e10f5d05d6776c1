"""The points of a frontier of plans with stages and without."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import add
from typing import Any

import numpy as np

from ...common.garbage import older_objects_kept
from ...ft.pareto import reduce_unsorted
from ...plan.plan import Plan
from ...plan.points import FrontierPoint, Passes
from ...program.schedule import StepOrder, of_submeshes
from ..frontiers.details import details_of_stage
from ..frontiers.model_frontier import ModelFrontier
from ..stages.points import SearchedStages, StageCombinations


@dataclass(frozen=True, eq=False)
class PlanPoint:
    """A point of a frontier of plans: a point of each stage's frontier.

    Attributes:
        searched: the cut of which it is, with the stages' frontiers.
        order: the order of the step's passes.
        numbers: for each stage, the number of its point in its frontier.
        stage_bytes: the peak of each stage's devices, to which memory limits apply.
        time_us: the time of a step.
        bound_us: the time that no step beats in the same stages, micro-batches and order, in no more memory of any stage.
        gap: how far the point may be from the best of these, see :meth:`.SearchedStages.gaps`. Of a single search both are
            None, and the frontier has what is proven.
    """

    searched: SearchedStages
    order: StepOrder
    numbers: tuple[int, ...]
    stage_bytes: tuple[int, ...]
    time_us: float
    bound_us: float | None = None
    gap: float | None = None

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

    @property
    def peak_bytes(self) -> int:
        """The peak of the device that needs the most."""
        return max(self.stage_bytes)

    @cached_property
    def passes(self) -> Passes:
        return Passes(self.n_stages, self.micro_batches, self.idle_share)

    @property
    def parts(self) -> tuple[tuple[ModelFrontier, int], ...]:
        """For each stage its frontier, and the number of its point there."""
        return tuple(zip(self.frontiers, self.numbers, strict=True))

    @property
    def peak(self) -> Mapping[str, Any] | None:
        """The instant of the peak as a JSON value; None of several stages, whose instants differ."""
        return next((frontier.peak(self.numbers[0]).to_json() for frontier in self.searched.without_stages), None)

    @property
    def details(self) -> Sequence[Mapping[str, Any]]:
        return [details_of_stage(*part) for part in self.parts]

    @property
    def idle_shares(self) -> list[float]:
        """The share of the step in which each stage's devices wait for others."""
        submeshes = self.order.submeshes
        busy_us = of_submeshes(self.searched.busy_us(self.numbers), submeshes, add)
        return [1 - busy_us[submesh] / self.time_us if self.time_us else 0.0 for submesh in submeshes]

    @property
    def idle_share(self) -> float:
        """The share of all devices' time in which they wait for other stages."""
        return sum(self.idle_shares) / self.n_stages

    @property
    def costs_ns(self) -> tuple[int, int, int]:
        """The time of a step, and the compute and the overlap of the devices of which they are longest."""
        return round(self.time_us * 1e3), self._most("compute_ns"), self._most("overlap_ns")

    @cached_property
    def costs(self) -> FrontierPoint:
        """The costs of a step: each but its time is that of the devices of which it is largest."""
        compute, network, overlap = (self._most(name) / 1e3 for name in ("compute_ns", "network_ns", "overlap_ns"))
        exact = any(frontier.points[self.numbers[0]].exact for frontier in self.searched.without_stages)
        return FrontierPoint(self._most("mem_bytes"), self.time_us, compute, network, overlap, exact)

    def _most(self, name: str) -> int:
        """Return the largest amount of a submesh's stages together."""
        amounts = [int(getattr(frontier.costs, name)[number]) for frontier, number in self.parts]
        return int(max(of_submeshes(amounts, self.order.submeshes, add)))

    def plan(self, option: str, assumed: Mapping[str, Any]) -> Plan:
        """Return the plan of the point; see :class:`...plan.points.Point`."""
        stages, stage_plans = self.searched.stages, []
        model_operators = stages.whole.graph.operators
        mesh = self.searched.frontiers[0].hardware.mesh(sum(block.size for block in set(self.searched.blocks)))
        for frontier, block, last_operator, number, in_flight, deferred, n_bytes, idle_share in zip(
            self.searched.frontiers, self.searched.blocks, (*stages.cuts, ""), self.numbers, self.order.in_flight,
            self.order.deferred, self.stage_bytes, self.idle_shares, strict=True,
        ):  # fmt: skip
            stage = frontier.stage(number)
            operators = (replace(op, is_stand_in=op.name not in model_operators) for op in stage.operators)
            stage_plans.append(replace(
                stage, devices=block.devices, operators=tuple(operators), last_operator=last_operator, in_flight=in_flight,
                deferred=deferred, peak_bytes=n_bytes, idle_share=idle_share,
            ))
        return Plan(
            stages=tuple(stage_plans),
            mesh=mesh,
            exact=any(frontier.found.exact for frontier in self.searched.without_stages),
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
def minimal_points(cuts: Sequence[SearchedStages]) -> list[PlanPoint]:
    """Return the minimal of all points, by ascending peak."""
    return points_of([(cut, combined) for cut in cuts for combined in cut.combinations])


def points_of(pairs: Sequence[tuple[SearchedStages, StageCombinations]]) -> list[PlanPoint]:
    """Return the combinations that no other one beats in peak and time, by ascending peak; of equal ones the first."""
    if not pairs:
        return []
    mem_bytes = np.concatenate([combined.mem_bytes for _, combined in pairs])
    time_us = np.concatenate([combined.time_us for _, combined in pairs])
    numbers = np.concatenate([np.full(len(combined.time_us), i) for i, (_, combined) in enumerate(pairs)])
    minimal = reduce_unsorted(mem_bytes, np.rint(time_us * 1e3).astype(np.int64))
    starts = np.searchsorted(numbers, np.arange(len(pairs)))
    points: dict[int, PlanPoint] = {}
    for number in np.unique(numbers[minimal]):
        cut, combined = pairs[number]
        indices = minimal[numbers[minimal] == number]
        selected = combined.take(indices - starts[number])
        bounds_us = np.minimum(selected.time_us, cut.bounds_us(selected.points, combined.order))
        gaps = cut.gaps(selected.points, combined.order, selected.time_us)
        costs = selected.points.T, selected.stage_bytes.T, selected.time_us, bounds_us, gaps
        for index, (stage_points, stage_bytes, time, bound_us, gap) in zip(indices, zip(*costs, strict=True), strict=True):
            values = tuple(stage_points.tolist()), tuple(stage_bytes.tolist())
            points[index] = PlanPoint(cut, combined.order, *values, float(time), float(bound_us), float(gap))
    return [points[index] for index in minimal]
