"""From a graph to a Problem: nodes, edges and arrays of costs, all that the search sees.

Each operator is a node whose states are its configs. A tensor with one consumer is an edge between two operators. A tensor
with several is a node of its own, whose states are (result layout, the demand that is delivered once for all who have
it); a consumer with another demand pays for its own delivery. So collectives charged are collectives executed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from .backward import Backward
from .costing import DeliveryCosting, OperatorCosting
from .errors import InputError
from .ft.problem import INFEASIBLE, Edge, Node, Problem
from .ir import Graph, Operator, Tensor
from .reschedule.layout import Layout, needs_communication
from .reschedule.mesh import Mesh
from .rules.registry import rule_of
from .rules.rule import Config, Demand, Interface, Rule, configs, interface, why_invalid
from .strategy import Strategy
from .takers import Taker, step_demand, taker_demand, takers_of

Force = Mapping[str, Mapping[str, int]]
SharedState = tuple[Layout, Demand | None]


@dataclass(frozen=True)
class Variants:
    """All configs of one operator, with what each means to the surroundings and costs."""

    op: Operator
    rule: Rule
    configs: tuple[Config, ...]
    interfaces: tuple[Interface, ...]
    compute_ns: np.ndarray
    inner_ns: np.ndarray
    mem_bytes: np.ndarray


@dataclass(frozen=True)
class StrategyProblem:
    """A Problem together with what its nodes and states mean.

    Attributes:
        operators: the variants behind the first nodes, in their order.
        tensors: behind the further nodes, the tensor and its states.
    """

    problem: Problem
    mesh: Mesh
    operators: tuple[Variants, ...]
    tensors: tuple[tuple[Tensor, tuple[SharedState, ...]], ...]

    def strategy(self, states: Sequence[int]) -> Strategy:
        """What one state per node means."""
        chosen = {v.op.name: v.configs[int(state)] for v, state in zip(self.operators, states, strict=False)}
        shared = {}
        offset = len(self.problem.nodes) - len(self.tensors)
        for (tensor, tensor_states), state in zip(self.tensors, states[offset:], strict=True):
            demand = tensor_states[int(state)][1]
            if demand is not None:
                shared[tensor.name] = demand
        return Strategy(self.mesh, chosen, shared)

    def compute_ns(self, states: Sequence[int]) -> int:
        """The part of a strategy's time that is compute; the rest is network."""
        return sum(int(v.compute_ns[int(state)]) for v, state in zip(self.operators, states, strict=False))


