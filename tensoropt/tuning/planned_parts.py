"""Tell of which operators, in which configs, plans consist: of the whole model, or of each of its stages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ..costs.config_costs import costs_of_config
from ..plan.frontier import Frontier
from ..plan.plan import Plan
from ..profiling.work import WorkItem
from ..rules.registry import rule_of
from ..rules.rule import Config
from ..search.frontiers.model_frontier import ModelFrontier
from ..sharding.model import Model


@dataclass(frozen=True, eq=False)
class PlannedPart:
    """A model or one of its stages, with a config for each of its operators.

    Attributes:
        frontier: the frontier that it was searched in, which has the costs.
    """

    frontier: ModelFrontier
    configs: Mapping[str, Config]

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
    return costs_of_config(frontier.costing, op, rule_of(op), config).work()


def parts_of(plan: Plan) -> list[PlannedPart]:
    """Return the parts of a plan that was found in this process: its stages."""
    parts = ((stage.frontier, stage.strategy.configs) for stage in plan.stages)
    return [PlannedPart(frontier, configs) for frontier, configs in parts if frontier is not None]


def parts_of_points(frontier: Frontier | None) -> Iterator[PlannedPart]:
    """Return the parts of all points of a frontier."""
    assert frontier is not None
    return (part_of(*part) for point in range(len(frontier)) for part in frontier.parts(point))


def part_of(frontier: ModelFrontier, point: int) -> PlannedPart:
    return PlannedPart(frontier, frontier.built.strategy(frontier.found.strategies[point]).configs)
