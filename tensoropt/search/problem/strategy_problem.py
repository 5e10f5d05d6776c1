"""Translate between the states of a Problem's nodes and strategies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...ft.nonadditive.overlap import Overlap
from ...ft.nonadditive.segment_memory import Transient
from ...ft.problem import INFEASIBLE, Edge, Node, Problem
from ...ir.graph import Graph, Operator, Tensor
from ...reschedule.mesh import Mesh
from ...rules.rule import Config
from ...rules.shardings import Shardings
from ...sharding.strategy import Copy, Strategy
from .fusion_groups import FusionGroup
from .node_states import States


@dataclass(frozen=True)
class SharedCopy:
    """The copy of a tensor that its consumers share: its operand sharding (OperandSharding) in each state of a node.

    Attributes:
        is_unread: whether every consumer whose copy the backward pass reads has a copy of its own, bool[K].
    """

    tensor: Tensor
    node: int
    shardings: Shardings
    is_unread: np.ndarray


@dataclass(frozen=True, eq=False)
class CopyChoice:
    """The choice whether a copy is regathered in the backward pass, in each state of a node: bool[K]."""

    copy: Copy
    node: int
    is_regathered: np.ndarray


@dataclass(frozen=True)
class StrategyProblem:
    """A Problem together with the strategies that its states mean.

    Attributes:
        space: the name of the space that is searched, see :mod:`.config_space`.
        nodes: the operators of the problem's first nodes, with their states.
        overlap: the times that may overlap; None where all times add up.
        choices: the copies that may be regathered.
        transient: the transient memory of rematerialization; None where nothing may be rematerialized. The problem's own
            memory doesn't include it.
    """

    problem: Problem
    mesh: Mesh
    space: str
    nodes: tuple[tuple[FusionGroup, States], ...]
    shared: tuple[SharedCopy, ...]
    overlap: Overlap | None = None
    choices: tuple[CopyChoice, ...] = ()
    transient: Transient | None = None

    @property
    def n_operators(self) -> int:
        return sum(len(node.operators) for node, _ in self.nodes)

    @property
    def n_configs(self) -> int:
        """Return the number of states of all nodes that are operators."""
        return sum(states.n_states for _, states in self.nodes)

    def strategy(self, node_states: Sequence[int]) -> Strategy:
        """Return the strategy that one state for each node means."""
        configs = {
            op.name: op_configs[index[int(state)]]
            for (node, states), state in zip(self.nodes, node_states, strict=False)
            for op, op_configs, index in zip(node.operators, states.configs, states.index, strict=True)
        }
        shared = {copy.tensor.name: copy.shardings[int(node_states[copy.node])] for copy in self.shared}
        regathered = frozenset(choice.copy for choice in self.choices if choice.is_regathered[int(node_states[choice.node])])
        rematerialized = frozenset(
            node.operators[i].name
            for (node, states), state in zip(self.nodes, node_states, strict=False)
            for i in states.rematerialized
            if states.rematerializes[int(state)]
        )
        return Strategy(self.mesh, configs, shared, regathered, rematerialized)

    def states_of(self, strategy: Strategy) -> np.ndarray:
        """Return the state of each node that together mean the strategy, int32[nodes]: the inverse of :meth:`strategy`.

        A training step's node has one state. A shared copy that the strategy doesn't name (plans don't where nothing is
        resharded) has the produced layout.

        Raises:
            ValueError: the strategy is not in the space, or shares a copy that nobody asks for.
        """
        states = np.zeros(len(self.problem.nodes), np.int32)
        for i, (node, options) in enumerate(self.nodes):
            are_equal = np.ones(options.n_states, bool)
            for op, op_configs, index in zip(node.operators, options.configs, options.index, strict=True):
                are_equal &= np.array([config == strategy.configs[op.name] for config in op_configs], bool)[index]
            names = {node.operators[k].name for k in options.rematerialized}
            are_equal &= options.rematerializes == bool(names & strategy.rematerialized)
            if not are_equal.any():
                raise ValueError(f"no state of the node of {node.operators[0].where()} is the strategy's")
            states[i] = np.argmax(are_equal)
        for copy in self.shared:
            if copy.node >= len(self.nodes):
                states[copy.node] = self._shared_state(copy, strategy, states)
        shared = {copy.node for copy in self.shared if copy.node >= len(self.nodes)}
        for choice in self.choices:
            if choice.node not in shared:
                (edge,) = (edge for edge in self.problem.edges if edge.target == choice.node)
                is_allowed = edge.time_ns[states[edge.source]] < INFEASIBLE
                is_same = is_allowed & (choice.is_regathered == (choice.copy in strategy.regathered))
                # Where nothing is resharded, saving and regathering are the same, and one of them may be missing.
                states[choice.node] = np.argmax(is_same if is_same.any() else is_allowed)
        choices = {choice.node: choice for choice in self.choices}
        for copy in self.shared:
            if copy.node in shared:
                copy_sharding = copy.shardings[states[copy.node]]
                is_allowed = np.array([sharding == copy_sharding for sharding in copy.shardings], bool)
                is_same = is_allowed.copy()
                if copy.node in choices:
                    choice = choices[copy.node]
                    is_same &= choice.is_regathered == (choice.copy in strategy.regathered)
                # Whether a shared copy is saved follows from what its neighbours read. Plans don't name a copy of a
                # rematerialized tensor for which nothing is done.
                edges = [(edge, None) for edge in self.problem.edges if copy.node in (edge.source, edge.target)]
                states[copy.node] = cheapest_state(self.problem, copy.node, edges, (is_same, is_allowed), states)
        return states

    def _shared_state(self, copy: SharedCopy, strategy: Strategy, states: np.ndarray) -> int:
        if copy.tensor.name in strategy.shared:
            return copy.shardings.index(strategy.shared[copy.tensor.name])
        for (node, options), state in zip(self.nodes, states, strict=False):
            for op, interfaces, index in zip(node.operators, options.interfaces, options.index, strict=True):
                if copy.tensor in op.outputs:
                    layout = interfaces[index[state]].results[op.outputs.index(copy.tensor)]
                    return next(i for i, sharding in enumerate(copy.shardings) if sharding.layout == layout)
        raise ValueError(f"no node makes {copy.tensor.name}")

    def missing_bytes(self, strategies: np.ndarray) -> np.ndarray:
        """Return the transient bytes that strategies take beyond their summed memory. int[P, nodes] to int64[P]."""
        if self.transient is None:
            return np.zeros(len(strategies), np.int64)
        return self.transient.most_bytes(self.problem, strategies)

    def overlap_ns(self, strategies: np.ndarray) -> np.ndarray:
        """Return the time that overlap saves strategies, compared to the sum of their times. int[P, nodes] to int64[P]."""
        if self.overlap is None:
            return np.zeros(len(strategies), np.int64)
        return self.overlap.overlap_ns(self.problem, strategies)

    def compute_ns(self, strategies: np.ndarray) -> np.ndarray:
        """Return the compute time of strategies; the rest of their time is network. int[..., nodes] to int64[...]."""
        parts = [states.compute_ns[strategies[..., i]] for i, (_, states) in enumerate(self.nodes)]
        total: np.ndarray = np.asarray(np.sum(parts, axis=0, dtype=np.int64))
        return total

    def of_alike(self, graph: Graph, target: Graph) -> StrategyProblem:
        """Return the problem of a graph that differs from this problem's in names alone.

        Costs and states are the same objects, and messages name nodes as they do here.

        Args:
            target: a graph with as many operators, in the same order.
        """
        pairs = list(zip(graph.operators.values(), target.operators.values(), strict=True))
        operators = {op.name: twin for op, twin in pairs}
        tensors = {
            tensor.name: result for op, twin in pairs for tensor, result in zip(op.outputs, twin.outputs, strict=True)
        }

        def of_copy(copy: Copy) -> Copy:
            consumer = operators.get(copy.consumer or "")
            return Copy(tensors[copy.tensor].name, copy.consumer if consumer is None else consumer.name)

        return replace(
            self,
            nodes=tuple(
                (replace(node, operators=tuple(operators[op.name] for op in node.operators)), states)
                for node, states in self.nodes
            ),
            shared=tuple(replace(copy, tensor=tensors[copy.tensor.name]) for copy in self.shared),
            choices=tuple(replace(choice, copy=of_copy(choice.copy)) for choice in self.choices),
        )

    def allowing(self, allows: Callable[[Operator, tuple[Config, ...]], np.ndarray]) -> StrategyProblem:
        """Return the problem with every state forbidden in which an operator has a config that isn't allowed."""
        nodes = list(self.problem.nodes)
        for i, (node, states) in enumerate(self.nodes):
            is_allowed = np.ones(states.n_states, bool)
            for op, op_configs, index in zip(node.operators, states.configs, states.index, strict=True):
                is_allowed &= allows(op, op_configs)[index]
            if not is_allowed.all():  # else equal layers keep the same arrays
                costs = (np.where(is_allowed, cost, INFEASIBLE) for cost in (nodes[i].mem_bytes, nodes[i].time_ns))
                nodes[i] = Node(nodes[i].name, *costs)
        return replace(self, problem=Problem(tuple(nodes), self.problem.edges))


