"""Connect the nodes of a Problem: build an edge or a node for every resharding, with its costs.

A tensor that one other node uses is an edge. One that only its producer's own node uses is a cost of that node. A tensor
that several nodes use is a node as well, the *shared copy*: its states are the operand shardings (OperandSharding) to which
it may be resharded once, for all consumers to use it from there. So the collectives charged are the collectives executed.

A copy that a gradient reads is saved for the backward pass or regathered there (:class:`...sharding.strategy.Copy`). For a
shared copy these are different states of its node. For a single consumer's copy the choice is a node between producer and
consumer, with a state for each choice that can matter (:mod:`...ft.edge_choices`). A consumer that wants another layout than
the shared copy's has its own; where all that read do, the shared copy is neither saved nor regathered: a state as well.
:mod:`.edge_costs` has tables of the residual policies SAVED ... HELD.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ...costs.resharding_costs import ResidualCharge
from ...ft.problem import Edge
from ...ir.graph import CONSTANT, VARIABLE, Tensor
from ...rules.config_arrays import ConfigArrays
from ...rules.shardings import Shardings
from ...sharding.consumers import Consumer, consumers_of, passes_to, step_sharding
from ...sharding.strategy import FIXED, HELD, MAY_BE_REGATHERED, READ, UNREAD, USES, Copy
from .charges import NodeCosts, OverlapTimes, Transients, program_positions
from .choices import Choices
from .edge_costs import REMATERIALIZED, SAVED, UNCHARGED, EdgeCosts, End, ReshardingArrays
from .fusion_groups import FusionGroup
from .node_states import Choice, Evaluation, States
from .remat_segments import Segments
from .shared_copies import ConsumerEnd, ProducedTensor, SharedCopies, direct, direct_regathered, have_gradient
from .strategy_problem import CopyChoice, SharedCopy

_READ_BY_GRADIENT = np.isin(range(1 + max(map(max, USES))), (READ, FIXED, HELD))
"""Whether an operator's gradient reads the copy of its operand, for each way in which the backward pass uses the copy."""


@dataclass(frozen=True, eq=False)
class _TakenInside:
    """A tensor that consumers in its producer's node read, of which that node is charged for the shard.

    Attributes:
        is_paid: the states in which the shard is saved, bool[K].
        is_transient: the states in which it is transient, bool[K].
    """

    end: End
    is_paid: np.ndarray
    is_transient: np.ndarray

    @classmethod
    def of(cls, source: ProducedTensor, consumers: list[ConsumerEnd]) -> _TakenInside:
        policy, reads = source.end.policy.copy(), [reader.end.policy for reader in consumers if reader.node == source.node]
        is_read_outside = any(UNREAD not in consumer.end.policies for consumer in consumers if consumer.node != source.node)
        is_read = np.logical_or.reduce([policies != UNREAD for policies in reads]) | is_read_outside
        policy[is_read & (policy == SAVED)] = UNCHARGED
        is_read = np.logical_or.reduce([_READ_BY_GRADIENT[policies] for policies in reads]) | is_read_outside
        return cls(End(source.end.choice, policy), policy == UNCHARGED, is_read & (policy == REMATERIALIZED))