@dataclass
class ProblemBuilder:
    """Builds the Problem of a graph's training steps on one mesh; ``progress`` is told (operators done, operators)."""

    graph: Graph
    backward: Backward
    costing: OperatorCosting
    mesh: Mesh
    force: Force = field(default_factory=dict)
    progress: Callable[[int, int], None] | None = None
    nodes: list[Node] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)

    @property
    def deliveries(self) -> DeliveryCosting:
        return self.costing.deliveries

    def build(self) -> StrategyProblem:
        """The Problem of all operators that a training step runs.

        Raises:
            InputError: ``force`` names what isn't there, or asks for a split that an operator can't have.
        """
        check_force(self.graph, self.force)
        operators = [op for op in self.graph.step_operators if op.updates is None]
        variants = tuple(self.variants(op) for op in operators)
        self.index = {v.op.name: i for i, v in enumerate(variants)}
        self.of = {v.op.name: v for v in variants}
        self.nodes = [Node(v.op.name, v.mem_bytes, v.compute_ns + v.inner_ns) for v in variants]
        takers = takers_of(self.graph)
        steps = [Node(name, np.zeros(1, np.int64), np.zeros(1, np.int64)) for name in self.graph.train_steps]
        self.step_index = {node.name: len(self.nodes) + i for i, node in enumerate(steps)}
        self.nodes += steps
        tensors = []
        for done, variant in enumerate(variants):
            if self.progress is not None:
                self.progress(done, len(variants))
            for result, tensor in enumerate(variant.op.outputs):
                those = takers.get(tensor.name, [])
                if len(those) == 1:
                    self._connect(variant, result, tensor, those[0])
                elif those:
                    tensors.append((tensor, self._share(variant, result, tensor, those)))
        return StrategyProblem(Problem(tuple(self.nodes), tuple(self.edges)), self.mesh, variants, tuple(tensors))

    def variants(self, op: Operator) -> Variants:
        """All configs of an operator, the forced ones where there are any, with their own costs."""
        rule = rule_of(op)
        allowed = self._allowed(op, rule)
        seen = tuple(interface(rule, config) for config in allowed)
        costing = self.costing
        return Variants(
            op,
            rule,
            allowed,
            seen,
            _ints(costing.compute_time_ns(op, rule, config, each) for config, each in zip(allowed, seen, strict=True)),
            _ints(costing.inner_time_ns(op, rule, config) for config in allowed),
            _ints(costing.mem_bytes(op, each) for each in seen),
        )

    def _allowed(self, op: Operator, rule: Rule) -> tuple[Config, ...]:
        pinned = self.force.get(op.name) or self.force.get(op.type)
        everything = configs(rule, self.mesh)
        if not pinned:
            return everything
        allowed = tuple(c for c in everything if all(c.degree(factor) == degree for factor, degree in pinned.items()))
        if allowed:
            return allowed
        raise InputError(
            f"force={{'{op.name}': {dict(pinned)}}} can't be had for {op.where()} on {self.mesh.n_devices} devices "
            f"{self.mesh}: {why_not(rule, self.mesh, pinned)}"
        )

    def _demands(self, tensor: Tensor, taker: Taker) -> list[Demand]:
        """What a taker asks of a tensor, in each of its node's states."""
        if taker.is_step:
            return [step_demand(self.mesh, tensor, taker)]
        return [taker_demand(seen, taker, self.backward.gradients) for seen in self.of[taker.name].interfaces]

    def _node_of(self, taker: Taker) -> int:
        return self.step_index[taker.name] if taker.is_step else self.index[taker.name]

    def _is_kept(self, taker: Taker) -> bool:
        return (taker.name, taker.position) in self.backward.kept_operands and not taker.is_update

    def _costs(
        self, tensor: Tensor, sources: Sequence[Layout], demands: Sequence[Demand], is_kept: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """Memory and time of the deliveries from each layout to each demand; equal ones are worked out once."""
        rows, row_of = _distinct(sources)
        columns, column_of = _distinct(demands)
        mem, time_ns = self.deliveries.matrix(tensor, rows, columns, is_kept)
        return mem[np.ix_(row_of, column_of)], time_ns[np.ix_(row_of, column_of)]

    def _connect(self, variant: Variants, result: int, tensor: Tensor, taker: Taker) -> None:
        sources = [seen.results[result] for seen in variant.interfaces]
        mem, time_ns = self._costs(tensor, sources, self._demands(tensor, taker), self._is_kept(taker))
        source, target = self.index[variant.op.name], self._node_of(taker)
        if source == target:
            # A variable that is assigned its own value.
            node = self.nodes[source]
            self.nodes[source] = Node(node.name, node.mem_bytes + mem.diagonal(), node.time_ns + time_ns.diagonal())
        else:
            self.edges.append(Edge(source, target, mem, time_ns))

    def _share(
        self, variant: Variants, result: int, tensor: Tensor, takers: list[Taker]
    ) -> tuple[SharedState, ...]:
        """A node for a tensor with several takers, with its edges from the producer and to the takers."""
        results = [seen.results[result] for seen in variant.interfaces]
        layouts, _ = _distinct(results)
        demands = [self._demands(tensor, taker) for taker in takers]
        asked = Counter(demand for each in demands for demand in dict.fromkeys(each))
        sharable = [demand for demand, times in asked.items() if times > 1]
        any_kept = any(self._is_kept(taker) for taker in takers)
        states: list[SharedState] = [(layout, None) for layout in layouts]
        mem, time_ns = [0] * len(layouts), [0] * len(layouts)
        if sharable:
            shared_mem, shared_time = self._costs(tensor, layouts, sharable, any_kept)
            for i, layout in enumerate(layouts):
                for j, demand in enumerate(sharable):
                    if _communicates(layout, demand):
                        states.append((layout, demand))
                        mem.append(int(shared_mem[i, j]))
                        time_ns.append(int(shared_time[i, j]))
        number = len(self.nodes)
        self.nodes.append(Node(tensor.name, _ints(mem), _ints(time_ns)))
        matches = np.array([[layout == state[0] for state in states] for layout in results])
        allowed = np.where(matches, 0, INFEASIBLE)
        self.edges.append(Edge(self.index[variant.op.name], number, allowed * 0, allowed))
        for taker, wanted in zip(takers, demands, strict=True):
            own_mem, own_time = self._costs(tensor, [s[0] for s in states], wanted, self._is_kept(taker))
            is_shared = np.array([[state[1] == demand for demand in wanted] for state in states])
            edge = Edge(
                number, self._node_of(taker), np.where(is_shared, 0, own_mem), np.where(is_shared, 0, own_time)
            )
            self.edges.append(edge)
        return tuple(states)


def _communicates(source: Layout, demand: Demand) -> bool:
    """Whether a delivery has anything to share beyond a local copy."""
    if needs_communication(source, demand.layout):
        return True
    if demand.varying is None:
        return False
    return needs_communication(demand.layout.with_partial(demand.varying), source.with_partial(()))


def why_not(rule: Rule, mesh: Mesh, pinned: Mapping[str, int]) -> str:
    """Why no config has these degrees."""
    for factor, degree in pinned.items():
        ways = [c for c in _single_factor_configs(factor, mesh) if c.degree(factor) == degree]
        if not ways:
            return f"degree {degree} of factor '{factor}' isn't a product of the mesh's axes {list(mesh.sizes)}"
        reasons = [why_invalid(rule, config) for config in ways]
        if all(reasons):
            return reasons[0]
    return f"the degrees {dict(pinned)} don't fit {mesh.n_devices} devices together"


def _single_factor_configs(factor: str, mesh: Mesh) -> list[Config]:
    choices = range(1 << len(mesh.sizes))
    return [Config(mesh, tuple(factor if bits >> axis & 1 else "" for axis in mesh.axes)) for bits in choices]


def check_force(graph: Graph, force: Force) -> None:
    """Refuse a ``force`` that names no operator of the model."""
    known = {op.name for op in graph.operators.values()} | {op.type for op in graph.operators.values()}
    for name in force:
        if name not in known:
            names = ", ".join(op.name for op in graph.step_operators)
            raise InputError(
                f"force names '{name}', which is neither an operator's name nor a type in this model; its operators are "
                f"{names}"
            )


def _ints(values: object) -> np.ndarray:
    return np.array(list(values), np.int64)  # type: ignore[call-overload]


def _distinct(values: Sequence[object]) -> tuple[list, np.ndarray]:
    """The different values in order of first appearance, and for each value its place among them."""
    place: dict[object, int] = {}
    places = np.array([place.setdefault(value, len(place)) for value in values], np.intp)
    return list(place), places
