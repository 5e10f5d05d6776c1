"""Who takes each tensor in a training step: operators, updates of variables, and the steps themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..ir.graph import Graph, Tensor
from ..reschedule.layout import Layout
from ..reschedule.mesh import Mesh
from ..rules.rule import Demand, Interface
from .strategy import StrategyView, operand_demand

LOSS, HYPERPARAMETER = -1, -2


@dataclass(frozen=True, slots=True)
class Taker:
    """An operator at an input position; a training step (LOSS or HYPERPARAMETER); or an update of a variable.

    ``name`` is that of the operator or step, of an update that of its variable: whose layout decides the demand.
    """

    name: str
    position: int
    is_update: bool = False

    @property
    def is_step(self) -> bool:
        return self.position < 0


def takers_of(graph: Graph) -> dict[str, list[Taker]]:
    """By tensor name, everyone who takes it in a training step, in program order."""
    takers: dict[str, list[Taker]] = {}
    for op in graph.step_operators:
        for position, tensor in op.operands:
            taker = Taker(op.updates or op.name, position, op.updates is not None)
            takers.setdefault(tensor.name, []).append(taker)
    for step in graph.train_steps.values():
        takers.setdefault(step.loss.name, []).append(Taker(step.name, LOSS))
        for value in step.optimizer.tensors:
            takers.setdefault(value.name, []).append(Taker(step.name, HYPERPARAMETER))
    return takers


def step_demand(mesh: Mesh, tensor: Tensor, taker: Taker) -> Demand:
    """What a training step asks: its loss and its hyperparameters in whole on every device."""
    whole = Layout.replicated(mesh, len(tensor.shape))
    return Demand(whole, () if taker.position == LOSS else None)


def taker_demand(seen: Interface, taker: Taker, gradients: frozenset[tuple[str, int]]) -> Demand:
    """What a taker that isn't a step asks, by the interface of the operator it is named after."""
    if taker.is_update:
        return Demand(seen.results[0], None)
    return operand_demand(seen, taker.name, taker.position, gradients)


def as_copy(demand: Demand, with_gradient: bool) -> Demand:
    """A demand as that of a copy for several takers, of whom some have a gradient or none."""
    return Demand(demand.layout, (demand.varying or ()) if with_gradient else None)


def copies(demands: Sequence[Demand]) -> list[Demand]:
    """The copies that takers with these demands may share."""
    with_gradient = any(demand.varying is not None for demand in demands)
    return list(dict.fromkeys(as_copy(demand, with_gradient) for demand in demands))


def demand_of(view: StrategyView, tensor: Tensor, taker: Taker) -> Demand:
    """What a taker asks under a strategy."""
    if taker.is_step:
        return step_demand(view.strategy.mesh, tensor, taker)
    return taker_demand(view.interfaces[taker.name], taker, view.gradients)
