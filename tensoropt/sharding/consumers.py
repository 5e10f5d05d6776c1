"""Find the consumers of each tensor in a program: operators, updates of variables, and training steps themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..ir.gradient_info import Backward
from ..ir.graph import Graph, Tensor
from ..reschedule.layout import Layout
from ..reschedule.mesh import Mesh
from ..rules.rule import Interface, OperandSharding
from .strategy import StrategyView, sharding_of_operand

LOSS, HYPERPARAMETER = -1, -2


@dataclass(frozen=True, slots=True)
class Consumer:
    """An operator at an input position; a training step (position LOSS or HYPERPARAMETER); or an update of a variable.

    ``name`` is the operator's or the step's. For an update it is the variable's, whose layout is the operand sharding.
    """

    name: str
    position: int
    is_update: bool = False

    @property
    def is_step(self) -> bool:
        return self.position < 0


def consumers_of(graph: Graph) -> dict[str, list[Consumer]]:
    """Return the consumers of each tensor by the tensor's name, in program order.

    They are those of the training steps, or of the whole graph if it has none.
    """
    consumers: dict[str, list[Consumer]] = {}
    for op in graph.step_operators if graph.train_steps else graph.operators.values():
        for position, tensor in op.operands:
            consumer = Consumer(op.updates or op.name, position, op.updates is not None)
            consumers.setdefault(tensor.name, []).append(consumer)
    for backward_pass in graph.backward_passes:
        consumers.setdefault(backward_pass.loss.name, []).append(Consumer(backward_pass.name, LOSS))
    for step in graph.train_steps.values():
        for variable, gradient in zip(step.variables, step.gradients, strict=False):
            if graph.producers[gradient.name].updates != variable:  # else it has the variable's layout already
                consumers.setdefault(gradient.name, []).append(Consumer(variable, 0, is_update=True))
        for value in step.optimizer.tensors:
            consumers.setdefault(value.name, []).append(Consumer(step.name, HYPERPARAMETER))
    return consumers


def passes_to(backward: Backward, consumers: Sequence[Consumer]) -> frozenset[str]:
    """Return the names of the backward passes in which a gradient comes back from some of a tensor's consumers."""
    operands = [(consumer.name, consumer.position) for consumer in consumers if not consumer.is_update]
    return backward.passes_to(operands).union(consumer.name for consumer in consumers if consumer.position == LOSS)


def step_sharding(mesh: Mesh, tensor: Tensor, consumer: Consumer) -> OperandSharding:
    """Return the operand sharding (OperandSharding) of a training step: its loss and its hyperparameters replicated."""
    replicated = Layout.replicated(mesh, len(tensor.shape))
    return OperandSharding(replicated, () if consumer.position == LOSS else None)


def consumer_sharding(interface: Interface, consumer: Consumer, gradients: frozenset[tuple[str, int]]) -> OperandSharding:
    """Return the operand sharding of a consumer that isn't a step, from the interface of the operator it is named after."""
    if consumer.is_update:
        return OperandSharding(interface.results[0], None)
    return sharding_of_operand(interface, consumer.name, consumer.position, gradients)


def as_copy(sharding: OperandSharding, with_gradient: bool) -> OperandSharding:
    """Return an operand sharding as that of a shared copy; ``with_gradient`` is whether any of its consumers has one."""
    return OperandSharding(sharding.layout, (sharding.unreduced or ()) if with_gradient else None)


def shareable_copies(shardings: Sequence[OperandSharding]) -> list[OperandSharding]:
    """Return the operand shardings of the copies that consumers with these operand shardings may share."""
    with_gradient = any(sharding.unreduced is not None for sharding in shardings)
    return list(dict.fromkeys(as_copy(sharding, with_gradient) for sharding in shardings))


def sharding_of(view: StrategyView, tensor: Tensor, consumer: Consumer) -> OperandSharding:
    if consumer.is_step:
        return step_sharding(view.strategy.mesh, tensor, consumer)
    return consumer_sharding(view.interfaces[consumer.name], consumer, view.backward.gradients)
