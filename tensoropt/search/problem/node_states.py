"""Compute the states of a node and their costs, once for all nodes that are alike, such as those of equal layers.

A node's *signature* is all that its costs depend on: operator types, rules, shapes, which operands get gradients, which
tensors are saved, and how its operators feed each other. Nodes of one signature share one :class:`States` object. So the
edges between alike nodes share their arrays too, and the search recognises equal layers by identity.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from ...costs.config_costs import ConfigCosts
from ...costs.operator_costs import OperatorCosting
from ...reschedule.mesh import Mesh
from ...rules.config_arrays import ConfigArrays, Interfaces
from ...rules.rule import Config, Rule
from ...rules.shardings import NO_GRADIENT, Shardings, first_seen
from ...sharding.consumers import Consumer
from ...sharding.strategy import may_be_rematerialized_at_all
from .config_space import Assignments
from .fusion_groups import FusionGroup

Ints = np.ndarray


@dataclass(frozen=True, eq=False)
class Choice:
    """An operand sharding (OperandSharding) for each state: the distinct ones, and each state's index among them."""

    values: Shardings
    index: Ints

    @classmethod
    def of(cls, values: Shardings) -> Choice:
        """Return the choice of one operand sharding for each state."""
        first, index = first_seen(values.codes)
        return cls(values.at(first), index)


@dataclass(frozen=True, eq=False)
class States:
    """The K states of a node: the configs of its operators in each, and the operators' own costs.

    Attributes:
        configs: the distinct configs of each operator of the node.
        index: each operator's index among those in each state, int[K].
        costs: the costs of the distinct configs of each operator.
        mem_bytes, compute_ns, network_ns: int64[K].
        backward_ns: int64[K], the part of the compute time that is in the backward pass, of micro-batches in the last one's:
            accumulated gradients go back during that.
        overlappable_ns: int64[K], the part of the network time that only updates of variables wait for.
        rematerializes: bool[K], whether operators of the node are rematerialized in this state: those at the indices
            ``rematerialized`` in the node.
        transient_bytes: int64[K], the bytes of the operators' results that are not saved because they are rematerialized.
    """

    configs: tuple[tuple[Config, ...], ...]
    index: tuple[Ints, ...]
    costs: tuple[ConfigCosts, ...]
    mem_bytes: Ints
    compute_ns: Ints
    network_ns: Ints
    backward_ns: Ints
    overlappable_ns: Ints
    rematerializes: Ints
    transient_bytes: Ints
    rematerialized: tuple[int, ...] = ()
    _choices: dict[tuple[int, str, int, bool], Choice] = field(default_factory=dict)

    @property
    def n_states(self) -> int:
        return len(self.mem_bytes)

    @property
    def interfaces(self) -> tuple[Interfaces, ...]:
        """The interface of each distinct config of each operator."""
        return tuple(costs.interfaces for costs in self.costs)

    @cached_property
    def time_ns(self) -> Ints:
        """The time of each state, int64[K]: compute and network."""
        return self.compute_ns + self.network_ns

    @cached_property
    def others(self) -> Ints:
        """Return the state that differs from each state only in rematerialization, int64[K]; -1 where there is none."""
        twins = np.full(self.n_states, -1, np.int64)
        first_states: dict[tuple[int, ...], int] = {}
        for state, configs in enumerate(zip(*(index.tolist() for index in self.index), strict=True)):
            twin = first_states.setdefault(configs, state)
            if twin != state:
                twins[[twin, state]] = state, twin
        return twins

    def produced(self, operator: int, result: int, has_gradient: bool) -> Choice:
        """Return the produced layout of an operator's result, by state; ``operator`` is its index in the node.

        As an operand sharding: the gradient comes back summed, where one does.
        """
        gradient = 0 if has_gradient else NO_GRADIENT

        def values(interfaces: Interfaces) -> Shardings:
            layouts = interfaces.results[result]
            return Shardings(interfaces.numbers, layouts, np.full_like(layouts, gradient))

        return self._choice((operator, "result", result, has_gradient), values)

    def shardings(self, operator: int, consumer: Consumer, gradients: frozenset[tuple[str, int]]) -> Choice:
        """Return the operand sharding that a consumer in the node asks for, by state; ``operator`` is its index there.

        It is what :func:`...sharding.consumers.consumer_sharding` says for each interface.
        """

        def values(interfaces: Interfaces) -> Shardings:
            shardings = None if consumer.is_update else interfaces.operands[consumer.position]
            if shardings is not None and (consumer.name, consumer.position) in gradients:
                return shardings
            layouts = interfaces.results[0] if shardings is None else shardings.layouts
            return Shardings(interfaces.numbers, layouts, np.full_like(layouts, NO_GRADIENT))

        return self._choice((operator, "update" if consumer.is_update else "operand", consumer.position, False), values)

    def _choice(self, key: tuple[int, str, int, bool], values: Callable[[Interfaces], Shardings]) -> Choice:
        if key not in self._choices:
            distinct = Choice.of(values(self.costs[key[0]].interfaces))
            self._choices[key] = Choice(distinct.values, distinct.index[self.index[key[0]]])
        return self._choices[key]


