"""Define a strategy: a config for each operator, and which copies are shared, regathered or rematerialized.

A tensor with several consumers is resharded once, to the operand sharding (OperandSharding) of a *shared copy*. Each
consumer uses the tensor from there, at no cost if it asks for just this operand sharding. The consumers' gradients are
summed in the copy's gradient layout and go back together.

A resharded copy that a gradient reads is saved for the backward pass, or *regathered* there: freed after its use, and
resharded once more when the backward pass comes to the first operator that reads it. (This is tensor reuse in the TensorOpt
paper's section 4.2; for a parameter that is split finer than it is used, it is what ZeRO's third stage does.)

An operator's result is saved for the backward pass too, as far as that reads it, or *rematerialized* (``rematerialized`` in
the code): freed, and computed again when the backward pass comes to the first operator that reads it. Those of its operands
that aren't saved either are available again by then: regathered, or rematerialized as well. Operators may be rematerialized
that compute the same again, without communication:

| never rematerialized | why |
|---|---|
| sources, updates of variables, reads after an update | their values are given, or change |
| random operators, operators that read or move a generator's state | they would draw other numbers |
| loops, custom gradients | what they save is inside of them |
| lookups in tables that are updated by rows | updates use the indices as they were |
| operators without a rule | nothing is known about them |
| operators that no gradient passes through | the backward pass doesn't come to them |
| an operator in a config with reshardings inside of it | it communicates |
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple

from ..ir.body import COMPOSITES, VALUE_SHAPED
from ..ir.gradient_info import Backward, Operand
from ..ir.graph import SOURCES, VARIABLE, Graph, Operator, Tensor
from ..reschedule.layout import Layout, needs_communication
from ..reschedule.mesh import Mesh
from ..rules.random import RANDOM
from ..rules.registry import rule_of
from ..rules.rule import Config, Interface, OperandSharding, Rule, interface_of
from .resharding import Resharding, inner_reshardings, resharding_of


class Copy(NamedTuple):
    """A resharded copy of a tensor: the one that an operator uses, or the shared copy where ``consumer`` is None."""

    tensor: str
    consumer: str | None = None


UNREAD, READ, FIXED, PASSED, HELD = range(5)
USES = (UNREAD, PASSED), (FIXED, HELD), (READ, HELD)
"""How the backward pass uses the copy of an operand (:mod:`...search.problem.edge_costs`): by whether the operator's
gradient doesn't read it, reads a view or exchanged windows of it, or reads it itself; and by whether the operator is
rematerialized."""
MAY_BE_REGATHERED = frozenset((READ, PASSED, HELD))
ONCE, STAYS, FOLLOWS, MADE_AGAIN = range(4)
"""How the backward pass gets a copy: saved for all micro-batches; saved; made again if what it is made of is; made again."""


class Residual(NamedTuple):
    """How the backward pass gets the copy of an operand that an operator uses.

    Attributes:
        copy, shared: how it gets the copy, and the shared copy that this is made of.
        is_asked: whether it has the copy when it comes to the operator, whose gradient reads it; a copy that a collective
            regathers, or whose shared copy one does, it has there even if another operator reads it.
        is_with_source: whether the copy is regathered because its source, a regathered shared copy or a rematerialized
            result, is resharded to it without communication.
    """

    copy: int
    shared: int
    is_asked: bool = False
    is_with_source: bool = False


def is_made_again(how: int, is_source_again: int) -> bool:
    """Return whether a copy is made again in the backward pass, given how that gets it."""
    return how == MADE_AGAIN or (how == FOLLOWS and is_source_again != 0)


@dataclass(frozen=True, eq=False)
class Strategy:
    """A config for each operator, and the choices beside it.

    Attributes:
        configs: each operator's config, by its name.
        shared: the operand sharding of each tensor's shared copy, by the tensor's name; consumers of a tensor without one
            use it as produced.
        regathered: the copies that are regathered in the backward pass; those that it doesn't read, and those that all
            micro-batches read, aren't, even if named here.
        rematerialized: the names of the operators that are rematerialized, if the backward pass reads their results; those
            that can't be aren't, even if named here.
    """

    mesh: Mesh
    configs: Mapping[str, Config]
    shared: Mapping[str, OperandSharding] = field(default_factory=dict)
    regathered: frozenset[Copy] = frozenset()
    rematerialized: frozenset[str] = frozenset()


@dataclass(frozen=True)
class StrategyView:
    """A strategy on its graph, with the rules, interfaces and operand shardings that follow, each derived once."""

    graph: Graph
    strategy: Strategy
    backward: Backward

    def changed(
        self, configs: Mapping[str, Config], shared: Mapping[str, OperandSharding | None] = MappingProxyType({})
    ) -> StrategyView:
        """Return the view of a strategy with other configs of some operators, and other shared copies of some tensors.

        What the change doesn't concern isn't derived again.
        """
        all_shared = {**self.strategy.shared, **shared}
        copies = {name: sharding for name, sharding in all_shared.items() if sharding is not None}
        view = replace(self, strategy=replace(self.strategy, configs={**self.strategy.configs, **configs}, shared=copies))
        interfaces = {name: interface_of(self.rules[name], config) for name, config in configs.items()}
        vars(view).update(rules=self.rules, interfaces={**self.interfaces, **interfaces})
        return view

    @cached_property
    def rules(self) -> dict[str, Rule]:
        return {name: rule_of(op) for name, op in self.graph.operators.items()}

    @cached_property
    def interfaces(self) -> dict[str, Interface]:
        return {
            name: interface_of(self.rules[name], self.strategy.configs[name])
            for name in self.graph.operators
            if name in self.strategy.configs
        }

    @cached_property
    def rematerialized(self) -> frozenset[str]:
        """Return the names of the operators that are rematerialized: those of the strategy's that can be."""
        operators = self.graph.operators
        return frozenset(
            name
            for name in self.strategy.rematerialized
            if name in self.interfaces
            and is_rematerializable(
                self.graph, operators[name], self.rules[name], self.strategy.configs[name], self.backward.gradients
            )
        )

    @cached_property
    def regathered(self) -> frozenset[Copy]:
        """Return the copies that are regathered: those of the strategy's that not all micro-batches read."""
        return frozenset(copy for copy in self.strategy.regathered if not self.graph.accumulates(copy.tensor))

    @cached_property
    def derived(self) -> dict[Hashable, Resharding]:
        """The reshardings that were derived so far, by where they lead: each pass of each micro-batch asks for them."""
        return {}

    @cached_property
    def _residuals(self) -> dict[Operand, Residual]:
        return {}

    def layout(self, tensor: Tensor) -> Layout:
        """Return the produced layout of a tensor; a tensor that is read after an update has the variable's layout."""
        producer = self.graph.producers[tensor.name]
        if producer.updates is not None:
            return self.interfaces[producer.updates].results[0]
        return self.interfaces[producer.name].results[producer.outputs.index(tensor)]

    def shared_resharding(self, tensor: Tensor, sharding: OperandSharding) -> Resharding:
        """Return the resharding of a tensor from its produced layout to the shared copy ``sharding``."""
        is_variable = self.graph.producers[tensor.name].type == VARIABLE
        return resharding_of(tensor, self.layout(tensor), sharding, is_variable=is_variable)

    def resharding(self, tensor: Tensor, sharding: OperandSharding) -> Resharding:
        """Return the resharding of a tensor to an operand sharding: from its shared copy, or as produced if it has none."""
        shared = self.strategy.shared.get(tensor.name)
        if shared is None:
            return self.shared_resharding(tensor, sharding)
        return resharding_of(tensor, shared.layout, sharding, shared.unreduced)

    def accumulates(self, op: Operator, position: int) -> bool:
        """Return whether an operand is resharded once for all micro-batches, and its gradients are accumulated there."""
        return self.graph.accumulates(op.operand(position).name) and self.graph.n_runs(op.result.name) > 1

    def residual(self, op: Operator, position: int) -> Residual:
        """Return how the backward pass gets the copy of an operand that an operator uses: it is decided here alone.

        A copy that is made of a regathered or rematerialized source without communication is regathered as well: it may be a
        view of the source, and saving it would keep the source in memory.
        """
        key = op.name, position
        if key not in self._residuals:
            self._residuals[key] = self._residual(op, position)
        return self._residuals[key]

    def _residual(self, op: Operator, position: int) -> Residual:
        if op.updates is not None or op.type in SOURCES or self.accumulates(op, position):
            return Residual(ONCE, ONCE)
        tensor = self.graph.tensors[op.operand(position).name]  # behind all micro-batches the operand is the batch's
        shared = self.strategy.shared.get(tensor.name)
        produced, target = self.layout(tensor), self.sharding(op, position).layout
        source = produced if shared is None else shared.layout
        is_local = source == target or not needs_communication(source, target)
        is_shared_local = source == produced or not needs_communication(produced, source)
        windows = position == 0 and self.rules[op.name].exchanged(self.strategy.configs[op.name])
        reads = (op.name, position) in self.backward.residual_operands and not windows
        may = USES[2 * reads][op.name in self.rematerialized] in MAY_BE_REGATHERED
        is_of_again = is_shared_local and self.graph.producers[tensor.name].name in self.rematerialized
        is_shared_chosen = may and Copy(tensor.name) in self.regathered
        is_with_source = may and is_local and source != target and (is_of_again or is_shared_chosen)
        is_again = is_with_source or (may and source != target and Copy(tensor.name, op.name) in self.regathered)
        is_shared_again = is_shared_chosen and produced != source and (source == target or is_again)
        copy = MADE_AGAIN if is_again else FOLLOWS if is_local else STAYS
        of_shared = MADE_AGAIN if is_shared_again else FOLLOWS if is_shared_local else STAYS
        is_asked = reads or (is_again and not is_local) or (is_shared_again and not is_shared_local)
        return Residual(copy, of_shared, is_asked, is_with_source)

    def sharding(self, op: Operator, position: int) -> OperandSharding:
        return sharding_of_operand(self.interfaces[op.name], op.name, position, self.backward.gradients)

    def differentiated(self, number: int) -> frozenset[Operand]:
        """Return the operands with a gradient in a backward pass, by its number; those of what is sent ahead come last."""
        names = self.graph.pass_names
        return self.backward.passes[names[number % len(names)]]


def sharding_of_operand(
    interface: Interface, name: str, position: int, gradients: frozenset[tuple[str, int]]
) -> OperandSharding:
    """Return the operand sharding at an input position, without a gradient where none comes back."""
    sharding = interface.operand(position)
    return sharding if (name, position) in gradients else OperandSharding(sharding.layout, None)


NEVER = frozenset([*SOURCES, *COMPOSITES, VALUE_SHAPED, *RANDOM, "StatelessRandomGetKeyCounter"])


def may_be_rematerialized_at_all(graph: Graph, op: Operator, rule: Rule, gradients: Collection[tuple[str, int]]) -> bool:
    """Return whether an operator may be rematerialized in some config.

    Args:
        gradients: (operator, position) of the operands to which a gradient comes back.
    """
    if op.updates is not None or op.type in NEVER or rule.without or op.name in graph.lookup_operators:
        return False
    return any((op.name, position) in gradients for position, _ in op.operands)


def is_rematerializable(
    graph: Graph, op: Operator, rule: Rule, config: Config, gradients: Collection[tuple[str, int]]
) -> bool:
    if not may_be_rematerialized_at_all(graph, op, rule, gradients):
        return False
    return not inner_reshardings(op, rule, config, ())
