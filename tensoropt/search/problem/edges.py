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

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from ...costs.operator_costs import OperatorCosting
from ...costs.resharding_costs import ResidualCharge
from ...ft.problem import Edge
from ...ir.gradient_info import Backward
from ...ir.graph import CONSTANT, VARIABLE, Graph, Tensor
from ...reschedule.mesh import Mesh
from ...rules.config_arrays import ConfigArrays
from ...rules.rule import Rule
from ...rules.shardings import Shardings
from ...sharding.consumers import Consumer, consumers_of, step_sharding
from ...sharding.strategy import Copy
from .choices import Choices
from .edge_costs import (
    FIXED,
    HELD,
    PASSED,
    READ,
    REGATHERED,
    REMATERIALIZED,
    SAVED,
    UNCHARGED,
    UNREAD,
    EdgeCosts,
    End,
    ReshardingArrays,
)
from .edge_ends import ConsumerEnd, ProducedTensor, as_copies, have_gradient, may_be_unread
from .fusion_groups import FusionGroup
from .node_costs import NodeCosts
from .node_states import Choice, States
from .overlap_parts import OverlapTimes, program_positions
from .remat_segments import Segments
from .saving_tables import direct, direct_regathered, of_shared, to_shared
from .strategy_problem import CopyChoice, SharedCopy
from .transient_memory import Transients

_MAY_BE_REGATHERED, _READ_BY_GRADIENT = (
    np.array([policy in members for policy in (UNREAD, READ, FIXED, PASSED, HELD)])
    for members in ((READ, PASSED, HELD), (READ, FIXED, HELD))
)
"""By a copy's residual policy: whether it may be regathered, and whether a gradient reads it."""


@dataclass(frozen=True, eq=False)
class Steps:
    """A graph's training steps on a mesh, and their costs; ``rules`` holds the sharding rule of each operator by name.

    ``arrays`` holds the costs of reshardings; the problems that are built from the same steps share them.
    """

    graph: Graph
    backward: Backward
    costing: OperatorCosting
    mesh: Mesh
    rules: Mapping[str, Rule]
    arrays: ReshardingArrays


