"""Where gradients come to and go on from: operators, reshardings, shared copies."""

from __future__ import annotations

from typing import NamedTuple

from ...ir.graph import Operator, Tensor
from ...sharding.resharding import Resharding, Router
from ...sharding.strategy import StrategyView
from .program import operand_of

OPERATOR, OPERAND, SHARED, RESULT, START = "operator", "operand", "shared copy", "result", "start"


class Place(NamedTuple):
    """Where the backward pass comes to: an operator; the resharding of its operand at a position, or to the shared copy of a
    tensor; where gradients are left for an operator, one of its results; or where it starts.
    """

    kind: str
    name: str
    position: int = -1


class Places:
    """The ways of gradients under a strategy."""

    def __init__(self, view: StrategyView, router: Router) -> None:
        self.view, self.router = view, router

    def to_shared(self, tensor: Tensor) -> Resharding | None:
        """The resharding to the copy that all consumers share, if there is one."""
        shared = self.view.strategy.shared.get(tensor.name)
        return None if shared is None else self.view.shared_resharding(tensor, shared)

    def accumulates(self, op: Operator, position: int) -> bool:
        """Whether gradients of an operand are added up over slices of the batch, where it was resharded for all."""
        graph = self.view.graph
        return graph.n_runs(op.result.name) > 1 and graph.accumulates(operand_of(op, position).name)

    def sources(self, place: Place) -> list[Place]:
        """Where gradients go from an operator, a resharding to an operand, or to a copy that is shared."""
        if place.kind == SHARED:
            return [Place(OPERATOR, self.view.graph.producers[place.name].name)]
        op = self.view.graph.operators[place.name]
        if place.kind == OPERAND:
            return [self.left_at(operand_of(op, place.position))]
        positions = [i for i, _ in op.operands if (op.name, i) in self.view.gradients and not self.accumulates(op, i)]
        return [self.goes_to(op, i) for i in positions]

    def goes_to(self, op: Operator, position: int) -> Place:
        """The resharding of an operand; where there is nothing to do, what would come after it."""
        tensor = operand_of(op, position)
        if self.router.route(self.view.resharding(tensor, self.view.demand(op, position))).is_free:
            return self.left_at(tensor)
        return Place(OPERAND, op.name, position)

    def left_at(self, tensor: Tensor) -> Place:
        to_shared = self.to_shared(tensor)
        if to_shared is not None and not self.router.route(to_shared).is_free:
            return Place(SHARED, tensor.name)
        return Place(OPERATOR, self.view.graph.producers[tensor.name].name)