@dataclass
class Evaluation:
    """The states of nodes, computed once for each signature."""

    costing: OperatorCosting
    rules: Mapping[str, Rule]
    mesh: Mesh
    _states: dict[tuple[object, ...], States] = field(default_factory=dict)
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
        producers = {tensor.name: (i, k) for i, op in enumerate(node.operators) for k, tensor in enumerate(op.outputs)}
        wiring = tuple(tuple(producers.get(tensor.name) for _, tensor in op.operands) for op in node.operators)
        return tuple(self.costing.kind(op, self.rules[op.name]) for op in node.operators), wiring

    def _evaluated(self, node: FusionGroup, assignments: Assignments) -> States:
        distinct, indices, operator_costs = [], [], []
        totals = np.zeros((5, len(assignments)), np.int64)
        for i, op in enumerate(node.operators):
            numbers: dict[Config, int] = {}
            index = np.array([numbers.setdefault(configs[i], len(numbers)) for configs in assignments], np.intp)
            costs = ConfigCosts(self.costing, op, ConfigArrays.of(self.rules[op.name], tuple(numbers)))
            distinct.append(tuple(numbers))
            indices.append(index)
            operator_costs.append(costs)
            last_ns = costs.backward_ns // self.costing.graph.n_micro_batches
            backward_ns = last_ns if self.costing.reshardings.overlaps else np.zeros_like(last_ns)
            network_ns = costs.within_ns + costs.updating_ns
            amounts = costs.mem_bytes, costs.compute_ns, network_ns, backward_ns, costs.updating_ns
            totals += np.stack(amounts)[:, index]
        keeps, zeros = np.zeros(len(assignments), bool), np.zeros(len(assignments), np.int64)
        mem, compute, network, backward, overlappable = totals
        columns = tuple(distinct), tuple(indices), tuple(operator_costs)
        return States(*columns, mem, compute, network, backward, overlappable, keeps, zeros)

    def rematerializing(self, node: FusionGroup, states: States, indices: tuple[int, ...]) -> States:
        """Return the states, and each a second time with the operators at the indices ``indices`` rematerialized.

        A state in which one of these operators can't be rematerialized, because it communicates while it computes, has no
        second one.
        """
        operators = (node.operators[i] for i in indices)
        key = id(states), tuple(self.costing.kind(op, self.rules[op.name]) for op in operators), indices
        if key not in self._rematerializing:
            self._rematerializing[key] = states, self._add_rematerialization(node, states, indices)
        return self._rematerializing[key][1]

    def _add_rematerialization(self, node: FusionGroup, states: States, indices: tuple[int, ...]) -> States:
        is_possible = np.ones(states.n_states, bool)
        freed, rematerialization_ns = np.zeros((2, states.n_states), np.int64)
        costing = self.costing
        for i in indices:
            op, rule, index = node.operators[i], self.rules[node.operators[i].name], states.index[i]
            costs = states.costs[i]
            is_possible &= may_be_rematerialized_at_all(costing.graph, op, rule, costing.backward.gradients)
            is_possible &= ~costs.communicates_inside[index]
            freed += costs.saved_result_bytes[index]
            rematerialization_ns += (costs.compute_ns - costs.backward_ns)[index]
        (twins,) = np.nonzero(is_possible)
        rows = np.concatenate([np.arange(states.n_states), twins])
        rematerializes = np.arange(len(rows)) >= states.n_states
        more_ns, transient_bytes = rematerialization_ns[rows] * rematerializes, freed[rows] * rematerializes
        last_ns = more_ns // costing.graph.n_micro_batches if costing.reshardings.overlaps else 0
        return replace(
            states,
            index=tuple(index[rows] for index in states.index),
            mem_bytes=states.mem_bytes[rows] - transient_bytes,
            compute_ns=states.compute_ns[rows] + more_ns,
            network_ns=states.network_ns[rows],
            backward_ns=states.backward_ns[rows] + last_ns,
            overlappable_ns=states.overlappable_ns[rows],
            rematerializes=rematerializes,
            transient_bytes=transient_bytes,
            rematerialized=indices,
            _choices={},
        )
