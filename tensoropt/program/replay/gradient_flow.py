"""Find the way of gradients through operators, reshardings and shared copies."""

from __future__ import annotations

from typing import NamedTuple

from ...ir.graph import Operator, Tensor
from ...sharding.resharding import Resharding, Router
from ...sharding.strategy import StrategyView
from .program import operand_of

OPERATOR, OPERAND, SHARED, RESULT, START = "operator", "operand", "shared copy", "result", "start"


class BackwardNode(NamedTuple):
    """A node of the backward pass, which ``kind`` and ``name`` identify.

    - OPERATOR: an operator;
    - OPERAND: the resharding of an operator's operand at ``position``;
    - SHARED: the resharding to the shared copy of a tensor;
    - RESULT: a result of an operator, where the gradients of its consumers are summed;
    - START: the node at which the backward pass after all micro-batches starts.
    """

    kind: str
    name: str
    position: int = -1


class GradientFlow:
    """The graph of backward nodes under a strategy."""

    def __init__(self, view: StrategyView, router: Router) -> None:
        self.view, self.router = view, router

    def to_shared(self, tensor: Tensor) -> Resharding | None:
        """Return the resharding to the copy that all consumers share; None if they share none."""
        shared = self.view.strategy.shared.get(tensor.name)
        return None if shared is None else self.view.shared_resharding(tensor, shared)

    def accumulates(self, op: Operator, position: int) -> bool:
        """Return whether an operand's gradients are accumulated over micro-batches.

        They are where the operand was resharded once for all micro-batches, and are accumulated at that copy.
        """
        graph = self.view.graph
        return graph.n_runs(op.result.name) > 1 and graph.accumulates(operand_of(op, position).name)

    def sources(self, node: BackwardNode) -> list[BackwardNode]:
        """Return the nodes to which gradients go on from an operator, or from the resharding of an operand or a copy."""
        if node.kind == SHARED:
            return [BackwardNode(OPERATOR, self.view.graph.producers[node.name].name)]
        op = self.view.graph.operators[node.name]
        if node.kind == OPERAND:
            return [self.produced_at(operand_of(op, node.position))]
        positions = [i for i, _ in op.operands if (op.name, i) in self.view.gradients and not self.accumulates(op, i)]
        return [self.goes_to(op, i) for i in positions]

    def goes_to(self, op: Operator, position: int) -> BackwardNode:
        """Return the node to which an operand's gradient goes: its resharding or, if that is free, the node after it."""
        tensor = operand_of(op, position)
        if self.router.route(self.view.resharding(tensor, self.view.sharding(op, position))).is_free:
            return self.produced_at(tensor)
        return BackwardNode(OPERAND, op.name, position)

    def produced_at(self, tensor: Tensor) -> BackwardNode:
        """Return the node to which gradients go from a tensor's consumers: its shared copy or, without one, its producer."""
        to_shared = self.to_shared(tensor)
        if to_shared is not None and not self.router.route(to_shared).is_free:
            return BackwardNode(SHARED, tensor.name)
        return BackwardNode(OPERATOR, self.view.graph.producers[tensor.name].name)