class EdgeBuilder:
    """The nodes of a Problem, and the reshardings of every tensor between them.

    Args:
        evaluation: the costs, the mesh, and the sharding rule of each operator by name.
        arrays: the costs of reshardings, which the problems of one model share.
        nodes: the nodes that are operators, with their states.
        merges: whether a node may hold several operators (a fusion group).
        choices: what strategies may choose beside configs and shared copies.
        blocks: the rematerialization segments: which nodes have states that rematerialize operators.
        report: called with (nodes done, nodes).
    """

    def __init__(
        self,
        evaluation: Evaluation,
        arrays: ReshardingArrays,
        nodes: list[tuple[FusionGroup, States]],
        merges: bool,
        choices: Choices,
        blocks: Segments,
        report: Callable[[int, int], None],
    ) -> None:
        self.nodes_and_states, self.merges, self.reuse, self.tell = nodes, merges, choices.reuse, report
        self.costing, self.mesh, self.rules, self.arrays = evaluation.costing, evaluation.mesh, evaluation.rules, arrays
        self.graph = self.costing.graph
        self.consumers = consumers_of(self.graph)
        self.node_and_index = {op.name: (n, i) for n, (node, _) in enumerate(nodes) for i, op in enumerate(node.operators)}
        names = dict.fromkeys([*self.graph.train_steps, *self.graph.gradients])
        self.step_node = {name: len(nodes) + i for i, name in enumerate(names)}
        self.transients = Transients(blocks)
        self.nodes = NodeCosts()
        for i, (node, states) in enumerate(nodes):
            self.nodes.add(node.name, states.mem_bytes, states.time_ns)
            self.transients.begin(i, states.transient_bytes)
        zero = np.zeros(1, np.int64)
        for name in self.step_node:
            self.nodes.add(name, zero, zero)
        all_states = [states for _, states in nodes]
        groups = [node for node, _ in nodes]
        positions = [*program_positions(self.graph, groups, self.consumers), *(len(self.graph.operators) for _ in names)]
        self.overlap_times = OverlapTimes(self.costing.reshardings, positions, all_states)
        self.edges: list[Edge] = []
        self.shared: list[SharedCopy] = []
        self.choices: list[CopyChoice] = []
        self.copies = SharedCopies(arrays)
        self._step_ends: dict[tuple[int, int, str], End] = {}
        self._produced_ends: dict[tuple[object, ...], End] = {}  # by identities of choices, which states keep
        self._consumer_ends: dict[tuple[object, ...], End] = {}
        self._taken_inside: dict[tuple[int, ...], _TakenInside] = {}
        self._produced_costs: dict[tuple[object, ...], tuple[EdgeCosts, object]] = {}  # with what has the identity
        self._first_edges: dict[int, tuple[EdgeCosts, Edge]] = {}  # by the identity of their costs

    def connect(self) -> None:
        """Connect all nodes: first collect the layouts that occur for each shape, then cost the reshardings between them."""
        tensors = []
        for n, (node, states) in enumerate(self.nodes_and_states):
            for i, op in enumerate(node.operators):
                for result, tensor in enumerate(op.outputs):
                    consumers = [self._consumer_end(tensor, consumer) for consumer in self.consumers.get(tensor.name, ())]
                    if consumers:
                        layout = states.produced(i, result, have_gradient(consumers))
                        maker = self.graph.producers[self.costing.viewed(tensor.name)]
                        made_at = self.node_and_index[maker.updates or maker.name]
                        is_regathered = i in states.rematerialized or (
                            made_at[0] == n and made_at[1] in states.rematerialized
                        )
                        end = self._produced_end(states, layout, is_regathered)
                        is_one = len(consumers) == 1 or (self.merges and len({end.node for end in consumers}) == 1)
                        shared = None if is_one else self.copies.choice(layout, consumers)
                        choices = [layout, *(consumer.end.choice for consumer in consumers), *([shared] if shared else [])]
                        self.arrays.expect(tensor, choices)
                        tensors.append((ProducedTensor(n, tensor, end), consumers, shared))
        for source, consumers, shared in tensors:
            self.tell(len(self.nodes_and_states) + source.node, 2 * len(self.nodes_and_states))
            self._connect(source, consumers, shared)

    def _produced_end(self, states: States, layout: Choice, is_regathered: bool) -> End:
        """Return a tensor as produced in each state; ``is_regathered`` where its operator may be rematerialized."""
        key = id(states), id(layout), is_regathered
        if key not in self._produced_ends:
            policy = np.where(states.rematerializes & is_regathered, REMATERIALIZED, SAVED)
            self._produced_ends[key] = End(layout, policy)
        return self._produced_ends[key]

    def _consumer_end(self, tensor: Tensor, consumer: Consumer) -> ConsumerEnd:
        """Return a consumer's end. The table of its policies is that which :meth:`.StrategyView.residual` reads."""
        passes = passes_to(self.costing.backward, [consumer])
        if consumer.is_step:
            step_key = len(tensor.shape), consumer.position, consumer.name
            if step_key not in self._step_ends:
                sharding = step_sharding(self.mesh, tensor, consumer)
                choice = Choice.of(Shardings.of(self.costing.reshardings.numbers, [sharding]))
                self._step_ends[step_key] = End(choice, np.array([UNREAD]), passes=passes)
            return ConsumerEnd(self.step_node[consumer.name], self._step_ends[step_key])
        n, i = self.node_and_index[consumer.name]
        states, backward = self.nodes_and_states[n][1], self.costing.backward
        shardings = states.shardings(i, consumer, backward.gradients)
        is_own = (consumer.name, consumer.position) in backward.residual_operands and not consumer.is_update
        reads = self.costing.reads(consumer)
        key = id(states), i, consumer.position, consumer.is_update, id(shardings), is_own, reads, passes
        if key not in self._consumer_ends:
            reading = np.minimum(reads + is_own, np.where(self._exchanged(consumer), 1, 2))
            is_again = states.rematerializes & (i in states.rematerialized and not consumer.is_update)
            self._consumer_ends[key] = End(shardings, np.array(USES)[reading, is_again.astype(int)], passes=passes)
        return ConsumerEnd(n, self._consumer_ends[key])

    def _exchanged(self, consumer: Consumer) -> np.ndarray:
        """Return the states in which the operator exchanges window borders (halos), bool[K].

        Its gradient then reads the exchanged windows instead of the operand.
        """
        n, i = self.node_and_index[consumer.name]
        states, rule = self.nodes_and_states[n][1], self.rules[consumer.name]
        if not rule.halos or consumer.position:
            return np.zeros(states.n_states, bool)
        return ConfigArrays.of(rule, states.configs[i]).are_exchanged()[states.index[i]]

    def _connect(self, source: ProducedTensor, consumers: list[ConsumerEnd], shared: Choice | None) -> None:
        producer, tensor = source.node, source.tensor
        outsiders = [consumer for consumer in consumers if consumer.node != producer]
        if shared is not None and not (self.merges and len(outsiders) == 1):
            self._share(source, consumers, shared)
        elif self.merges and len(consumers) > 1 and len({consumer.node for consumer in consumers}) == 1:
            self._take_together(source, consumers)
        elif len(consumers) == 1:
            (consumer,) = consumers
            self._add(source, consumer, self._residual_charge(tensor), self._consumer_copy(tensor, consumer))
        else:
            self._take_inside(source, consumers)

    def _consumer_copy(self, tensor: Tensor, consumer: ConsumerEnd) -> Copy | None:
        """Return the copy of a tensor's single consumer, if it may be regathered in some state; else None."""
        if not consumer.end.policies & MAY_BE_REGATHERED:
            return None
        (reader,) = self.consumers[tensor.name]
        return Copy(tensor.name, reader.name)

    def _take_inside(self, source: ProducedTensor, consumers: list[ConsumerEnd]) -> None:
        """Connect a tensor to consumers of which at most one is outside the producer's node.

        The producer's node is charged for the shard if the backward pass reads it.
        """
        charge = self._residual_charge(source.tensor)
        end = source.end
        if charge == ResidualCharge.COPY:
            key = id(end), *(part for consumer in consumers for part in (id(consumer.end), consumer.node == source.node))
            if key not in self._taken_inside:
                self._taken_inside[key] = _TakenInside.of(source, consumers)
            taken_inside = self._taken_inside[key]
            self._charge_produced_shard(source, taken_inside.is_paid, taken_inside.is_transient)
            end = taken_inside.end
        for consumer in consumers:
            self._add(ProducedTensor(source.node, source.tensor, end), consumer, charge)

    def _may_regather(self, tensor: Tensor) -> bool:
        """Return whether copies of the tensor may be regathered.

        Copies that all micro-batches read are saved: they would be regathered for each.
        """
        return self.reuse and not self.graph.accumulates(tensor.name)

    def _residual_charge(self, tensor: Tensor) -> ResidualCharge:
        """Return what a read copy of the tensor saves: COPY_OF_SAVED where the produced shard is charged elsewhere."""
        viewed = self.costing.viewed(tensor.name)
        is_saved = viewed in self.costing.saved_as_produced or self.graph.producers[viewed].type in (VARIABLE, CONSTANT)
        return ResidualCharge.COPY_OF_SAVED if is_saved else ResidualCharge.COPY

    def _share(self, source: ProducedTensor, consumers: list[ConsumerEnd], shared: Choice) -> None:
        """Add a node for the shared copy of a tensor; see :meth:`.SharedCopies.states`."""
        tensor, number = source.tensor, len(self.nodes)
        charge = self._residual_charge(tensor)
        states = self.copies.states(source, consumers, shared, charge, self._may_regather(tensor))
        self.nodes.add(tensor.name, states.nothing, states.nothing)
        self.overlap_times.positions.append(min(self.overlap_times.positions[consumer.node] for consumer in consumers))
        self.shared.append(SharedCopy(tensor, number, states.shardings, states.is_unread))
        if states.can_be_regathered and states.is_regathered.any():
            self.choices.append(CopyChoice(Copy(tensor.name), number, states.is_regathered))
        self._add_edge(source.node, number, self.arrays.by_state(tensor, source.end, states.copy, states.to_copy))
        for consumer in consumers:
            costs = self.arrays.by_state(tensor, states.copy, consumer.end, states.of_copy)
            self._add_edge(number, consumer.node, costs, source.node)

    def _take_together(self, source: ProducedTensor, consumers: list[ConsumerEnd]) -> None:
        """Connect a tensor to several consumers that are one node; see :meth:`.SharedCopies.within`."""
        tensor, node = source.tensor, consumers[0].node
        copy = self.copies.within(tensor, consumers)
        self.arrays.expect(tensor, [copy.end.choice])
        copy_made = Copy(tensor.name) if copy.end.policies & MAY_BE_REGATHERED else None
        self._add(source, ConsumerEnd(node, copy.end), self._residual_charge(tensor), copy_made)
        for costs, mask in copy.costs:
            self._charge(node, costs, mask)
        self.shared.append(SharedCopy(tensor, node, copy.shardings, np.zeros(len(copy.shardings), bool)))

    def _add(self, source: ProducedTensor, consumer: ConsumerEnd, charge: ResidualCharge, copy: Copy | None = None) -> None:
        """Charge a tensor's resharding between the states of two nodes, or within one node."""
        tensor, ends = source.tensor, (source.end, consumer.end)
        if source.node == consumer.node:
            self._charge(source.node, self.arrays.by_state(tensor, *ends, direct(charge), is_one_node=True))
            return
        tables = direct(charge), direct_regathered(charge)
        residual_choice = self.arrays.residual_choice(tensor, *ends, tables) if copy and self._may_regather(tensor) else None
        if copy is not None and residual_choice is not None:
            number = len(self.nodes)
            zeros = residual_choice.nothing
            self.nodes.add(f"{tensor.name} to {self.nodes.name(consumer.node)}", zeros, zeros)
            self.overlap_times.positions.append(self.overlap_times.positions[consumer.node])
            self.choices.append(CopyChoice(copy, number, residual_choice.is_regathered))
            self._add_edge(source.node, number, residual_choice.to_choice)
            self._add_edge(number, consumer.node, residual_choice.of_choice, source.node)
            return
        self._add_edge(source.node, consumer.node, self.arrays.by_state(tensor, *ends, tables[0]))

    def _add_edge(self, source: int, target: int, costs: EdgeCosts, producer: int | None = None) -> None:
        """Add an edge; ``producer`` is the node of the tensor's producer, if it isn't ``source``."""
        number = len(self.edges)
        if costs.overlappable_ns is not None:
            self.overlap_times.add_edge(number, target, costs.overlappable_ns)
        self.transients.add_edge(number, source if producer is None else producer, target, costs)
        first = self._first_edges.get(id(costs))
        mem, time_ns = (costs.mem, costs.time_ns) if first is None else (first[1].mem_bytes, first[1].time_ns)
        self.edges.append(Edge(source, target, mem, time_ns))
        if first is None:
            self._first_edges[id(costs)] = costs, self.edges[-1]

    def _charge_produced_shard(self, source: ProducedTensor, is_charged: np.ndarray, is_regathered: np.ndarray) -> None:
        """Charge a producer's node for the shard that it produced."""
        tensor, layout = source.tensor, source.end.choice
        key = tensor.shape, tensor.item_bytes, id(layout), is_charged.tobytes(), is_regathered.tobytes()
        if key not in self._produced_costs:
            shards = self.costing.reshardings.shards(tensor, layout.values)[layout.index]
            costs = EdgeCosts(shards * is_charged, np.zeros_like(shards), None, shards * is_regathered)
            self._produced_costs[key] = costs, layout
        self._charge(source.node, self._produced_costs[key][0])

    def _charge(self, node: int, costs: EdgeCosts, mask: np.ndarray | None = None) -> None:
        self.nodes.charge(node, costs, mask)
        self.transients.add(node, costs, True if mask is None else mask)
        if costs.overlappable_ns is not None:
            self.overlap_times.add(node, np.where(True if mask is None else mask, costs.overlappable_ns, 0))