def cheapest_state(
    problem: Problem,
    node: int,
    edges: Sequence[tuple[Edge, np.ndarray | None]],
    preferred: Sequence[np.ndarray],
    states: np.ndarray,
) -> int:
    """Return the cheapest state of a node given its neighbours' states: least memory, then time, then transient memory.

    Args:
        edges: the edges at the node, with their transient bytes in the shape of their costs; None where there are none.
        preferred: bool[K] each; the cheapest of the first of these is returned in which a state is compatible with the
            neighbours, or one of the last.
        states: the state of each node, int[nodes].
    """
    costs = problem.nodes[node]
    mem, time_ns, transient_bytes = costs.mem_bytes.copy(), costs.time_ns.copy(), np.zeros_like(costs.mem_bytes)
    for edge, transient in edges:
        index = (slice(None), states[edge.target]) if edge.source == node else (states[edge.source], slice(None))
        mem += edge.mem_bytes[index]
        time_ns += edge.time_ns[index]
        if transient is not None:
            transient_bytes += transient[index]
    is_possible = np.maximum(mem, time_ns) < INFEASIBLE
    masks = (*(is_possible & mask for mask in preferred), preferred[-1])
    candidates = np.flatnonzero(next(mask for mask in masks if mask.any()))
    return int(candidates[np.lexsort((transient_bytes[candidates], time_ns[candidates], mem[candidates]))[0]])
