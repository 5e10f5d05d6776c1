"""A strategy: a config for each operator, and for each shared tensor the copy from which its consumers take it.

A tensor with several consumers is resharded once for a demand, and each consumer takes it from this *shared copy*, at no
cost if it has just this demand. Their gradients are summed in the copy's gradient layout and go back together.

A resharded copy that a gradient reads is kept for the backward pass, or *made again* there: dropped after its use, and
resharded once more when the gradient comes to the first operator that reads it (tensor reuse in the TensorOpt paper's
section 4.2; of a parameter that is split finer than its use it is what ZeRO's third stage does).

What an operator makes is kept for the backward pass too, as far as that reads it, or *recomputed*: dropped, and computed
again when the backward pass comes to what reads it first. What isn't kept of its operands either is there again then: made
again, or recomputed as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from ..ir.graph import VARIABLE, Graph, Operator, Tensor
from ..reschedule.layout import Layout, needs_communication
from ..reschedule.mesh import Mesh
from ..rules.registry import rule_of
from ..rules.rule import Config, Demand, Interface, Rule, interface
from .rematerializable import is_recomputable
from .resharding import Resharding, resharding_of


class Copy(NamedTuple):
    """A resharded copy of a tensor: the one that an operator takes, or where ``consumer`` is None the one that all share."""

    tensor: str
    consumer: str | None = None


@dataclass(frozen=True, eq=False)
class Strategy:
    """Attributes:
    mesh: the devices.
    configs: by operator name.
    shared: by tensor name, the demand of the copy that its consumers share; without one they take what the producer left.
    remade: the copies that are made again in the backward pass; those that it doesn't read aren't, even if named here.
    recomputed: names of the operators that are computed again in the backward pass, if that reads what they made; those
        that can't be (:mod:`.rematerializable`) aren't, even if named here.
    """

    mesh: Mesh
    configs: Mapping[str, Config]
    shared: Mapping[str, Demand] = field(default_factory=dict)
    remade: frozenset[Copy] = frozenset()
    recomputed: frozenset[str] = frozenset()


@dataclass(frozen=True)
class StrategyView:
    """A strategy seen on its graph: rules, interfaces and demands, each worked out once.

    ``gradients`` holds (operator, position) of every operand to which a gradient comes back, ``kept_operands`` of every
    operand that the operator's own gradient reads; it may be left out where the strategy makes nothing again.
    """

    graph: Graph
    strategy: Strategy
    gradients: frozenset[tuple[str, int]]
    kept_operands: frozenset[tuple[str, int]] = frozenset()

    @cached_property
    def rules(self) -> dict[str, Rule]:
        return {name: rule_of(op) for name, op in self.graph.operators.items()}

    @cached_property
    def interfaces(self) -> dict[str, Interface]:
        return {
            name: interface(self.rules[name], self.strategy.configs[name])
            for name in self.graph.operators
            if name in self.strategy.configs
        }

    @cached_property
    def recomputed(self) -> frozenset[str]:
        """The operators that are computed again: those of the strategy's that can be."""
        operators = self.graph.operators
        return frozenset(
            name
            for name in self.strategy.recomputed
            if name in self.interfaces
            and is_recomputable(self.graph, operators[name], self.rules[name], self.strategy.configs[name], self.gradients)
        )

    def takes_regathered(self, op: Operator, position: int) -> bool:
        """Whether the copy that an operator takes isn't kept if the tensor isn't: it is made without communication, or made
        again.
        """
        tensor, remade = op.inputs[position], self.strategy.remade
        assert tensor is not None
        shared, wanted, left = self.strategy.shared.get(tensor.name), self.demand(op, position).layout, self.layout(tensor)
        source = left if shared is None else shared.layout
        if needs_communication(source, wanted) and Copy(tensor.name, op.name) not in remade:
            return False
        return shared is None or not needs_communication(left, shared.layout) or Copy(tensor.name) in remade

    def layout(self, tensor: Tensor) -> Layout:
        """The layout in which a tensor's producer leaves it; what is read after an update lies as the variable does."""
        producer = self.graph.producers[tensor.name]
        if producer.updates is not None:
            return self.interfaces[producer.updates].results[0]
        return self.interfaces[producer.name].results[producer.outputs.index(tensor)]

    def is_variable(self, tensor: Tensor) -> bool:
        """Whether a tensor is the value of a variable when the step begins."""
        return self.graph.producers[tensor.name].type == VARIABLE

    def shared_resharding(self, tensor: Tensor, demand: Demand) -> Resharding:
        """What brings a tensor to the copy that its consumers share."""
        return resharding_of(tensor, self.layout(tensor), demand, of_variable=self.is_variable(tensor))

    def resharding(self, tensor: Tensor, demand: Demand) -> Resharding:
        """What brings a tensor to a demand: from the copy that is shared, if there is one, else from its producer."""
        shared = self.strategy.shared.get(tensor.name)
        if shared is None:
            return resharding_of(tensor, self.layout(tensor), demand, of_variable=self.is_variable(tensor))
        return resharding_of(tensor, shared.layout, demand, shared.varying)

    def is_remade(self, op: Operator, position: int) -> bool:
        """Whether the copy that an operator takes at an input position is made again in the backward pass."""
        tensor, remade = op.inputs[position], self.strategy.remade
        if tensor is None or not (remade or self.recomputed) or not self.reads(op, position):
            return False
        return Copy(tensor.name, op.name) in remade or self.follows_source(op, position)

    def follows_source(self, op: Operator, position: int) -> bool:
        """Whether the copy that an operator takes is made again because that is which it is made of without communication: a
        shared copy or an operator's result. It may be a view of that, and would keep it.
        """
        tensor = op.inputs[position]
        if tensor is None or not self.reads(op, position):
            return False
        shared, wanted, left = self.strategy.shared.get(tensor.name), self.demand(op, position).layout, self.layout(tensor)
        source = left if shared is None else shared.layout
        if source == wanted or needs_communication(source, wanted):
            return False
        is_regathered = self.graph.producers[tensor.name].name in self.recomputed
        is_regathered = is_regathered and (shared is None or not needs_communication(left, shared.layout))
        return is_regathered or Copy(tensor.name) in self.strategy.remade

    def reads_remade(self, op: Operator, position: int) -> bool:
        """Whether the gradient of an operator reads, for its operand, the shared copy after it was made again."""
        tensor = op.inputs[position]
        if tensor is None or Copy(tensor.name) not in self.strategy.remade or not self.reads(op, position):
            return False
        shared = self.strategy.shared.get(tensor.name)
        return shared is not None and (
            self.demand(op, position).layout == shared.layout or self.is_remade(op, position)
        )

    def reads(self, op: Operator, position: int) -> bool:
        """Whether the backward pass reads an operand as an operator takes it: its own gradient (not of exchanged windows, of
        which that reads what they cover), or to compute it again.
        """
        if op.name in self.recomputed:
            return True
        tensor = op.inputs[position]
        if (op.name, position) not in self.kept_operands or tensor is None or self.graph.accumulates(tensor.name):
            return False
        return position != 0 or not self.rules[op.name].exchanged(self.strategy.configs[op.name])

    def demand(self, op: Operator, position: int) -> Demand:
        """What an operator asks of its operand at an input position."""
        return operand_demand(self.interfaces[op.name], op.name, position, self.gradients)


def operand_demand(seen: Interface, name: str, position: int, gradients: frozenset[tuple[str, int]]) -> Demand:
    """An operand's demand, without a gradient where none comes back."""
    demand = seen.operands[position]
    assert demand is not None
    return demand if (name, position) in gradients else Demand(demand.layout, None)
