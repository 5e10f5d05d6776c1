"""From a graph to a Problem: nodes, edges and arrays of costs, all that the search sees.

A node is an operator with its configs, or several that follow each other (:mod:`.space`). A tensor that one node takes is an
edge; one that its own node takes, a cost of that node. A tensor that several take is a node as well: its states are the
demands for which it may be delivered once, for all to take it from there. So collectives charged are collectives executed.

What is equal is built once and shared by identity: states by signature (:mod:`.evaluation`), costs by what they connect.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from .backward import Backward
from .beside import Beside
from .costing import DeliveryCosting, OperatorCosting
from .evaluation import Choice, Evaluation, States
from .following import Followers
from .forcing import Force, allowed, check_force, pinned
from .ft.problem import Edge, Node, Problem
from .ir import SOURCES, Graph, Tensor
from .reschedule.layout import Layout
from .reschedule.mesh import Mesh
from .rules.registry import rule_of
from .rules.rule import Demand
from .space import FULL, Assignments, nodes_of, states_of
from .strategy_problem import SharedCopy, StrategyProblem
from .takers import Taker, as_copy, step_demand, takers_of

Costs = tuple[np.ndarray, np.ndarray, np.ndarray | None]
"""Memory, time, and of the time what only updates of variables wait for; None where that is nothing."""


@dataclass(frozen=True, eq=False)
class _End:
    """A taker as the search sees it: its node and what it asks, by the node's state."""

    node: int
    demands: Choice[Demand]
    is_kept: bool


@dataclass
class ProblemBuilder:
    """Builds the Problem of a graph's training steps on one mesh.

    Attributes:
        progress: is told (nodes done, nodes).
        states: the states of each node, where they are not to be all of the space.
    """

    graph: Graph
    backward: Backward
    costing: OperatorCosting
    mesh: Mesh
    space: str = FULL
    force: Force = field(default_factory=dict)
    progress: Callable[[int, int], None] | None = None
    states: Callable[[Followers], Assignments] | None = None

    def build(self) -> StrategyProblem:
        """The Problem of all operators that a training step runs.

        Raises:
            InputError: ``force`` names what isn't there, or asks for a split that an operator can't have.
        """
        check_force(self.graph, self.force)
        self.rules = {op.name: rule_of(op) for op in self.graph.step_operators}
        nodes = self._evaluated()
        connections = _Connections(self, nodes)
        connections.connect()
        problem = Problem(tuple(connections.nodes), tuple(connections.edges))
        overlap = connections.beside.overlap()
        return StrategyProblem(problem, self.mesh, self.space, tuple(nodes), tuple(connections.shared), overlap)

    def _evaluated(self) -> list[tuple[Followers, States]]:
        evaluation = Evaluation(self.costing, self.rules, self.mesh)
        operators = self.graph.step_operators
        forced = frozenset(op.name for op in operators if pinned(self.force, op))
        found = []
        groups = nodes_of(self.space, self.graph, self.rules, takers_of(self.graph), forced)
        for done, node in enumerate(groups):
            self.tell(done, 2 * len(groups))
            if self.states is not None:
                given = self.states(node)
                found.append((node, evaluation.states(node, partial(tuple, given), given)))
                continue
            degrees = tuple(sorted(pinned(self.force, node.operators[0]).items()))
            found.append((node, evaluation.states(node, self._assignments(node), degrees)))
        return found

    def tell(self, done: int, total: int) -> None:
        if self.progress is not None:
            self.progress(done, total)

    def _assignments(self, node: Followers) -> Callable[[], Assignments]:
        op = node.operators[0]
        is_forced = bool(pinned(self.force, op))

        def found() -> Assignments:
            everything = states_of(self.space, node, self.rules, self.mesh, is_forced)
            if not is_forced:
                return everything
            configs = tuple(config for config, in everything)
            return tuple((config,) for config in allowed(self.force, op, self.rules[op.name], self.mesh, configs))

        return found


