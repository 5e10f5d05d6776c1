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
from .edge_costs import FIXED, HELD, PASSED, READ, REMATERIALIZED, SAVED, UNCHARGED, UNREAD, EdgeCosts, End, ReshardingArrays
from .edge_ends import ConsumerEnd, ProducedTensor, have_gradient
from .fusion_groups import FusionGroup
from .node_costs import NodeCosts
from .node_states import Choice, States
from .overlap_parts import OverlapTimes, program_positions
from .remat_segments import Segments
from .saving_tables import direct, direct_regathered
from .shared_copies import SharedCopies
from .strategy_problem import CopyChoice, SharedCopy
from .transient_memory import Transients

_MAY_BE_REGATHERED = frozenset((READ, PASSED, HELD))
_READ_BY_GRADIENT = np.array([policy in (READ, FIXED, HELD) for policy in (UNREAD, READ, FIXED, PASSED, HELD)])
"""The residual policies of copies that may be regathered; and by policy, whether a gradient reads the copy."""


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


@dataclass(frozen=True, eq=False)
class _TakenInside:
    """A tensor that consumers in its producer's node read, of which that node is charged for the shard.

    Attributes:
        end: the tensor as produced.
        is_paid: the states in which the shard is saved, bool[K].
        is_transient: the states in which it is transient, bool[K].
    """

    end: End
    is_paid: np.ndarray
    is_transient: np.ndarray

    @classmethod
    def of(cls, made: ProducedTensor, consumers: list[ConsumerEnd]) -> _TakenInside:
        policy, inside = made.end.policy.copy(), [each.end.policy for each in consumers if each.node == made.node]
        outside = any(UNREAD not in consumer.end.policies for consumer in consumers if consumer.node != made.node)
        is_read = np.logical_or.reduce([each != UNREAD for each in inside]) | outside
        policy[is_read & (policy == SAVED)] = UNCHARGED
        is_read = np.logical_or.reduce([_READ_BY_GRADIENT[each] for each in inside]) | outside
        return cls(End(made.produced, policy), policy == UNCHARGED, is_read & (policy == REMATERIALIZED))


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
        self.copies = SharedCopies(steps.arrays)
        self._of_training_step: dict[tuple[int, int], End] = {}
        self._produced_ends: dict[tuple[object, ...], End] = {}  # by identities of choices, which states keep
        self._consumer_ends: dict[tuple[object, ...], End] = {}
        self._taken_inside: dict[tuple[int, ...], _TakenInside] = {}
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
                        end = self._produced(states, produced, is_regathered)
                        shared = self._shared_choice(produced, consumers)
                        choices = [produced, *(consumer.shardings for consumer in consumers), *([shared] if shared else [])]
                        self.arrays.expect(tensor, choices)
                        tensors.append((ProducedTensor(n, tensor, end), consumers, shared))
        for made, consumers, shared in tensors:
            self.tell(len(self.of_node) + made.node, 2 * len(self.of_node))
            self._connect(made, consumers, shared)

    def _produced(self, states: States, produced: Choice, is_regathered: bool) -> End:
        """Return a tensor as produced in each state; ``is_regathered`` where its operator may be rematerialized."""
        key = id(states), id(produced), is_regathered
        if key not in self._produced_ends:
            policy = np.where(states.rematerializes & is_regathered, REMATERIALIZED, SAVED)
            self._produced_ends[key] = End(produced, policy)
        return self._produced_ends[key]

    def _consumer(self, tensor: Tensor, consumer: Consumer) -> ConsumerEnd:
        if consumer.is_step:
            of_step = len(tensor.shape), consumer.position
            if of_step not in self._of_training_step:
                sharding = step_sharding(self.steps.mesh, tensor, consumer)
                choice = Choice.of(Shardings.of(self.steps.costing.reshardings.numbers, [sharding]))
                self._of_training_step[of_step] = End(choice, np.array([UNREAD]))
            return ConsumerEnd(self.step_node[consumer.name], self._of_training_step[of_step])
        n, i = self.node_and_index[consumer.name]
        states, backward = self.of_node[n][1], self.steps.backward
        shardings = states.shardings(i, consumer, backward.gradients)
        is_own = (consumer.name, consumer.position) in backward.residual_operands and not consumer.is_update
        reads = self.steps.costing.reads(consumer)
        key = id(states), i, consumer.position, consumer.is_update, id(shardings), is_own, reads
        if key not in self._consumer_ends:
            policy = np.full(states.n_states, UNREAD)
            if reads:
                policy[:] = READ if is_own else FIXED
                policy[self._exchanged(consumer)] = FIXED
            if i in states.rematerialized and not consumer.is_update:
                policy[states.rematerializes] = np.where(policy[states.rematerializes] == UNREAD, PASSED, HELD)
            self._consumer_ends[key] = End(shardings, policy)
        return ConsumerEnd(n, self._consumer_ends[key])

    def _exchanged(self, consumer: Consumer) -> np.ndarray:
        """Return the states in which the operator exchanges window borders (halos), bool[K].

        Its gradient then reads the exchanged windows instead of the operand.
        """
        n, i = self.node_and_index[consumer.name]
        states, rule = self.of_node[n][1], self.steps.rules[consumer.name]
        if not rule.halos or consumer.position:
            return np.zeros(states.n_states, bool)
        return ConfigArrays.of(rule, states.configs[i]).are_exchanged()[states.index[i]]

    def _shared_choice(self, produced: Choice, ends: list[ConsumerEnd]) -> Choice | None:
        """Return the operand shardings that a tensor's shared copy may have; None where there is nothing to share."""
        if len(ends) == 1 or (self.merges and len({end.node for end in ends}) == 1):
            return None
        return self.copies.choice(produced, ends)

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
        if not consumer.end.policies & _MAY_BE_REGATHERED:
            return None
        (only,) = self.consumers[tensor.name]
        return Copy(tensor.name, only.name)

    def _take_inside(self, made: ProducedTensor, consumers: list[ConsumerEnd]) -> None:
        """Connect a tensor to consumers of which at most one is outside the producer's node.

        The producer's node is charged for the shard if the backward pass reads it.
        """
        charge = self._residual_charge(made.tensor)
        end = made.end
        if charge == ResidualCharge.COPY:
            key = id(end), *(each for consumer in consumers for each in (id(consumer.end), consumer.node == made.node))
            if key not in self._taken_inside:
                self._taken_inside[key] = _TakenInside.of(made, consumers)
            taken = self._taken_inside[key]
            self._charge_produced_shard(made, taken.is_paid, taken.is_transient)
            end = taken.end
        for consumer in consumers:
            self._add(ProducedTensor(made.node, made.tensor, end), consumer, charge)

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
        """Add a node for the shared copy of a tensor; see :meth:`.SharedCopies.states`."""
        tensor, number = made.tensor, len(self.nodes)
        charge = self._residual_charge(tensor)
        states = self.copies.states(made, consumers, shared, charge, self._may_regather(tensor))
        self.nodes.add(tensor.name, states.nothing, states.nothing)
        self.overlap_times.positions.append(min(self.overlap_times.positions[consumer.node] for consumer in consumers))
        self.shared.append(SharedCopy(tensor, number, states.shardings, states.is_unread))
        if states.can_be_regathered and states.is_regathered.any():
            self.choices.append(CopyChoice(Copy(tensor.name), number, states.is_regathered))
        self._add_edge(made.node, number, self.arrays.by_state(tensor, made.end, states.copy, states.to_copy))
        for consumer in consumers:
            costs = self.arrays.by_state(tensor, states.copy, consumer.end, states.of_copy)
            self._add_edge(number, consumer.node, costs, made.node)

    def _take_together(self, made: ProducedTensor, consumers: list[ConsumerEnd]) -> None:
        """Connect a tensor to several consumers that are one node; see :meth:`.SharedCopies.within`."""
        tensor, node = made.tensor, consumers[0].node
        copy = self.copies.within(tensor, consumers)
        self.arrays.expect(tensor, [copy.end.choice])
        copy_made = Copy(tensor.name) if copy.end.policies & _MAY_BE_REGATHERED else None
        self._add(made, ConsumerEnd(node, copy.end), self._residual_charge(tensor), copy_made)
        for costs, where in copy.costs:
            self._charge(node, costs, where)
        self.shared.append(SharedCopy(tensor, node, copy.shardings, copy.is_unread))

    def _add(self, made: ProducedTensor, consumer: ConsumerEnd, charge: ResidualCharge, copy: Copy | None = None) -> None:
        """Charge a tensor's resharding between the states of two nodes, or within one node."""
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
        """Charge a producer's node for the shard that it produced."""
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
