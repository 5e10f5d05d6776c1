"""From a graph to a Problem: nodes, edges and arrays of costs, all that the search sees.

A node is an operator with its configs, or several that follow each other (:mod:`.space`). A tensor that one node takes is an
edge; one that its own node takes, a cost of that node. A tensor that several take is a node as well: its states are the
demands for which it may be delivered once, for all to take it from there. So collectives charged are collectives executed.

A copy that a gradient reads may be kept or made again in the backward pass (:class:`.strategy.Copy`). Of a shared copy that
is another state of its tensor's node, twice as many at most; of a single taker's, a node between its ends, with a state for
each choice that can matter (:mod:`.ft.choices`). Where a shared copy isn't what a taker wants, the taker keeps its own.

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
from .costing import DeliveryCosting, Keeping, OperatorCosting, piece_bytes, viewed_operand
from .evaluation import Choice, Evaluation, States
from .following import Followers
from .forcing import Force, allowed, check_force, pinned
from .ft.choices import choice_states
from .ft.problem import INFEASIBLE, Edge, Node, Problem
from .ir import CONSTANT, SOURCES, VARIABLE, Graph, Tensor
from .reschedule.layout import Layout, needs_communication
from .reschedule.mesh import Mesh
from .rules.registry import rule_of
from .rules.rule import Demand
from .space import FULL, Assignments, nodes_of, states_of
from .strategy import Copy
from .strategy_problem import CopyChoice, SharedCopy, StrategyProblem
from .takers import Taker, as_copy, step_demand, takers_of

Costs = tuple[np.ndarray, np.ndarray, np.ndarray | None]
"""Memory, time, and of the time what only updates of variables wait for; None where that is nothing."""


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


@dataclass(frozen=True, eq=False)
class _Choosing:
    """A delivery with a choice, as a node between its ends.

    Attributes:
        is_remade: whether a state makes the copy again, bool[M].
        nothing: the costs of the node itself, zeros[M].
        to_choice: costs between source and node, each int64[K of source, M]: nothing, or forbidden.
        of_choice: costs between node and target, each int64[M, K of target].
    """

    is_remade: np.ndarray
    nothing: np.ndarray
    to_choice: Costs
    of_choice: Costs


@dataclass
class ProblemBuilder:
    """Builds the Problem of a graph's training steps on one mesh.

    Attributes:
        progress: is told (nodes done, nodes).
        states: the states of each node, where they are not to be all of the space.
        reuse: whether copies may be made again instead of being kept.
    """

    graph: Graph
    backward: Backward
    costing: OperatorCosting
    mesh: Mesh
    space: str = FULL
    force: Force = field(default_factory=dict)
    progress: Callable[[int, int], None] | None = None
    states: Callable[[Followers], Assignments] | None = None
    reuse: bool = False

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
        return StrategyProblem(
            problem,
            self.mesh,
            self.space,
            tuple(nodes),
            tuple(connections.shared),
            connections.beside.overlap(),
            tuple(connections.choices),
        )

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
        self.choices: list[CopyChoice] = []
        self._whole: dict[tuple[int, int], Choice[Demand]] = {}
        self._left: dict[tuple[int, bool], Choice[Demand]] = {}
        self._copies: dict[tuple[int, ...], Choice[Demand]] = {}
        self._alive: list[object] = []  # what keys name by its id
        self._expected: set[tuple[object, ...]] = set()
        self._costs: dict[tuple[object, ...], Costs] = {}
        self._expanded: dict[tuple[object, ...], Costs] = {}
        self._choosing: dict[tuple[object, ...], _Choosing | None] = {}

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
            return _End(self.step_place[taker.name], self._whole[key], False, None, np.zeros(1, bool))
        n, i = self.place[taker.name]
        backward = self.builder.backward
        is_own = (taker.name, taker.position) in backward.kept_operands and not taker.is_update
        demands = self.of_node[n][1].demands(i, taker, backward.gradients)
        operator = taker.name if is_own else None
        return _End(n, demands, self.builder.costing.reads(taker), operator, self._exchanged(taker, demands))

    def _exchanged(self, taker: Taker, demands: Choice[Demand]) -> np.ndarray:
        n, i = self.place[taker.name]
        states, rule = self.of_node[n][1], self.builder.rules[taker.name]
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
        producer = self.builder.graph.producers[tensor.name]
        is_left = tensor.name in self.builder.costing.left or producer.type in (VARIABLE, CONSTANT)
        is_left = is_left or viewed_operand(producer, tensor.name) is not None
        return Keeping.COPY_OF_KEPT if is_left else Keeping.COPY

    def _share(
        self, producer: int, tensor: Tensor, left: Choice[Demand], ends: list[_End], shared: Choice[Demand]
    ) -> None:
        """A node for the shared copy: a state for each demand, and one more where the copy may be made again.

        The copy is kept if any taker's is read; for a single such taker it is known whether it reads this copy or its own.
        """
        keeping, readers = self._keeping(tensor), [end for end in ends if end.is_read]
        of_copy = of_taker = keeping if readers else Keeping.NOTHING
        if len(readers) == 1 and keeping == Keeping.COPY:
            of_copy = Keeping.NOTHING
        elif readers:
            of_taker = Keeping.COPY_OF_KEPT
        may_be_remade = self.builder.reuse and readers and all(end.operator and not end.exchanges for end in readers)
        again = self._worth_remaking(tensor, left, shared) if may_be_remade else np.zeros(0, np.intp)
        n_kept, number = len(shared.values), len(self.nodes)
        is_remade = np.arange(n_kept + len(again)) >= n_kept
        zeros = np.zeros(len(is_remade), np.int64)
        self.nodes.append(Node(tensor.name, zeros, zeros))
        self.beside.places.append(min(self.beside.places[end.node] for end in ends))
        demands = (*shared.values, *(shared.values[i] for i in again))
        self.shared.append(SharedCopy(tensor, number, demands))
        if not len(again):
            self._add(tensor, (producer, left), (number, shared), of_copy)
            for end in ends:
                self._add(tensor, (number, shared), (end.node, end.demands), of_taker if end.is_read else Keeping.NOTHING)
            return
        self.choices.append(CopyChoice(Copy(tensor.name), number, is_remade))
        columns = np.concatenate([np.arange(n_kept), again])
        of_again = Keeping.AGAIN if keeping == Keeping.COPY else Keeping.AGAIN_OF_KEPT
        self._add_either(tensor, (producer, left), (number, shared), (of_copy, of_again), columns, is_remade)
        for end in ends:
            both = (of_taker, Keeping.FROM_SHARED_AGAIN) if end.is_read else (Keeping.NOTHING, Keeping.NOTHING)
            self._add_either(tensor, (number, shared), (end.node, end.demands), both, columns, is_remade, of_source=True)

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

    def _add_either(
        self,
        tensor: Tensor,
        source: tuple[int, Choice[Demand]],
        target: tuple[int, Choice[Demand]],
        keeping: tuple[Keeping, Keeping],
        columns: np.ndarray,
        is_remade: np.ndarray,
        of_source: bool = False,
    ) -> None:
        """Charge deliveries to a shared copy, or from it (``of_source``), whose states are kept or made again.

        Args:
            keeping: of a copy that is kept, and of one that is made again.
            columns, is_remade: by state of the shared copy's node, its place among the demands and whether it is made again.
        """
        (from_node, left), (to_node, demands) = source, target
        ends = id(left), id(demands)
        key = tensor.shape, tensor.item_bytes, *ends, keeping, self._trails(tensor), columns.tobytes(), of_source
        if key not in self._expanded:
            kept, again = (self._matrix(tensor, left, demands, each) for each in keeping)

            def by_state(of_kept: np.ndarray, of_again: np.ndarray) -> np.ndarray:
                if of_source:
                    return np.where(is_remade[:, None], of_again[columns], of_kept[columns])[:, demands.place]
                return np.where(is_remade[None, :], of_again[:, columns], of_kept[:, columns])[left.place]

            trailing_ns = None if kept[2] is None or again[2] is None else by_state(kept[2], again[2])
            self._expanded[key] = by_state(kept[0], again[0]), by_state(kept[1], again[1]), trailing_ns
            self._alive += [left, demands]
        self._add_edge(from_node, to_node, self._expanded[key])

    def _take_together(self, producer: int, tensor: Tensor, left: Choice[Demand], ends: list[_End]) -> None:
        """Several takers of one node share the copy that one of them asks for: in each state whose is the cheapest."""
        node, n_states = ends[0].node, len(ends[0].demands.place)
        is_read = any(end.is_read for end in ends)
        options = []
        for end, copy in zip(ends, _as_copies(ends), strict=True):
            choice = Choice(tuple(copy), end.demands.place)
            others = [
                self._along(tensor, choice, other.demands, Keeping.COPY_OF_KEPT if other.is_read else Keeping.NOTHING)
                for other in ends
            ]
            options.append((choice, sum((cost for cost in others), start=np.zeros((3, n_states), np.int64))))
        best = np.argmin([costs[1] for _, costs in options], axis=0)
        demands = [options[b][0].values[options[b][0].place[k]] for k, b in enumerate(best.tolist())]
        shared = Choice.of(demands)
        self._expect(tensor, [shared])
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
        self.shared.append(SharedCopy(tensor, node, tuple(demands)))

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
            self._charge(from_node, self._along(tensor, left, demands, keeping))
            return
        never = np.zeros(len(demands.values), bool) if never is None else never
        choosing = self._choices_of(tensor, left, demands, keeping, never) if copy and self.builder.reuse else None
        if copy is not None and choosing is not None:
            number = len(self.nodes)
            self.nodes.append(Node(f"{tensor.name} to {self.nodes[to_node].name}", choosing.nothing, choosing.nothing))
            self.beside.places.append(self.beside.places[to_node])
            self.choices.append(CopyChoice(copy, number, choosing.is_remade))
            self._add_edge(from_node, number, choosing.to_choice)
            self._add_edge(number, to_node, choosing.of_choice)
            return
        key = tensor.shape, tensor.item_bytes, id(left), id(demands), keeping, self._trails(tensor)
        if key not in self._expanded:
            mem, time_ns, trailing_ns = self._matrix(tensor, left, demands, keeping)
            pairs = np.ix_(left.place, demands.place)
            self._expanded[key] = (mem[pairs], time_ns[pairs], None if trailing_ns is None else trailing_ns[pairs])
            self._alive += [left, demands]
        self._add_edge(from_node, to_node, self._expanded[key])

    def _add_edge(self, from_node: int, to_node: int, costs: Costs) -> None:
        mem, time_ns, trailing_ns = costs
        if trailing_ns is not None:
            self.beside.add_edge(len(self.edges), to_node, trailing_ns)
        self.edges.append(Edge(from_node, to_node, mem, time_ns))

    def _choices_of(
        self, tensor: Tensor, left: Choice[Demand], demands: Choice[Demand], keeping: Keeping, never: np.ndarray
    ) -> _Choosing | None:
        """To keep a copy or to make it again, for each way in which the source is left; None where that can't pay."""
        key = tensor.shape, tensor.item_bytes, id(left), id(demands), keeping, self._trails(tensor), never.tobytes()
        if key not in self._choosing:
            ways = keeping, Keeping.AGAIN if keeping == Keeping.COPY else Keeping.AGAIN_OF_KEPT
            (*of_kept, trailing_ns), (*of_again, _) = (self._matrix(tensor, left, demands, way) for way in ways)
            mem, time_ns = (
                np.stack([kept, np.where(never, kept, again)], axis=2) for kept, again in zip(of_kept, of_again, strict=True)
            )
            class_of, of_class, choice = choice_states(mem, time_ns, trailing_ns)
            self._choosing[key] = None
            if choice.any():
                member = np.unique(class_of, return_index=True)[1][of_class]
                to_choice = np.where(class_of[left.place][:, None] == of_class[None, :], 0, INFEASIBLE)
                mem, time_ns = (cost[member, :, choice][:, demands.place] for cost in (mem, time_ns))
                trailing_ns = None if trailing_ns is None else trailing_ns[member][:, demands.place]
                nothing = np.zeros(len(choice), np.int64)
                free = np.zeros_like(to_choice)
                self._choosing[key] = _Choosing(
                    choice == 1, nothing, (free, to_choice, None), (mem, time_ns, trailing_ns)
                )
            self._alive += [left, demands]
        return self._choosing[key]

    def _charge_piece(self, producer: int, tensor: Tensor, left: Choice[Demand]) -> None:
        """Charge a producer for the piece that it leaves."""
        pieces = np.array([piece_bytes(tensor, demand.layout) for demand in left.values], np.int64)[left.place]
        self._charge(producer, np.stack([pieces, np.zeros_like(pieces), np.zeros_like(pieces)]))

    def _along(self, tensor: Tensor, left: Choice[Demand], demands: Choice[Demand], keeping: Keeping) -> np.ndarray:
        """Deliveries within each state of one node, their memory, time and what of it trails: int64[3, K]."""
        costs = [
            np.zeros(len(left.place), np.int64) if cost is None else cost[left.place, demands.place]
            for cost in self._matrix(tensor, left, demands, keeping)
        ]
        return np.stack(costs)

    def _matrix(self, tensor: Tensor, left: Choice[Demand], demands: Choice[Demand], keeping: Keeping) -> Costs:
        key = tensor.shape, tensor.item_bytes, id(left.values), id(demands.values), keeping, self._trails(tensor)
        if key not in self._costs:
            trailing_ns = None
            if self._trails(tensor):
                trailing_ns = self.deliveries.returning_ns(tensor, left.values, demands.values)
            self._costs[key] = (*self.deliveries.matrix(tensor, left.values, demands.values, keeping), trailing_ns)
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
