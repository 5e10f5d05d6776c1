"""Find the way of gradients through operators, reshardings and shared copies."""

from __future__ import annotations

from ..ir.graph import Operator, Tensor
from ..reschedule.path import Path
from ..sharding.resharding import Resharding, Router
from ..sharding.strategy import StrategyView
from .tasks import COMMUNICATING, COMPUTING, OPERAND, OVERLAPPABLE, RESULT, SHARED, Place


class GradientFlow:
    """The places that gradients come to, under a strategy."""

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

    def goes_to(self, op: Operator, position: int) -> Place:
        """Return the place to which an operand's gradient goes: its resharding or, if that is free, the place after it."""
        tensor = operand_of(op, position)
        if self.router.route(self.view.resharding(tensor, self.view.sharding(op, position))).is_free:
            return self.produced_at(tensor)
        return Place(OPERAND, op.name, position)

    def produced_at(self, tensor: Tensor) -> Place:
        """Return the place to which gradients go from a tensor's consumers: its shared copy or, without one, the result."""
        to_shared = self.to_shared(tensor)
        if to_shared is not None and not self.router.route(to_shared).is_free:
            return Place(SHARED, tensor.name)
        return Place(RESULT, tensor.name)

    def stream(self, path: Path | None, is_overlappable: bool = False) -> str:
        """Return the stream of a task that runs a path."""
        if path is None or not path.communicates:
            return COMPUTING
        return OVERLAPPABLE if is_overlappable else COMMUNICATING


def operand_of(op: Operator, position: int) -> Tensor:
    """Return the operand of an operator at an input position that isn't static."""
    tensor = op.inputs[position]
    assert tensor is not None
    return tensor
