"""How the nodes of a Problem are connected: what the deliveries between them cost, and which are nodes themselves.

A tensor that one node takes is an edge; one that its own node takes, a cost of that node. A tensor that several take is a
node as well: its states are the demands for which it may be delivered once, for all to take it from there. So collectives
charged are collectives executed.

A copy that a gradient reads may be kept or made again in the backward pass (:class:`.strategy.Copy`). Of a shared copy that
is another state of its tensor's node; of a single taker's, a node between its ends, with a state for each choice that can
matter (:mod:`.ft.choices`). Where a shared copy isn't what a taker wants, the taker keeps its own; where all who read do,
the shared copy need be neither kept nor made again, which is a state as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from .backward import Backward
from .beside import Beside
from .costing import Keeping, OperatorCosting, piece_bytes
from .delivery_arrays import Costs, DeliveryArrays
from .evaluation import Choice, States
from .following import Followers
from .ft.problem import Edge, Node
from .ir import CONSTANT, SOURCES, VARIABLE, Graph, Tensor
from .reschedule.layout import Layout, is_view, needs_communication
from .reschedule.mesh import Mesh
from .rules.rule import Demand, Rule
from .strategy import Copy
from .strategy_problem import CopyChoice, SharedCopy
from .takers import Taker, as_copy, step_demand, takers_of
from .views import viewed_operand


@dataclass(frozen=True, eq=False)
class Steps:
    """The training steps of a graph on a mesh, and what they cost; ``rules`` by operator."""

    graph: Graph
    backward: Backward
    costing: OperatorCosting
    mesh: Mesh
    rules: Mapping[str, Rule]


@dataclass(frozen=True, eq=False)
class _End:
    """A taker as the search sees it: its node and what it asks, by the node's state.

    Attributes:
        is_read: whether a gradient reads its copy.
        operator: whose own gradient does, so that it may be made again; None where there is none.
        exchanged: by demand, whether the operator exchanges windows; its gradient then reads these instead.
    """

    node: int
    demands: Choice[Demand]
    is_read: bool
    operator: str | None
    exchanged: np.ndarray

    @property
    def exchanges(self) -> bool:
        return bool(self.exchanged.any())


class Connections:
    """The nodes' costs, and between them the deliveries of every tensor.

    Args:
        of_node: the nodes that are operators.
        merges: whether nodes are several operators that follow each other.
        reuse: whether copies may be made again instead of being kept.
        tell: is told (nodes done, nodes).
    """

    def __init__(
        self,
        steps: Steps,
        of_node: list[tuple[Followers, States]],
        merges: bool,
        reuse: bool,
        tell: Callable[[int, int], None],
    ) -> None:
        self.steps, self.of_node, self.merges, self.reuse, self.tell = steps, of_node, merges, reuse, tell
        self.arrays = DeliveryArrays(steps.costing.deliveries, steps.graph)
        self.takers = takers_of(steps.graph)
        self.place = {op.name: (n, i) for n, (node, _) in enumerate(of_node) for i, op in enumerate(node.operators)}
        self.step_place = {name: len(of_node) + i for i, name in enumerate(steps.graph.train_steps)}
        self.nodes = [Node(_name(node), s.mem_bytes, s.compute_ns + s.network_ns) for node, s in of_node]
        self.nodes += [Node(name, np.zeros(1, np.int64), np.zeros(1, np.int64)) for name in self.step_place]
        self.beside = Beside(steps.costing.deliveries, self._program_places(), [states for _, states in of_node])
        self.edges: list[Edge] = []
        self.shared: list[SharedCopy] = []
        self.choices: list[CopyChoice] = []
        self._whole: dict[tuple[int, int], Choice[Demand]] = {}
        self._left: dict[tuple[int, bool], Choice[Demand]] = {}
        self._copies: dict[tuple[int, ...], Choice[Demand]] = {}

    def _program_places(self) -> list[int]:
        """Of each node, where the backward pass comes to it last; of a parameter's, where its gradient is there."""
        program = {name: i for i, name in enumerate(self.steps.graph.operators)}
        places = [program[_name(node)] for node, _ in self.of_node] + [len(program)] * len(self.step_place)
        for n, (node, _) in enumerate(self.of_node):
            if all(op.type in SOURCES for op in node.operators):
                takers = (taker for op in node.operators for taker in self.takers.get(op.result.name, ()))
                taken = [places[self.place[taker.name][0]] for taker in takers if not (taker.is_step or taker.is_update)]
                places[n] = min(taken, default=places[n])
        return places

    def connect(self) -> None:
        """Everything: first which layouts there are of each shape, then what the deliveries between them cost."""
        tensors = []
        for n, (node, states) in enumerate(self.of_node):
            for i, op in enumerate(node.operators):
                for result, tensor in enumerate(op.outputs):
                    ends = [self._end(tensor, taker) for taker in self.takers.get(tensor.name, ())]
                    if ends:
                        left = self._as_left(states.layouts(i, result), ends)
                        shared = self._shared_copies(left, ends)
                        self.arrays.expect(tensor, [left, *(end.demands for end in ends), *([shared] if shared else [])])
                        tensors.append((n, tensor, left, ends, shared))
        for n, tensor, left, ends, shared in tensors:
            self.tell(len(self.of_node) + n, 2 * len(self.of_node))
            self._connect(n, tensor, left, ends, shared)

    def _end(self, tensor: Tensor, taker: Taker) -> _End:
        if taker.is_step:
            key = len(tensor.shape), taker.position
            if key not in self._whole:
                self._whole[key] = Choice.of([step_demand(self.steps.mesh, tensor, taker)])
            return _End(self.step_place[taker.name], self._whole[key], False, None, np.zeros(1, bool))
        n, i = self.place[taker.name]
        backward = self.steps.backward
        is_own = (taker.name, taker.position) in backward.kept_operands and not taker.is_update
        demands = self.of_node[n][1].demands(i, taker, backward.gradients)
        operator = taker.name if is_own else None
        return _End(n, demands, self.steps.costing.reads(taker), operator, self._exchanged(taker, demands))

    def _exchanged(self, taker: Taker, demands: Choice[Demand]) -> np.ndarray:
        n, i = self.place[taker.name]
        states, rule = self.of_node[n][1], self.steps.rules[taker.name]
        found = np.zeros(len(demands.values), bool)
        if rule.halos and taker.position == 0:
            by_config = np.array([bool(rule.exchanged(config)) for config in states.configs[i]])
            found[demands.place[by_config[states.place[i]]]] = True
        return found

    def _as_left(self, layouts: Choice[Layout], ends: list[_End]) -> Choice[Demand]:
        """How a tensor's producer leaves it, by its node's state, as a demand: the gradient comes back summed."""
        with_gradient = any(_has_gradient(end.demands) for end in ends)
        key = id(layouts), with_gradient
        if key not in self._left:
            values = tuple(Demand(layout, () if with_gradient else None) for layout in layouts.values)
            self._left[key] = Choice(values, layouts.place)
        return self._left[key]

    def _shared_copies(self, left: Choice[Demand], ends: list[_End]) -> Choice[Demand] | None:
        """The copies among which a tensor's takers may choose one to share; None where there is no such choice.

        As the producer leaves it, or as more than one taker asks for it.
        """
        if len(ends) == 1 or (self.merges and len({end.node for end in ends}) == 1):
            return None
        key = id(left), *(id(end.demands) for end in ends)
        if key not in self._copies:
            asked = Counter(copy for each in _as_copies(ends) for copy in dict.fromkeys(each))
            as_left = dict.fromkeys(Demand(d.layout.with_partial(()), d.varying) for d in left.values)
            values = dict.fromkeys([*as_left, *(copy for copy, times in asked.items() if times > 1)])
            self._copies[key] = Choice(tuple(values), np.arange(len(values)))
        return self._copies[key]

    def _connect(
        self, producer: int, tensor: Tensor, left: Choice[Demand], ends: list[_End], shared: Choice[Demand] | None
    ) -> None:
        outside = {end.node for end in ends} - {producer}
        if shared is not None and not (self.merges and len(outside) == 1 and sum(e.node != producer for e in ends) == 1):
            self._share(producer, tensor, left, ends, shared)
        elif self.merges and len(ends) > 1 and len({end.node for end in ends}) == 1:
            self._take_together(producer, tensor, left, ends)
        elif len(ends) == 1:
            (end,) = ends
            keeping = self._keeping(tensor) if end.is_read else Keeping.NOTHING
            copy = Copy(tensor.name, end.operator) if end.operator is not None else None
            self._add(tensor, (producer, left), (end.node, end.demands), keeping, copy, end.exchanged)
        else:
            keeping = Keeping.COPY_OF_KEPT
            if any(end.is_read for end in ends) and self._keeping(tensor) == Keeping.COPY:
                self._charge_piece(producer, tensor, left)
            for end in ends:
                self._add(tensor, (producer, left), (end.node, end.demands), keeping if end.is_read else Keeping.NOTHING)

    def _keeping(self, tensor: Tensor) -> Keeping:
        """What a copy of a tensor that is read keeps: whether its producer's piece is paid for by itself."""
        producer = self.steps.graph.producers[tensor.name]
        is_left = tensor.name in self.steps.costing.left or producer.type in (VARIABLE, CONSTANT)
        is_left = is_left or viewed_operand(producer, tensor.name) is not None
        return Keeping.COPY_OF_KEPT if is_left else Keeping.COPY

    def _share(
        self, producer: int, tensor: Tensor, left: Choice[Demand], ends: list[_End], shared: Choice[Demand]
    ) -> None:
        """A node for the shared copy: for each demand a state that keeps it; where that can pay, one that makes it again;
        and one that does neither, in which nobody may read it.

        For a single taker that reads a copy it is known by its demand whether it reads this one or its own.
        """
        keeping, readers = self._keeping(tensor), [end for end in ends if end.is_read]
        of_copy = of_taker = keeping if readers else Keeping.NOTHING
        if len(readers) == 1 and keeping == Keeping.COPY:
            of_copy = Keeping.NOTHING
        elif readers:
            of_taker = Keeping.COPY_OF_KEPT
        may_be_remade = self.reuse and readers and all(end.operator and not end.exchanges for end in readers)
        none, of_again = np.zeros(0, np.intp), Keeping.AGAIN if keeping == Keeping.COPY else Keeping.AGAIN_OF_KEPT
        to_copy = of_copy, of_again, Keeping.NOTHING
        of_reader = of_taker, Keeping.FROM_SHARED_AGAIN, Keeping.FROM_SHARED_UNREAD
        again = self._worth_remaking(tensor, left, shared) if may_be_remade else none
        unread = none if of_copy == Keeping.NOTHING else _may_be_unread(shared, readers)
        place = np.concatenate([np.arange(len(shared.values)), again, unread])
        way = np.repeat([0, 1, 2], [len(shared.values), len(again), len(unread)])
        number, zeros = len(self.nodes), np.zeros(len(place), np.int64)
        self.nodes.append(Node(tensor.name, zeros, zeros))
        self.beside.places.append(min(self.beside.places[end.node] for end in ends))
        self.shared.append(SharedCopy(tensor, number, tuple(shared.values[i] for i in place), way == 2))
        if len(again):
            self.choices.append(CopyChoice(Copy(tensor.name), number, way == 1))
        self._add_edge(producer, number, self.arrays.either(tensor, left, shared, to_copy, (place, way)))
        for end in ends:
            ways = of_reader if end.is_read else (Keeping.NOTHING,) * 3
            costs = self.arrays.either(tensor, shared, end.demands, ways, (place, way), of_source=True)
            self._add_edge(number, end.node, costs)

    def _worth_remaking(self, tensor: Tensor, left: Choice[Demand], shared: Choice[Demand]) -> np.ndarray:
        """The places of the copies that take more memory than some piece from which communication makes them."""
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

    def _take_together(self, producer: int, tensor: Tensor, left: Choice[Demand], ends: list[_End]) -> None:
        """Several takers of one node share the copy that one of them asks for: in each state whose is the cheapest."""
        node, n_states = ends[0].node, len(ends[0].demands.place)
        is_read = any(end.is_read for end in ends)
        options = []
        for end, copy in zip(ends, _as_copies(ends), strict=True):
            choice = Choice(tuple(copy), end.demands.place)
            others = [
                self.arrays.along(tensor, choice, other.demands, Keeping.COPY_OF_KEPT if other.is_read else Keeping.NOTHING)
                for other in ends
            ]
            options.append((choice, sum((cost for cost in others), start=np.zeros((3, n_states), np.int64))))
        best = np.argmin([costs[1] for _, costs in options], axis=0)
        demands = [options[b][0].values[options[b][0].place[k]] for k, b in enumerate(best.tolist())]
        shared = Choice.of(demands)
        self.arrays.expect(tensor, [shared])
        readers = [end for end in ends if end.is_read]
        # Made again only where all takers that read the copy do so without a copy of their own.
        read_there = all(
            shared.values[shared.place[k]].layout == end.demands.values[end.demands.place[k]].layout
            for end in readers
            for k in range(n_states)
        )
        may_be_remade = read_there and all(end.operator and not end.exchanges for end in readers)
        copy_made = Copy(tensor.name) if may_be_remade and is_read else None
        keeping = self._keeping(tensor) if is_read else Keeping.NOTHING
        self._add(tensor, (producer, left), (node, shared), keeping, copy_made)
        self._charge(node, np.stack([costs for _, costs in options])[best, :, np.arange(n_states)].T)
        self.shared.append(SharedCopy(tensor, node, tuple(demands), np.zeros(n_states, bool)))

    def _add(
        self,
        tensor: Tensor,
        source: tuple[int, Choice[Demand]],
        target: tuple[int, Choice[Demand]],
        keeping: Keeping,
        copy: Copy | None = None,
        never: np.ndarray | None = None,
    ) -> None:
        """Charge deliveries between the states of two nodes, or within one.

        Args:
            copy: that may be made again, if that can pay.
            never: by demand, whether it is kept all the same.
        """
        (from_node, left), (to_node, demands) = source, target
        if from_node == to_node:
            self._charge(from_node, self.arrays.along(tensor, left, demands, keeping))
            return
        never = np.zeros(len(demands.values), bool) if never is None else never
        choosing = self.arrays.choosing(tensor, left, demands, keeping, never) if copy and self.reuse else None
        if copy is not None and choosing is not None:
            number = len(self.nodes)
            self.nodes.append(Node(f"{tensor.name} to {self.nodes[to_node].name}", choosing.nothing, choosing.nothing))
            self.beside.places.append(self.beside.places[to_node])
            self.choices.append(CopyChoice(copy, number, choosing.is_remade))
            self._add_edge(from_node, number, choosing.to_choice)
            self._add_edge(number, to_node, choosing.of_choice)
            return
        self._add_edge(from_node, to_node, self.arrays.by_state(tensor, left, demands, keeping))

    def _add_edge(self, from_node: int, to_node: int, costs: Costs) -> None:
        mem, time_ns, trailing_ns = costs
        if trailing_ns is not None:
            self.beside.add_edge(len(self.edges), to_node, trailing_ns)
        self.edges.append(Edge(from_node, to_node, mem, time_ns))

    def _charge_piece(self, producer: int, tensor: Tensor, left: Choice[Demand]) -> None:
        """Charge a producer for the piece that it leaves."""
        pieces = np.array([piece_bytes(tensor, demand.layout) for demand in left.values], np.int64)[left.place]
        self._charge(producer, np.stack([pieces, np.zeros_like(pieces), np.zeros_like(pieces)]))

    def _charge(self, node: int, costs: np.ndarray) -> None:
        mem, time_ns, trailing_ns = costs
        before = self.nodes[node]
        self.nodes[node] = Node(before.name, before.mem_bytes + mem, before.time_ns + time_ns)
        self.beside.add(node, trailing_ns)


def _name(node: Followers) -> str:
    return next((op.name for op in node.operators if op.type not in SOURCES), node.operators[0].name)


def _has_gradient(demands: Choice[Demand]) -> bool:
    return any(demand.varying is not None for demand in demands.values)


def _may_be_unread(shared: Choice[Demand], readers: list[_End]) -> np.ndarray:
    """The places of the copies that none of the readers may read, each having a copy of its own."""

    def may_have_its_own(end: _End, layout: Layout) -> bool:
        return any(layout != demand.layout and not is_view(layout, demand.layout) for demand in end.demands.values)

    places = [i for i, d in enumerate(shared.values) if all(may_have_its_own(end, d.layout) for end in readers)]
    return np.array(places, np.intp)


def _as_copies(ends: list[_End]) -> list[list[Demand]]:
    """By taker, its demands as those of a copy that all can share; each list in the order of its distinct demands."""
    with_gradient = any(_has_gradient(end.demands) for end in ends)
    return [[as_copy(demand, with_gradient) for demand in end.demands.values] for end in ends]
