"""Compute the states of a node and their costs, once for all nodes that are alike, such as those of equal layers.

A node's *signature* is all that its costs depend on: operator types, rules, shapes, which operands get gradients, which
tensors are saved, and how its operators feed each other. Nodes of one signature share one :class:`States` object. So the
edges between alike nodes share their arrays too, and the search recognises equal layers by identity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Generic, TypeVar

import numpy as np

from ...costs.operator_costs import OperatorCosting
from ...ir.graph import Operator
from ...reschedule.layout import Layout
from ...reschedule.mesh import Mesh
from ...rules.rule import Config, Interface, OperandSharding, Rule, interface_of
from ...sharding.consumers import Consumer, consumer_sharding
from ...sharding.rematerializable import is_rematerializable
from .config_space import Assignments
from .fusion_groups import FusionGroup

Ints = np.ndarray
Value = TypeVar("Value", Layout, OperandSharding)
_Costed = tuple[Interface, int, int, int, int, int]


@dataclass(frozen=True, eq=False)
class Choice(Generic[Value]):
    """A layout or an operand sharding (OperandSharding) for each state: the distinct ones, and each state's index among
    them."""

    values: tuple[Value, ...]
    index: Ints

    @classmethod
    def of(cls, values: Iterable[Value]) -> Choice[Value]:
        indices: dict[Value, int] = {}
        index = np.array([indices.setdefault(value, len(indices)) for value in values], np.intp)
        return cls(tuple(indices), index)


@dataclass(frozen=True, eq=False)
class States:
    """The K states of a node: the configs of its operators in each, and the operators' own costs.

    Attributes:
        configs: the distinct configs of each operator of the node.
        index: each operator's index among those in each state, int[K].
        interfaces: the interface of each distinct config of each operator.
        mem_bytes, compute_ns, network_ns: int64[K].
        backward_ns: int64[K], the part of the compute time that is in the backward pass.
        overlappable_ns: int64[K], the part of the network time that only updates of variables wait for.
        rematerializes: bool[K], whether operators of the node are rematerialized in this state: those at the indices
            ``rematerialized`` in the node.
        transient_bytes: int64[K], the bytes of the operators' results that are not saved because they are rematerialized.
    """

    configs: tuple[tuple[Config, ...], ...]
    index: tuple[Ints, ...]
    interfaces: tuple[tuple[Interface, ...], ...]
    mem_bytes: Ints
    compute_ns: Ints
    network_ns: Ints
    backward_ns: Ints
    overlappable_ns: Ints
    rematerializes: Ints
    transient_bytes: Ints
    rematerialized: tuple[int, ...] = ()
    _choices: dict[tuple[int, str, int], Choice[Any]] = field(default_factory=dict)

    @property
    def n_states(self) -> int:
        return len(self.mem_bytes)

    @cached_property
    def others(self) -> Ints:
        """Return the state that differs from each state only in rematerialization, int64[K]; -1 where there is none."""
        found = np.full(self.n_states, -1, np.int64)
        by_configs: dict[tuple[int, ...], int] = {}
        for state, configs in enumerate(zip(*(index.tolist() for index in self.index), strict=True)):
            other = by_configs.setdefault(configs, state)
            if other != state:
                found[[other, state]] = state, other
        return found

    def layouts(self, operator: int, result: int) -> Choice[Layout]:
        """Return the produced layout of an operator's result, by state; ``operator`` is its index in the node."""
        return self._choice(operator, "result", result, lambda interface: interface.results[result])

    def shardings(self, operator: int, consumer: Consumer, gradients: frozenset[tuple[str, int]]) -> Choice[OperandSharding]:
        """Return the operand sharding that a consumer in the node asks for, by state; ``operator`` is its index there."""
        kind = "update" if consumer.is_update else "operand"
        return self._choice(
            operator, kind, consumer.position, lambda interface: consumer_sharding(interface, consumer, gradients)
        )

    def _choice(self, operator: int, kind: str, position: int, value: Callable[[Interface], Value]) -> Choice[Value]:
        key = operator, kind, position
        if key not in self._choices:
            distinct = Choice.of(value(interface) for interface in self.interfaces[operator])
            self._choices[key] = Choice(distinct.values, distinct.index[self.index[operator]])
        return self._choices[key]


