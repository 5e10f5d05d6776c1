"""Connect the nodes of a Problem: build an edge or a node for every resharding, with its costs.

A tensor that one other node uses is an edge. One that only its producer's own node uses is a cost of that node. A tensor
that several nodes use is a node as well, the *shared copy*: its states are the operand shardings (Demand) to which it may
be resharded once, for all consumers to use it from there. So the collectives charged are the collectives executed.

A copy that a gradient reads is saved for the backward pass or regathered there (:class:`...sharding.strategy.Copy`). For a
shared copy these are different states of its node. For a single consumer's copy the choice is a node between producer and
consumer, with a state for each choice that can matter (:mod:`...ft.choices`). A consumer that wants another layout than the
shared copy's has a copy of its own; where all consumers that read do, the shared copy is neither saved nor regathered,
which is a state as well.

The residual policies LEFT ... HELD are documented in tables in :mod:`.edge_costs`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from ...costs.operator_costs import OperatorCosting
from ...costs.resharding_costs import Keeping, piece_bytes
from ...ft.problem import Edge, Node
from ...ir.gradient_info import Backward
from ...ir.graph import CONSTANT, SOURCES, VARIABLE, Graph, Tensor
from ...reschedule.layout import Layout, needs_communication
from ...reschedule.mesh import Mesh
from ...rules.rule import Demand, Rule
from ...sharding.consumers import Consumer, consumers_of, step_demand
from ...sharding.strategy import Copy
from .choices import Choices
from .edge_costs import (
    FIXED,
    HELD,
    LEFT,
    PAID,
    PASSED,
    READ,
    REGATHERED,
    REMATERIALIZED,
    UNREAD,
    Costs,
    End,
    ReshardingArrays,
)
from .edge_ends import ConsumerEnd, Made, as_copies, has_gradient, may_be_unread
from .fusion_groups import Followers
from .node_states import Choice, States
from .overlap_parts import Beside
from .remat_segments import Blocks
from .saving_tables import direct, direct_again, of_shared, to_shared
from .strategy_problem import CopyChoice, SharedCopy
from .transient_memory import Transients


@dataclass(frozen=True, eq=False)
class Steps:
    """A graph's training steps on a mesh, and their costs; ``rules`` holds the sharding rule of each operator by name."""

    graph: Graph
    backward: Backward
    costing: OperatorCosting
    mesh: Mesh
    rules: Mapping[str, Rule]


