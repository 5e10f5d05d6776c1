"""Tell of which operators, in which configs, plans consist: of the whole model, or of each of its stages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..plan.find_frontier import ModelFrontier
from ..plan.frontier import PlanFrontier
from ..plan.plan import Plan
from ..plan.staged_frontier import StagedFrontier
from ..plan.staged_frontier_points import UnstagedPoint
from ..plan.staged_plan import StagedPlan
from ..profiling.work import WorkItem
from ..rules.registry import rule_of
from ..rules.rule import Config, interface_of
from ..sharding.model import Model


@dataclass(frozen=True, eq=False)
class PlannedPart:
    """A model or one of its stages, with a config for each of its operators.

    Attributes:
        frontier: the frontier that it was searched in, which has the costs.
    """

    frontier: ModelFrontier
    configs: Mapping[str, Config]

    @property
    def micro_batches(self) -> int:
        """The number of micro-batches that its operators run for."""
        return self.frontier.model.graph.n_micro_batches

    def pairs(self, whole: Model) -> list[tuple[str, Config]]:
        """Return the operators in training steps with their configs, but those that only stages have: what they are fed by
        others, and the loss that stands in for theirs.
        """
        return [
            (op.name, self.configs[op.name])
            for op in self.frontier.model.graph.step_operators
            if op.updates is None and op.name in self.configs and op.name in whole.graph.operators
        ]


def work_of(frontier: ModelFrontier, name: str, config: Config) -> WorkItem | None:
    """Return the work of an operator; None where it has none that could be timed by itself."""
    op = frontier.model.graph.operators[name]
    rule = rule_of(op)
    return frontier.costing.work(op, rule, config, interface_of(rule, config))


def parts_of(plan: Plan | StagedPlan) -> list[PlannedPart]:
    """Return the parts of a plan that was found in this process: its stages, or all of it."""
    frontier = plan.frontier
    if isinstance(plan, StagedPlan):
        assert isinstance(frontier, StagedFrontier) and plan.point is not None
        frontiers = frontier.points_of[plan.point].frontiers
        return [
            PlannedPart(of_stage, stage.plan.strategy.configs)
            for of_stage, stage in zip(frontiers, plan.stages, strict=True)
        ]
    return [PlannedPart(unstaged_frontier(plan), plan.strategy.configs)]


def fastest_without_stages(plan: StagedPlan, limit_bytes: int | None) -> tuple[ModelFrontier, int] | None:
    """Return the fastest point without stages that was searched beside a plan with stages, and fits: its frontier, and its
    number there. None where nothing fits, or nothing without stages was searched.
    """
    assert isinstance(plan.frontier, StagedFrontier)
    fastest = [(each, each.fastest_within(limit_bytes)) for each in plan.frontier.unstaged]
    fitting = [(each, point) for each, point in fastest if point is not None]
    return min(fitting, key=lambda each: each[0].points[each[1]].time_us, default=None)


def parts_without_stages(plan: Plan | StagedPlan, limit_bytes: int | None) -> list[PlannedPart]:
    """Return the one part of :func:`fastest_without_stages`, if there is one and the plan has stages."""
    fastest = fastest_without_stages(plan, limit_bytes) if isinstance(plan, StagedPlan) else None
    if fastest is None:
        return []
    frontier, point = fastest
    return [PlannedPart(frontier, frontier.built.strategy(frontier.found.strategies[point]).configs)]


def unstaged_frontier(plan: Plan) -> ModelFrontier:
    """Return the frontier without stages that a plan was found in."""
    frontier = plan.frontier
    if isinstance(frontier, StagedFrontier):
        point = None if plan.point is None else frontier.points_of[plan.point]
        return point.frontier if isinstance(point, UnstagedPoint) else frontier.unstaged[0]
    assert isinstance(frontier, ModelFrontier)
    return frontier


def parts_of_points(frontier: PlanFrontier[Any] | None) -> Iterator[PlannedPart]:
    """Yield the parts of all points of a frontier, with stages or without."""
    if isinstance(frontier, ModelFrontier):
        for states in frontier.found.strategies:
            yield PlannedPart(frontier, frontier.built.strategy(states).configs)
        return
    assert isinstance(frontier, StagedFrontier)
    for point in frontier.points_of:
        for of_stage, number in zip(point.frontiers, point.numbers, strict=True):
            yield PlannedPart(of_stage, of_stage.built.strategy(of_stage.found.strategies[number]).configs)