@dataclass
class Evaluation:
    """The states of nodes, computed once for each signature."""

    costing: OperatorCosting
    rules: Mapping[str, Rule]
    mesh: Mesh
    _states: dict[tuple[object, ...], States] = field(default_factory=dict)
    _costs: dict[tuple[object, ...], _Costed] = field(default_factory=dict)
    _forward_ns: dict[tuple[object, ...], int] = field(default_factory=dict)  # of what has _costs: rematerialization's time
    _rematerializing: dict[tuple[object, ...], tuple[States, States]] = field(default_factory=dict)

    def states(self, node: FusionGroup, assignments: Callable[[], Assignments], distinguishing: object) -> States:
        """Return the states of a node.

        Args:
            assignments: called for the node's configs only where no node of the same signature came before.
            distinguishing: what else nodes must be equal in to share their states.
        """
        signature = (*self._signature(node), distinguishing)
        if signature not in self._states:
            self._states[signature] = self._evaluated(node, assignments())
        return self._states[signature]

    def _signature(self, node: FusionGroup) -> tuple[object, ...]:
        made = {tensor.name: (i, k) for i, op in enumerate(node.operators) for k, tensor in enumerate(op.outputs)}
        wiring = tuple(tuple(made.get(tensor.name) for _, tensor in op.operands) for op in node.operators)
        return tuple(self._of_operator(op) for op in node.operators), wiring

    def _of_operator(self, op: Operator) -> tuple[object, ...]:
        return self.costing.signature(op, self.rules[op.name])

    def _evaluated(self, node: FusionGroup, assignments: Assignments) -> States:
        distinct, indices, interfaces = [], [], []
        totals = np.zeros((5, len(assignments)), np.int64)
        for i, op in enumerate(node.operators):
            known: dict[Config, int] = {}
            index = np.array([known.setdefault(configs[i], len(known)) for configs in assignments], np.intp)
            signature = self._of_operator(op)
            of_config = self._costed(op, signature, tuple(known))
            distinct.append(tuple(known))
            indices.append(index)
            interfaces.append(tuple(each[0] for each in of_config))
            totals += np.array([each[1:] for each in of_config], np.int64)[index].T
        keeps, nothing = np.zeros(len(assignments), bool), np.zeros(len(assignments), np.int64)
        mem, compute, network, backward, overlappable = totals
        of = tuple(distinct), tuple(indices), tuple(interfaces)
        return States(*of, mem, compute, network, backward, overlappable, keeps, nothing)

    def rematerializing(self, node: FusionGroup, states: States, indices: tuple[int, ...]) -> States:
        """Return the states, and each a second time with the operators at the indices ``indices`` rematerialized.

        A state in which one of these operators can't be rematerialized, because it communicates while it computes, has no
        second one.
        """
        key = id(states), tuple(self._of_operator(node.operators[i]) for i in indices), indices
        if key not in self._rematerializing:
            self._rematerializing[key] = states, self._with_rematerialization(node, states, indices)
        return self._rematerializing[key][1]

    def _with_rematerialization(self, node: FusionGroup, states: States, indices: tuple[int, ...]) -> States:
        can_be = np.ones(states.n_states, bool)
        freed, rematerialization_ns = np.zeros((2, states.n_states), np.int64)
        costing, gradients = self.costing, self.costing.backward.gradients
        for i in indices:
            op, rule, index = node.operators[i], self.rules[node.operators[i].name], states.index[i]
            configs = states.configs[i]
            can_be &= np.array([is_rematerializable(costing.graph, op, rule, each, gradients) for each in configs], bool)[
                index
            ]
            interfaces, signature = states.interfaces[i], self._of_operator(op)
            freed += np.array([costing.saved_result_bytes(op, interface) for interface in interfaces], np.int64)[index]
            times = [self._forward_ns[signature, config.assignment] for config in configs]
            rematerialization_ns += np.array(times, np.int64)[index]
        (twins,) = np.nonzero(can_be)
        both = np.concatenate([np.arange(states.n_states), twins])
        rematerializes = np.arange(len(both)) >= states.n_states
        more_ns, transient_bytes = rematerialization_ns[both] * rematerializes, freed[both] * rematerializes
        return replace(
            states,
            index=tuple(index[both] for index in states.index),
            mem_bytes=states.mem_bytes[both] - transient_bytes,
            compute_ns=states.compute_ns[both] + more_ns,
            network_ns=states.network_ns[both],
            backward_ns=states.backward_ns[both] + (more_ns if costing.reshardings.overlaps else 0),
            overlappable_ns=states.overlappable_ns[both],
            rematerializes=rematerializes,
            transient_bytes=transient_bytes,
            rematerialized=indices,
            _choices={},
        )

    def _costed(self, op: Operator, signature: tuple[object, ...], configs: tuple[Config, ...]) -> list[_Costed]:
        """Return, for each config, the interface and the five costs that :class:`States` adds up."""
        rule, costing = self.rules[op.name], self.costing
        new = [config for config in configs if (signature, config.assignment) not in self._costs]
        for config, (within_ns, updating_ns) in zip(new, costing.inner_times_ns(op, rule, new), strict=True):
            interface = interface_of(rule, config)
            compute_ns, backward_ns = costing.both_times_ns(op, rule, config, interface)
            mem_bytes = costing.mem_bytes(op, rule, config, interface)
            overlapped_ns = backward_ns if costing.reshardings.overlaps else 0
            costs = mem_bytes, compute_ns, within_ns + updating_ns, overlapped_ns, updating_ns
            self._costs[signature, config.assignment] = (interface, *costs)
            self._forward_ns[signature, config.assignment] = compute_ns - backward_ns
        return [self._costs[signature, config.assignment] for config in configs]