class EdgeBuilder:
    """The nodes of a Problem, and the reshardings of every tensor between them.

    Args:
        of_node: the nodes that are operators, with their states.
        merges: whether a node may hold several operators (a fusion group).
        choices: what strategies may choose beside configs and shared copies.
        blocks: the rematerialization segments: which nodes have states that rematerialize operators.
        tell: called with (nodes done, nodes).
    """

    def __init__(
        self,
        steps: Steps,
        of_node: list[tuple[FusionGroup, States]],
        merges: bool,
        choices: Choices,
        blocks: Segments,
        tell: Callable[[int, int], None],
    ) -> None:
        self.steps, self.of_node, self.merges, self.reuse, self.tell = steps, of_node, merges, choices.reuse, tell
        self.arrays = steps.arrays
        self.consumers = consumers_of(steps.graph)
        self.node_and_index = {op.name: (n, i) for n, (node, _) in enumerate(of_node) for i, op in enumerate(node.operators)}
        names = dict.fromkeys([*steps.graph.train_steps, *steps.graph.gradients])
        self.step_node = {name: len(of_node) + i for i, name in enumerate(names)}
        self.transients = Transients(blocks)
        self.nodes = NodeCosts()
        for i, (node, states) in enumerate(of_node):
            self.nodes.add(node.name, states.mem_bytes, states.time_ns)
            self.transients.begin(i, states.transient_bytes)
        nothing = np.zeros(1, np.int64)
        for name in self.step_node:
            self.nodes.add(name, nothing, nothing)
        all_states = [states for _, states in of_node]
        groups = [node for node, _ in of_node]
        positions = [*program_positions(steps.graph, groups, self.consumers), *(len(steps.graph.operators) for _ in names)]
        self.overlap_times = OverlapTimes(steps.costing.reshardings, positions, all_states)
        self.edges: list[Edge] = []
        self.shared: list[SharedCopy] = []
        self.choices: list[CopyChoice] = []
        self._of_training_step: dict[tuple[int, int], Choice] = {}
        self._copies: dict[tuple[int, ...], Choice] = {}
        self._unread: dict[tuple[int, ...], tuple[np.ndarray, object, object]] = {}  # with what has the identities
        self._of_produced: dict[tuple[object, ...], tuple[EdgeCosts, object]] = {}  # with what has the identity
        self._first_edges: dict[int, tuple[EdgeCosts, Edge]] = {}  # by the identity of their costs

    def connect(self) -> None:
        """Connect all nodes: first collect the layouts that occur for each shape, then cost the reshardings between them."""
        tensors = []
        for n, (node, states) in enumerate(self.of_node):
            for i, op in enumerate(node.operators):
                for result, tensor in enumerate(op.outputs):
                    consumers = [self._consumer(tensor, consumer) for consumer in self.consumers.get(tensor.name, ())]
                    if consumers:
                        produced = states.produced(i, result, have_gradient(consumers))
                        maker = self.steps.graph.producers[self.steps.costing.viewed(tensor.name)]
                        made_at = self.node_and_index[maker.updates or maker.name]
                        is_regathered = i in states.rematerialized or (
                            made_at[0] == n and made_at[1] in states.rematerialized
                        )
                        policy = np.where(states.rematerializes & is_regathered, REMATERIALIZED, SAVED)
                        shared = self._shared_copies(produced, consumers)
                        choices = [produced, *(consumer.shardings for consumer in consumers), *([shared] if shared else [])]
                        self.arrays.expect(tensor, choices)
                        tensors.append((ProducedTensor(n, tensor, End(produced, policy)), consumers, shared))
        for made, consumers, shared in tensors:
            self.tell(len(self.of_node) + made.node, 2 * len(self.of_node))
            self._connect(made, consumers, shared)

    def _consumer(self, tensor: Tensor, consumer: Consumer) -> ConsumerEnd:
        if consumer.is_step:
            key = len(tensor.shape), consumer.position
            if key not in self._of_training_step:
                sharding = step_sharding(self.steps.mesh, tensor, consumer)
                self._of_training_step[key] = Choice.of(Shardings.of(self.steps.costing.reshardings.numbers, [sharding]))
            return ConsumerEnd(self.step_node[consumer.name], End(self._of_training_step[key], np.array([UNREAD])))
        n, i = self.node_and_index[consumer.name]
        states, backward = self.of_node[n][1], self.steps.backward
        shardings = states.shardings(i, consumer, backward.gradients)
        is_own = (consumer.name, consumer.position) in backward.residual_operands and not consumer.is_update
        policy = np.full(states.n_states, UNREAD)
        if self.steps.costing.reads(consumer):
            policy[:] = READ if is_own else FIXED
            policy[self._exchanged(consumer)] = FIXED
        if i in states.rematerialized and not consumer.is_update:
            policy[states.rematerializes] = np.where(policy[states.rematerializes] == UNREAD, PASSED, HELD)
        return ConsumerEnd(n, End(shardings, policy))

    def _exchanged(self, consumer: Consumer) -> np.ndarray:
        """Return the states in which the operator exchanges window borders (halos), bool[K].

        Its gradient then reads the exchanged windows instead of the operand.
        """
        n, i = self.node_and_index[consumer.name]
        states, rule = self.of_node[n][1], self.steps.rules[consumer.name]
        if not rule.halos or consumer.position:
            return np.zeros(states.n_states, bool)
        return ConfigArrays.of(rule, states.configs[i]).are_exchanged()[states.index[i]]

    def _shared_copies(self, produced: Choice, ends: list[ConsumerEnd]) -> Choice | None:
        """Return the operand shardings that a tensor's shared copy may have; None where there is nothing to share.

        They are the produced layouts (sums completed), and all that more than one consumer asks for.
        """
        if len(ends) == 1 or (self.merges and len({end.node for end in ends}) == 1):
            return None
        key = id(produced), *(id(end.shardings) for end in ends)
        if key not in self._copies:
            numbers, values = produced.values.numbers, produced.values
            asked = Counter(copy for each in as_copies(ends) for copy in dict.fromkeys(each.codes.tolist()))
            summed = numbers.with_partial(values.layouts, np.zeros_like(values.layouts))
            as_produced = Shardings(numbers, summed, values.unreduced).codes.tolist()
            codes = dict.fromkeys([*as_produced, *(copy for copy, times in asked.items() if times > 1)])
            shared = Shardings.of_codes(numbers, np.array(list(codes), np.int64))
            self._copies[key] = Choice(shared, np.arange(len(shared)))
        return self._copies[key]

    def _connect(self, made: ProducedTensor, consumers: list[ConsumerEnd], shared: Choice | None) -> None:
        producer, tensor = made.node, made.tensor
        outside = [consumer for consumer in consumers if consumer.node != producer]
        if shared is not None and not (self.merges and len(outside) == 1):
            self._share(made, consumers, shared)
        elif self.merges and len(consumers) > 1 and len({consumer.node for consumer in consumers}) == 1:
            self._take_together(made, consumers)
        elif len(consumers) == 1:
            (consumer,) = consumers
            self._add(made, consumer, self._residual_charge(tensor), self._of_consumer(tensor, consumer))
        else:
            self._take_inside(made, consumers)

    def _of_consumer(self, tensor: Tensor, consumer: ConsumerEnd) -> Copy | None:
        """Return the copy of a tensor's single consumer, if it may be regathered in some state; else None."""
        if not _MAY_BE_REGATHERED[consumer.end.policy].any():
            return None
        (only,) = self.consumers[tensor.name]
        return Copy(tensor.name, only.name)

    def _take_inside(self, made: ProducedTensor, consumers: list[ConsumerEnd]) -> None:
        """Connect a tensor to consumers of which at most one is outside the producer's node.

        The producer's node is charged for the shard if the backward pass reads it.
        """
        policy, charge = made.end.policy.copy(), self._residual_charge(made.tensor)
        if charge == ResidualCharge.COPY:
            inside = [consumer.end.policy != UNREAD for consumer in consumers if consumer.node == made.node]
            outside = any((consumer.end.policy != UNREAD).all() for consumer in consumers if consumer.node != made.node)
            is_read = np.logical_or.reduce(inside) | outside
            policy[is_read & (policy == SAVED)] = UNCHARGED
            by_gradient = [_READ_BY_GRADIENT[each.end.policy] for each in consumers if each.node == made.node]
            is_read = np.logical_or.reduce(by_gradient) | outside
            self._charge_produced_shard(made, policy == UNCHARGED, is_read & (policy == REMATERIALIZED))
        for consumer in consumers:
            self._add(ProducedTensor(made.node, made.tensor, End(made.produced, policy)), consumer, charge)

    def _may_regather(self, tensor: Tensor) -> bool:
        """Return whether copies of the tensor may be regathered.

        Copies that all micro-batches read are saved: they would be regathered for each.
        """
        return self.reuse and not self.steps.graph.accumulates(tensor.name)

    def _residual_charge(self, tensor: Tensor) -> ResidualCharge:
        """Return what a read copy of the tensor saves: COPY_OF_SAVED where the produced shard is charged elsewhere."""
        costing = self.steps.costing
        viewed = costing.viewed(tensor.name)
        is_saved = viewed in costing.saved_as_produced or self.steps.graph.producers[viewed].type in (VARIABLE, CONSTANT)
        return ResidualCharge.COPY_OF_SAVED if is_saved else ResidualCharge.COPY

    def _share(self, made: ProducedTensor, consumers: list[ConsumerEnd], shared: Choice) -> None:
        """Add a node for the shared copy of a tensor, with up to four states for each operand sharding.

        In state SAVED the copy is saved. In REGATHERED, offered where it can pay, it is regathered from a saved tensor. In
        REMATERIALIZED it is regathered from a rematerialized tensor. In UNCHARGED it is neither saved nor regathered, and
        nobody may read it.

        If a single consumer reads, its operand sharding tells whether it reads the shared copy or its own. The copy of a
        rematerialized tensor is rematerialized with it, unless communication makes it. That state differs from REGATHERED,
        since what consumers make of such a copy stays in memory as long as the rematerialization segment, and what they
        make of a copy that is regathered otherwise is freed at once.
        """
        tensor, number = made.tensor, len(self.nodes)
        charge, readers = self._residual_charge(tensor), [consumer for consumer in consumers if consumer.reads]
        varies = made.may_be_rematerialized or any(consumer.may_read_or_not for consumer in consumers)
        of_copy = of_consumer = charge if readers else ResidualCharge.NOTHING
        if len(readers) == 1 and charge == ResidualCharge.COPY and not varies:
            of_copy = ResidualCharge.NOTHING
        elif readers:
            of_consumer = ResidualCharge.COPY_OF_SAVED
        can_be_regathered = bool(self._may_regather(tensor) and readers and all(each.can_be_regathered for each in readers))
        none, everything = np.zeros(0, np.intp), np.arange(len(shared.values))
        regathered = self.arrays.worth_regathering(tensor, made.produced, shared) if can_be_regathered else none
        from_rematerialized = everything if readers and made.may_be_rematerialized else none
        no_unread = of_copy == ResidualCharge.NOTHING and not (readers and varies)
        unread = none if no_unread else everything if readers and varies else self._may_be_unread(shared, readers)
        by_policy = {SAVED: everything, REGATHERED: regathered, REMATERIALIZED: from_rematerialized, UNCHARGED: unread}
        index = np.concatenate(list(by_policy.values()))
        policy = np.repeat(list(by_policy), [len(indices) for indices in by_policy.values()])
        is_regathered = np.isin(policy, (REGATHERED, REMATERIALIZED))
        zeros = np.zeros(len(index), np.int64)
        self.nodes.add(tensor.name, zeros, zeros)
        self.overlap_times.positions.append(min(self.overlap_times.positions[consumer.node] for consumer in consumers))
        self.shared.append(SharedCopy(tensor, number, shared.values.at(index), policy == UNCHARGED))
        if is_regathered.any() and can_be_regathered:
            self.choices.append(CopyChoice(Copy(tensor.name), number, is_regathered))
        copy = End(Choice(shared.values, index), policy, is_shared=True)
        self._add_edge(
            made.node, number, self.arrays.by_state(tensor, made.end, copy, to_shared(of_copy, charge, can_be_regathered))
        )
        for consumer in consumers:
            costs = self.arrays.by_state(tensor, copy, consumer.end, of_shared(of_consumer))
            self._add_edge(number, consumer.node, costs, made.node)

    def _may_be_unread(self, shared: Choice, readers: list[ConsumerEnd]) -> np.ndarray:
        """Return what :func:`may_be_unread` does: computed once for equal layers, whose choices are the same objects."""
        key = id(shared), *(id(reader.shardings) for reader in readers)
        if key not in self._unread:
            self._unread[key] = may_be_unread(shared, readers), shared, [reader.shardings for reader in readers]
        return self._unread[key][0]

    def _take_together(self, made: ProducedTensor, consumers: list[ConsumerEnd]) -> None:
        """Connect a tensor to several consumers that are one node.

        They share the copy that one of them asks for; in each state the one for which resharding takes the least time.
        """
        tensor, node, n_states = made.tensor, consumers[0].node, len(consumers[0].shardings.index)
        options = []
        for consumer, copy in zip(consumers, as_copies(consumers), strict=True):
            choice = Choice(copy, consumer.shardings.index)
            self.arrays.expect(tensor, [choice])
            source = End(choice, np.full(n_states, UNCHARGED), is_shared=True)
            table = direct(ResidualCharge.COPY_OF_SAVED)
            others = [self.arrays.along(tensor, source, other.end, table) for other in consumers]
            options.append((choice, others))
        best = np.argmin([np.sum([other.time_ns for other in others], axis=0) for _, others in options], axis=0)
        codes = np.stack([choice.values.codes[choice.index] for choice, _ in options])[best, np.arange(n_states)]
        shardings = Shardings.of_codes(options[0][0].values.numbers, codes)
        shared = Choice.of(shardings)
        self.arrays.expect(tensor, [shared])
        # Regathered only where all consumers that read the copy do so without a copy of their own.
        policies = np.stack([consumer.end.policy for consumer in consumers])
        own = [each.shardings.values.layouts[each.shardings.index] for each in consumers]
        has_its_own = shardings.layouts != np.stack(own)
        fixed = ((policies != UNREAD) & ((policies == FIXED) | has_its_own)).any(axis=0)
        policy = np.full(n_states, UNREAD)
        for each in (PASSED, READ, HELD):
            policy[(policies == each).any(axis=0)] = each
        policy[fixed] = FIXED
        copy_made = Copy(tensor.name) if _MAY_BE_REGATHERED[policy].any() else None
        self._add(made, ConsumerEnd(node, End(shared, policy)), self._residual_charge(tensor), copy_made)
        for k, (_, others) in enumerate(options):
            for other in others:
                self._charge(node, other, best == k)
        self.shared.append(SharedCopy(tensor, node, shardings, np.zeros(n_states, bool)))

    def _add(self, made: ProducedTensor, consumer: ConsumerEnd, charge: ResidualCharge, copy: Copy | None = None) -> None:
        """Charge a tensor's resharding between the states of two nodes, or within one node.

        Args:
            copy: the copy that may be regathered, if that can pay; None where it may not.
        """
        tensor, ends = made.tensor, (made.end, consumer.end)
        if made.node == consumer.node:
            self._charge(made.node, self.arrays.along(tensor, *ends, direct(charge)))
            return
        tables = direct(charge), direct_regathered(charge)
        residual_choice = self.arrays.residual_choice(tensor, *ends, tables) if copy and self._may_regather(tensor) else None
        if copy is not None and residual_choice is not None:
            number = len(self.nodes)
            nothing = residual_choice.nothing
            self.nodes.add(f"{tensor.name} to {self.nodes.name(consumer.node)}", nothing, nothing)
            self.overlap_times.positions.append(self.overlap_times.positions[consumer.node])
            self.choices.append(CopyChoice(copy, number, residual_choice.is_regathered))
            self._add_edge(made.node, number, residual_choice.to_choice)
            self._add_edge(number, consumer.node, residual_choice.of_choice, made.node)
            return
        self._add_edge(made.node, consumer.node, self.arrays.by_state(tensor, *ends, tables[0]))

    def _add_edge(self, from_node: int, to_node: int, costs: EdgeCosts, producer: int | None = None) -> None:
        """Add an edge; ``producer`` is the node of the tensor's producer, if it isn't ``from_node``."""
        number = len(self.edges)
        if costs.overlappable_ns is not None:
            self.overlap_times.add_edge(number, to_node, costs.overlappable_ns)
        self.transients.add_edge(number, from_node if producer is None else producer, to_node, costs)
        first = self._first_edges.get(id(costs))
        mem, time_ns = (costs.mem, costs.time_ns) if first is None else (first[1].mem_bytes, first[1].time_ns)
        self.edges.append(Edge(from_node, to_node, mem, time_ns))
        if first is None:
            self._first_edges[id(costs)] = costs, self.edges[-1]

    def _charge_produced_shard(self, made: ProducedTensor, is_paid: np.ndarray, is_regathered: np.ndarray) -> None:
        """Charge a producer's node for the shard that it produced.

        Args:
            is_paid: the states in which the shard is saved, bool[K].
            is_regathered: the states in which the shard is transient, bool[K].
        """
        tensor, produced = made.tensor, made.produced
        key = tensor.shape, tensor.item_bytes, id(produced), is_paid.tobytes(), is_regathered.tobytes()
        if key not in self._of_produced:
            shards = self.steps.costing.reshardings.shards(tensor, produced.values)[produced.index]
            costs = EdgeCosts(shards * is_paid, np.zeros_like(shards), None, shards * is_regathered)
            self._of_produced[key] = costs, produced
        self._charge(made.node, self._of_produced[key][0])

    def _charge(self, node: int, costs: EdgeCosts, where: np.ndarray | None = None) -> None:
        self.nodes.charge(node, costs, where)
        self.transients.add(node, costs, True if where is None else where)
        if costs.overlappable_ns is not None:
            self.overlap_times.add(node, np.where(True if where is None else where, costs.overlappable_ns, 0))
