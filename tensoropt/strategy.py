"""A strategy: a config for each operator, and for each shared tensor the copy from which its consumers take it.

A tensor with several consumers is delivered once for a demand, and each consumer takes it from this *shared copy*, at no
cost if it has just this demand. Their gradients are summed in the copy's gradient layout and go back together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from .deliveries import Delivery, delivery_of
from .ir import Graph, Operator, Tensor
from .reschedule.layout import Layout
from .reschedule.mesh import Mesh
from .rules.registry import rule_of
from .rules.rule import Config, Demand, Interface, Rule, interface


@dataclass(frozen=True, eq=False)
class Strategy:
    """Attributes:
    mesh: the devices.
    configs: by operator name.
    shared: by tensor name, the demand of the copy that its consumers share; without one they take what the producer left.
    """

    mesh: Mesh
    configs: Mapping[str, Config]
    shared: Mapping[str, Demand] = field(default_factory=dict)


@dataclass(frozen=True)
class StrategyView:
    """A strategy seen on its graph: rules, interfaces and demands, each worked out once.

    ``gradients`` holds (operator, position) of every operand to which a gradient comes back.
    """

    graph: Graph
    strategy: Strategy
    gradients: frozenset[tuple[str, int]]

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

    def layout(self, tensor: Tensor) -> Layout:
        """The layout in which a tensor's producer leaves it; what is read after an update lies as the variable does."""
        producer = self.graph.producers[tensor.name]
        if producer.updates is not None:
            return self.interfaces[producer.updates].results[0]
        return self.interfaces[producer.name].results[producer.outputs.index(tensor)]

    def delivery(self, tensor: Tensor, demand: Demand) -> Delivery:
        """What brings a tensor to a demand: from the copy that is shared, if there is one, else from its producer."""
        shared = self.strategy.shared.get(tensor.name)
        if shared is None:
            return delivery_of(tensor, self.layout(tensor), demand)
        return delivery_of(tensor, shared.layout, demand, shared.varying)

    def demand(self, op: Operator, position: int) -> Demand:
        """What an operator asks of its operand at an input position."""
        return operand_demand(self.interfaces[op.name], op.name, position, self.gradients)


def operand_demand(seen: Interface, name: str, position: int, gradients: frozenset[tuple[str, int]]) -> Demand:
    """An operand's demand, without a gradient where none comes back."""
    demand = seen.operands[position]
    assert demand is not None
    return demand if (name, position) in gradients else Demand(demand.layout, None)