class _Connections:
    """The nodes' costs, and between them the deliveries of every tensor."""

    def __init__(self, builder: ProblemBuilder, of_node: list[tuple[Followers, States]]) -> None:
        self.builder, self.of_node = builder, of_node
        self.deliveries: DeliveryCosting = builder.costing.deliveries
        self.merges = builder.space != FULL
        self.takers = takers_of(builder.graph)
        self.place = {op.name: (n, i) for n, (node, _) in enumerate(of_node) for i, op in enumerate(node.operators)}
        self.step_place = {name: len(of_node) + i for i, name in enumerate(builder.graph.train_steps)}
        self.nodes = [Node(_name(node), s.mem_bytes, s.compute_ns + s.network_ns) for node, s in of_node]
        self.nodes += [Node(name, np.zeros(1, np.int64), np.zeros(1, np.int64)) for name in self.step_place]
        self.beside = Beside(self.deliveries, self._program_places(), [states for _, states in of_node])
        self.edges: list[Edge] = []
        self.shared: list[SharedCopy] = []
        self._whole: dict[tuple[int, int], Choice[Demand]] = {}
        self._left: dict[tuple[int, bool], Choice[Demand]] = {}
        self._copies: dict[tuple[int, ...], Choice[Demand]] = {}
        self._alive: list[object] = []  # what keys name by its id
        self._expected: set[tuple[object, ...]] = set()
        self._costs: dict[tuple[object, ...], Costs] = {}
        self._expanded: dict[tuple[object, ...], Costs] = {}

    def _program_places(self) -> list[int]:
        """Of each node, where the backward pass comes to it last; of a parameter's, where its gradient is there."""
        program = {name: i for i, name in enumerate(self.builder.graph.operators)}
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
                        self._expect(tensor, [left, *(end.demands for end in ends), *([shared] if shared else [])])
                        tensors.append((n, tensor, left, ends, shared))
        for n, tensor, left, ends, shared in tensors:
            self.builder.tell(len(self.of_node) + n, 2 * len(self.of_node))
            self._connect(n, tensor, left, ends, shared)

    def _end(self, tensor: Tensor, taker: Taker) -> _End:
        if taker.is_step:
            key = len(tensor.shape), taker.position
            if key not in self._whole:
                self._whole[key] = Choice.of([step_demand(self.builder.mesh, tensor, taker)])
            return _End(self.step_place[taker.name], self._whole[key], False)
        n, i = self.place[taker.name]
        backward = self.builder.backward
        is_kept = (taker.name, taker.position) in backward.kept_operands and not taker.is_update
        return _End(n, self.of_node[n][1].demands(i, taker, backward.gradients), is_kept)

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

    def _expect(self, tensor: Tensor, choices: Iterable[Choice[Demand]]) -> None:
        for choice in choices:
            key = tensor.shape, tensor.item_bytes, id(choice)
            if key not in self._expected:
                self._expected.add(key)
                self._alive.append(choice)
                forward = [demand.layout for demand in choice.values]
                backward = [d.layout.with_partial(d.varying) for d in choice.values if d.varying is not None]
                self.deliveries.expect(tensor.shape, tensor.item_bytes, [*forward, *backward])

    def _connect(
        self, producer: int, tensor: Tensor, left: Choice[Demand], ends: list[_End], shared: Choice[Demand] | None
    ) -> None:
        outside = {end.node for end in ends} - {producer}
        if shared is not None and not (self.merges and len(outside) == 1 and sum(e.node != producer for e in ends) == 1):
            self._share(producer, tensor, left, ends, shared)
        elif self.merges and len(ends) > 1 and len({end.node for end in ends}) == 1:
            self._take_together(producer, tensor, left, ends)
        else:
            for end in ends:
                self._add(tensor, (producer, left), (end.node, end.demands), end.is_kept)

    def _share(
        self, producer: int, tensor: Tensor, left: Choice[Demand], ends: list[_End], shared: Choice[Demand]
    ) -> None:
        """A node for the shared copy."""
        number = len(self.nodes)
        zeros = np.zeros(len(shared.values), np.int64)
        self.nodes.append(Node(tensor.name, zeros, zeros))
        self.beside.places.append(min(self.beside.places[end.node] for end in ends))
        self.shared.append(SharedCopy(tensor, number, shared.values))
        self._add(tensor, (producer, left), (number, shared), any(end.is_kept for end in ends))
        for end in ends:
            self._add(tensor, (number, shared), (end.node, end.demands), end.is_kept)

    def _take_together(self, producer: int, tensor: Tensor, left: Choice[Demand], ends: list[_End]) -> None:
        """Several takers of one node share the copy that one of them asks for: in each state whose is the cheapest."""
        node, n_states = ends[0].node, len(ends[0].demands.place)
        options = []
        for end, copy in zip(ends, _as_copies(ends), strict=True):
            choice = Choice(tuple(copy), end.demands.place)
            others = [self._along(tensor, choice, other.demands, other.is_kept) for other in ends]
            options.append((choice, sum((cost for cost in others), start=np.zeros((3, n_states), np.int64))))
        best = np.argmin([costs[1] for _, costs in options], axis=0)
        demands = [options[b][0].values[options[b][0].place[k]] for k, b in enumerate(best.tolist())]
        shared = Choice.of(demands)
        self._expect(tensor, [shared])
        self._add(tensor, (producer, left), (node, shared), any(end.is_kept for end in ends))
        self._charge(node, np.stack([costs for _, costs in options])[best, :, np.arange(n_states)].T)
        self.shared.append(SharedCopy(tensor, node, tuple(demands)))

    def _add(
        self, tensor: Tensor, source: tuple[int, Choice[Demand]], target: tuple[int, Choice[Demand]], is_kept: bool
    ) -> None:
        """Charge deliveries between the states of two nodes, or within one."""
        (from_node, left), (to_node, demands) = source, target
        if from_node == to_node:
            self._charge(from_node, self._along(tensor, left, demands, is_kept))
            return
        key = tensor.shape, tensor.item_bytes, id(left), id(demands), is_kept, self._trails(tensor)
        if key not in self._expanded:
            mem, time_ns, trailing_ns = self._matrix(tensor, left, demands, is_kept)
            pairs = np.ix_(left.place, demands.place)
            self._expanded[key] = (mem[pairs], time_ns[pairs], None if trailing_ns is None else trailing_ns[pairs])
            self._alive += [left, demands]
        mem, time_ns, trailing_ns = self._expanded[key]
        if trailing_ns is not None:
            self.beside.add_edge(len(self.edges), to_node, trailing_ns)
        self.edges.append(Edge(from_node, to_node, mem, time_ns))

    def _along(self, tensor: Tensor, left: Choice[Demand], demands: Choice[Demand], is_kept: bool) -> np.ndarray:
        """Deliveries within each state of one node, their memory, time and what of it trails: int64[3, K]."""
        costs = [
            np.zeros(len(left.place), np.int64) if cost is None else cost[left.place, demands.place]
            for cost in self._matrix(tensor, left, demands, is_kept)
        ]
        return np.stack(costs)

    def _matrix(self, tensor: Tensor, left: Choice[Demand], demands: Choice[Demand], is_kept: bool) -> Costs:
        key = tensor.shape, tensor.item_bytes, id(left.values), id(demands.values), is_kept, self._trails(tensor)
        if key not in self._costs:
            trailing_ns = None
            if self._trails(tensor):
                trailing_ns = self.deliveries.returning_ns(tensor, left.values, demands.values)
            self._costs[key] = (*self.deliveries.matrix(tensor, left.values, demands.values, is_kept), trailing_ns)
            self._alive += [left.values, demands.values]
        return self._costs[key]

    def _trails(self, tensor: Tensor) -> bool:
        """Whether a tensor's gradient keeps nobody but an update waiting, and compute may run meanwhile."""
        return self.deliveries.overlaps and tensor.name in self.builder.graph.made_of_variables

    def _charge(self, node: int, costs: np.ndarray) -> None:
        mem, time_ns, trailing_ns = costs
        before = self.nodes[node]
        self.nodes[node] = Node(before.name, before.mem_bytes + mem, before.time_ns + time_ns)
        self.beside.add(node, trailing_ns)


def _name(node: Followers) -> str:
    return next((op.name for op in node.operators if op.type not in SOURCES), node.operators[0].name)


def _has_gradient(demands: Choice[Demand]) -> bool:
    return any(demand.varying is not None for demand in demands.values)


def _as_copies(ends: list[_End]) -> list[list[Demand]]:
    """By taker, its demands as those of a copy that all can share; each list in the order of its distinct demands."""
    with_gradient = any(_has_gradient(end.demands) for end in ends)
    return [[as_copy(demand, with_gradient) for demand in end.demands.values] for end in ends]