class Connections:
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
        of_node: list[tuple[Followers, States]],
        merges: bool,
        choices: Choices,
        blocks: Blocks,
        tell: Callable[[int, int], None],
    ) -> None:
        self.steps, self.of_node, self.merges, self.reuse, self.tell = steps, of_node, merges, choices.reuse, tell
        self.arrays = ReshardingArrays(steps.costing.reshardings, steps.graph, choices.zero)
        self.consumers = consumers_of(steps.graph)
        self.place = {op.name: (n, i) for n, (node, _) in enumerate(of_node) for i, op in enumerate(node.operators)}
        names = dict.fromkeys([*steps.graph.train_steps, *steps.graph.gradients])
        self.step_place = {name: len(of_node) + i for i, name in enumerate(names)}
        self.transients = Transients(blocks)
        self.nodes = [Node(_name(node), s.mem_bytes, s.compute_ns + s.network_ns) for node, s in of_node]
        for i, (_, states) in enumerate(of_node):
            self.transients.begin(i, states.transient_bytes)
        self.nodes += [Node(name, np.zeros(1, np.int64), np.zeros(1, np.int64)) for name in self.step_place]
        self.beside = Beside(steps.costing.reshardings, self._program_places(), [states for _, states in of_node])
        self.edges: list[Edge] = []
        self.shared: list[SharedCopy] = []
        self.choices: list[CopyChoice] = []
        self._whole: dict[tuple[int, int], Choice[Demand]] = {}
        self._left: dict[tuple[int, bool], Choice[Demand]] = {}
        self._copies: dict[tuple[int, ...], Choice[Demand]] = {}

    def _program_places(self) -> list[int]:
        """Return, for each node, the index in program order to which the backward pass comes last.

        The backward pass runs from high to low, so that is the index of the node's first operator that isn't a source. A
        node of sources alone, such as a parameter, has the lowest index among its consumers': its gradient is complete when
        the backward pass has come there.
        """
        program = {name: i for i, name in enumerate(self.steps.graph.operators)}
        places = [program[_name(node)] for node, _ in self.of_node] + [len(program)] * len(self.step_place)
        for n, (node, _) in enumerate(self.of_node):
            if all(op.type in SOURCES for op in node.operators):
                consumers = (consumer for op in node.operators for consumer in self.consumers.get(op.result.name, ()))
                read_by = [each for each in consumers if not (each.is_step or each.is_update)]
                taken = [places[self.place[each.name][0]] for each in read_by]
                places[n] = min(taken, default=places[n])
        return places

    def connect(self) -> None:
        """Connect all nodes: first collect the layouts that occur for each shape, then cost the reshardings between them."""
        tensors = []
        for n, (node, states) in enumerate(self.of_node):
            for i, op in enumerate(node.operators):
                for result, tensor in enumerate(op.outputs):
                    consumers = [self._consumer(tensor, consumer) for consumer in self.consumers.get(tensor.name, ())]
                    if consumers:
                        left = self._as_left(states.layouts(i, result), consumers)
                        maker = self.steps.graph.producers[self.steps.costing.viewed(tensor.name)]
                        made_at = self.place[maker.updates or maker.name]
                        is_regathered = i in states.recomputed or (made_at[0] == n and made_at[1] in states.recomputed)
                        way = np.where(states.recomputes & is_regathered, REMATERIALIZED, LEFT)
                        shared = self._shared_copies(left, consumers)
                        choices = [left, *(consumer.demands for consumer in consumers), *([shared] if shared else [])]
                        self.arrays.expect(tensor, choices)
                        tensors.append((Made(n, tensor, End(left, way)), consumers, shared))
        for made, consumers, shared in tensors:
            self.tell(len(self.of_node) + made.node, 2 * len(self.of_node))
            self._connect(made, consumers, shared)

    def _consumer(self, tensor: Tensor, consumer: Consumer) -> ConsumerEnd:
        if consumer.is_step:
            key = len(tensor.shape), consumer.position
            if key not in self._whole:
                self._whole[key] = Choice.of([step_demand(self.steps.mesh, tensor, consumer)])
            return ConsumerEnd(self.step_place[consumer.name], End(self._whole[key], np.array([UNREAD])))
        n, i = self.place[consumer.name]
        states, backward = self.of_node[n][1], self.steps.backward
        demands = states.demands(i, consumer, backward.gradients)
        is_own = (consumer.name, consumer.position) in backward.kept_operands and not consumer.is_update
        way = np.full(states.n_states, UNREAD)
        if self.steps.costing.reads(consumer):
            way[:] = READ if is_own else FIXED
            way[self._exchanged(consumer)] = FIXED
        if i in states.recomputed and not consumer.is_update:
            way[states.recomputes] = np.where(way[states.recomputes] == UNREAD, PASSED, HELD)
        return ConsumerEnd(n, End(demands, way))

    def _exchanged(self, consumer: Consumer) -> np.ndarray:
        """Return the states in which the operator exchanges window borders (halos), bool[K].

        Its gradient then reads the exchanged windows instead of the operand.
        """
        n, i = self.place[consumer.name]
        states, rule = self.of_node[n][1], self.steps.rules[consumer.name]
        if not rule.halos or consumer.position:
            return np.zeros(states.n_states, bool)
        return np.array([bool(rule.exchanged(config)) for config in states.configs[i]], bool)[states.place[i]]

    def _as_left(self, layouts: Choice[Layout], ends: list[ConsumerEnd]) -> Choice[Demand]:
        """Return the produced layout by the node's state, as an operand sharding: the gradient comes back summed."""
        with_gradient = any(has_gradient(end.demands) for end in ends)
        key = id(layouts), with_gradient
        if key not in self._left:
            values = tuple(Demand(layout, () if with_gradient else None) for layout in layouts.values)
            self._left[key] = Choice(values, layouts.place)
        return self._left[key]

    def _shared_copies(self, left: Choice[Demand], ends: list[ConsumerEnd]) -> Choice[Demand] | None:
        """Return the operand shardings that a tensor's shared copy may have; None where there is nothing to share.

        They are the produced layouts (sums completed), and all that more than one consumer asks for.
        """
        if len(ends) == 1 or (self.merges and len({end.node for end in ends}) == 1):
            return None
        key = id(left), *(id(end.demands) for end in ends)
        if key not in self._copies:
            asked = Counter(copy for each in as_copies(ends) for copy in dict.fromkeys(each))
            as_left = dict.fromkeys(Demand(d.layout.with_partial(()), d.varying) for d in left.values)
            values = dict.fromkeys([*as_left, *(copy for copy, times in asked.items() if times > 1)])
            self._copies[key] = Choice(tuple(values), np.arange(len(values)))
        return self._copies[key]

    def _connect(self, made: Made, consumers: list[ConsumerEnd], shared: Choice[Demand] | None) -> None:
        producer, tensor = made.node, made.tensor
        outside = [consumer for consumer in consumers if consumer.node != producer]
        if shared is not None and not (self.merges and len(outside) == 1):
            self._share(made, consumers, shared)
        elif self.merges and len(consumers) > 1 and len({consumer.node for consumer in consumers}) == 1:
            self._take_together(made, consumers)
        elif len(consumers) == 1:
            (consumer,) = consumers
            self._add(made, consumer, self._keeping(tensor), self._of_consumer(tensor, consumer))
        else:
            self._take_inside(made, consumers)

    def _of_consumer(self, tensor: Tensor, consumer: ConsumerEnd) -> Copy | None:
        """Return the copy of a tensor's single consumer, if it may be regathered in some state; else None."""
        if not np.isin(consumer.end.way, (READ, PASSED, HELD)).any():
            return None
        (only,) = self.consumers[tensor.name]
        return Copy(tensor.name, only.name)

    def _take_inside(self, made: Made, consumers: list[ConsumerEnd]) -> None:
        """Connect a tensor to consumers of which at most one is outside the producer's node.

        The producer's node is charged for the shard if the backward pass reads it.
        """
        way, keeping = made.end.way.copy(), self._keeping(made.tensor)
        if keeping == Keeping.COPY:
            inside = [consumer.end.way != UNREAD for consumer in consumers if consumer.node == made.node]
            outside = any((consumer.end.way != UNREAD).all() for consumer in consumers if consumer.node != made.node)
            is_read = np.logical_or.reduce(inside) | outside
            way[is_read & (way == LEFT)] = PAID
            by_gradient = [np.isin(each.end.way, (READ, FIXED, HELD)) for each in consumers if each.node == made.node]
            self._charge_piece(made, way == PAID, (np.logical_or.reduce(by_gradient) | outside) & (way == REMATERIALIZED))
        for consumer in consumers:
            self._add(Made(made.node, made.tensor, End(made.left, way)), consumer, keeping)

    def _may_remake(self, tensor: Tensor) -> bool:
        """Return whether copies of the tensor may be regathered.

        Copies that all micro-batches read are saved: they would be regathered for each.
        """
        return self.reuse and not self.steps.graph.accumulates(tensor.name)

    def _keeping(self, tensor: Tensor) -> Keeping:
        """Return what a read copy of the tensor saves: COPY_OF_KEPT where the produced shard is charged elsewhere."""
        costing = self.steps.costing
        viewed = costing.viewed(tensor.name)
        is_left = viewed in costing.left or self.steps.graph.producers[viewed].type in (VARIABLE, CONSTANT)
        return Keeping.COPY_OF_KEPT if is_left else Keeping.COPY

    def _share(self, made: Made, consumers: list[ConsumerEnd], shared: Choice[Demand]) -> None:
        """Add a node for the shared copy of a tensor, with up to four states for each operand sharding.

        In state LEFT the copy is saved. In REGATHERED, offered where it can pay, it is regathered from a saved tensor. In
        REMATERIALIZED it is made again from a rematerialized tensor. In PAID it is neither saved nor regathered, and nobody
        may read it.

        If a single consumer reads, its operand sharding tells whether it reads the shared copy or its own. The copy of a
        rematerialized tensor is rematerialized with it, unless communication makes it. That state differs from REGATHERED,
        since what consumers make of such a copy stays in memory as long as the rematerialization segment, and what they
        make of a copy that is regathered otherwise is freed at once.
        """
        tensor, number = made.tensor, len(self.nodes)
        keeping, readers = self._keeping(tensor), [consumer for consumer in consumers if consumer.reads]
        varies = made.may_be_regathered or any(consumer.may_read_or_not for consumer in consumers)
        of_copy = of_consumer = keeping if readers else Keeping.NOTHING
        if len(readers) == 1 and keeping == Keeping.COPY and not varies:
            of_copy = Keeping.NOTHING
        elif readers:
            of_consumer = Keeping.COPY_OF_KEPT
        may_be_remade = bool(self._may_remake(tensor) and readers and all(consumer.may_be_remade for consumer in readers))
        none, everything = np.zeros(0, np.intp), np.arange(len(shared.values))
        remade = self._worth_remaking(tensor, made.left, shared) if may_be_remade else none
        again = everything if readers and made.may_be_regathered else none
        unread = none if of_copy == Keeping.NOTHING else may_be_unread(shared, readers)
        if readers and varies:
            unread = everything
        by_way = {LEFT: everything, REGATHERED: remade, REMATERIALIZED: again, PAID: unread}
        place = np.concatenate(list(by_way.values()))
        way = np.repeat(list(by_way), [len(places) for places in by_way.values()])
        is_remade = np.isin(way, (REGATHERED, REMATERIALIZED))
        zeros = np.zeros(len(place), np.int64)
        self.nodes.append(Node(tensor.name, zeros, zeros))
        self.beside.places.append(min(self.beside.places[consumer.node] for consumer in consumers))
        self.shared.append(SharedCopy(tensor, number, tuple(shared.values[i] for i in place), way == PAID))
        if is_remade.any() and may_be_remade:
            self.choices.append(CopyChoice(Copy(tensor.name), number, is_remade))
        copy = End(Choice(shared.values, place), way, is_shared=True)
        self._add_edge(
            made.node, number, self.arrays.by_state(tensor, made.end, copy, to_shared(of_copy, keeping, may_be_remade))
        )
        for consumer in consumers:
            costs = self.arrays.by_state(tensor, copy, consumer.end, of_shared(of_consumer))
            self._add_edge(number, consumer.node, costs, made.node)

    def _worth_remaking(self, tensor: Tensor, left: Choice[Demand], shared: Choice[Demand]) -> np.ndarray:
        """Return the indices of the copies that are larger than some produced shard from which communication makes them."""
        pieces = [(demand.layout, piece_bytes(tensor, demand.layout)) for demand in left.values]
        return np.array(
            [
                i
                for i, demand in enumerate(shared.values)
                if any(
                    n_bytes < piece_bytes(tensor, demand.layout) and needs_communication(layout, demand.layout)
                    for layout, n_bytes in pieces
                )
            ],
            np.intp,
        )

    def _take_together(self, made: Made, consumers: list[ConsumerEnd]) -> None:
        """Connect a tensor to several consumers that are one node.

        They share the copy that one of them asks for; in each state the one for which resharding takes the least time.
        """
        tensor, node, n_states = made.tensor, consumers[0].node, len(consumers[0].demands.place)
        options = []
        for consumer, copy in zip(consumers, as_copies(consumers), strict=True):
            choice = Choice(tuple(copy), consumer.demands.place)
            self.arrays.expect(tensor, [choice])
            source = End(choice, np.full(n_states, PAID), is_shared=True)
            others = [self.arrays.along(tensor, source, other.end, direct(Keeping.COPY_OF_KEPT)) for other in consumers]
            options.append((choice, others))
        best = np.argmin([np.sum([other.time_ns for other in others], axis=0) for _, others in options], axis=0)
        demands = [options[b][0].values[options[b][0].place[k]] for k, b in enumerate(best.tolist())]
        shared = Choice.of(demands)
        self.arrays.expect(tensor, [shared])
        # Regathered only where all consumers that read the copy do so without a copy of their own.
        ways = np.stack([consumer.end.way for consumer in consumers])
        has_its_own = [
            [shared.values[shared.place[k]].layout != t.demands.values[t.demands.place[k]].layout for k in range(n_states)]
            for t in consumers
        ]
        fixed = ((ways != UNREAD) & ((ways == FIXED) | np.array(has_its_own, bool))).any(axis=0)
        way = np.full(n_states, UNREAD)
        for each in (PASSED, READ, HELD):
            way[(ways == each).any(axis=0)] = each
        way[fixed] = FIXED
        copy_made = Copy(tensor.name) if np.isin(way, (READ, PASSED, HELD)).any() else None
        self._add(made, ConsumerEnd(node, End(shared, way)), self._keeping(tensor), copy_made)
        for k, (_, others) in enumerate(options):
            for other in others:
                self._charge(node, other, best == k)
        self.shared.append(SharedCopy(tensor, node, tuple(demands), np.zeros(n_states, bool)))

    def _add(self, made: Made, consumer: ConsumerEnd, keeping: Keeping, copy: Copy | None = None) -> None:
        """Charge a tensor's resharding between the states of two nodes, or within one node.

        Args:
            copy: the copy that may be regathered, if that can pay; None where it may not.
        """
        tensor, ends = made.tensor, (made.end, consumer.end)
        if made.node == consumer.node:
            self._charge(made.node, self.arrays.along(tensor, *ends, direct(keeping)))
            return
        tables = direct(keeping), direct_again(keeping)
        choosing = self.arrays.choosing(tensor, *ends, tables) if copy and self._may_remake(tensor) else None
        if copy is not None and choosing is not None:
            number = len(self.nodes)
            self.nodes.append(Node(f"{tensor.name} to {self.nodes[consumer.node].name}", choosing.nothing, choosing.nothing))
            self.beside.places.append(self.beside.places[consumer.node])
            self.choices.append(CopyChoice(copy, number, choosing.is_remade))
            self._add_edge(made.node, number, choosing.to_choice)
            self._add_edge(number, consumer.node, choosing.of_choice, made.node)
            return
        self._add_edge(made.node, consumer.node, self.arrays.by_state(tensor, *ends, tables[0]))

    def _add_edge(self, from_node: int, to_node: int, costs: Costs, producer: int | None = None) -> None:
        """Add an edge; ``producer`` is the node of the tensor's producer, if it isn't ``from_node``."""
        number = len(self.edges)
        if costs.trailing_ns is not None:
            self.beside.add_edge(number, to_node, costs.trailing_ns)
        self.transients.add_edge(number, from_node if producer is None else producer, to_node, costs)
        self.edges.append(Edge(from_node, to_node, costs.mem, costs.time_ns))

    def _charge_piece(self, made: Made, is_paid: np.ndarray, is_regathered: np.ndarray) -> None:
        """Charge a producer's node for the shard that it produced.

        Args:
            is_paid: the states in which the shard is saved, bool[K].
            is_regathered: the states in which the shard is transient, bool[K].
        """
        tensor, left = made.tensor, made.left
        pieces = np.array([piece_bytes(tensor, demand.layout) for demand in left.values], np.int64)[left.place]
        self._charge(made.node, Costs(pieces * is_paid, np.zeros_like(pieces), None, pieces * is_regathered))

    def _charge(self, node: int, costs: Costs, where: np.ndarray | bool = True) -> None:
        before, mem, time_ns = self.nodes[node], np.where(where, costs.mem, 0), np.where(where, costs.time_ns, 0)
        self.nodes[node] = Node(before.name, before.mem_bytes + mem, before.time_ns + time_ns)
        self.transients.add(node, costs, where)
        if costs.trailing_ns is not None:
            self.beside.add(node, np.where(where, costs.trailing_ns, 0))


def _name(node: Followers) -> str:
    return next((op.name for op in node.operators if op.type not in SOURCES), node.operators[0].name)
