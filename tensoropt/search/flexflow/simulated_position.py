"""Move between strategies of a problem by one node's state at a time, and know the simulated time of each.

For FlexFlow's search (:mod:`.monte_carlo`). A strategy's regathered copies and rematerialized operators aren't changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ...ft.problem import INFEASIBLE, Edge
from ...program.simulator import Network, StepActions, step_graph
from ...program.simulator.step_graph import StepGraph
from ...rules.rule import Config, OperandSharding
from ...sharding.model import Model
from ...sharding.strategy import Strategy, StrategyView
from ..problem.strategy_problem import StrategyProblem
from ..task import BaselineTask
from .delta import DeltaSimulation

States = tuple[int, ...]
"""The state of each node of the problem."""


class Neighbours:
    """A problem, with the edges at each node, and the nodes of shared copies next to it."""

    def __init__(self, strategy_problem: StrategyProblem) -> None:
        self.built = strategy_problem
        problem = strategy_problem.problem
        self.copies = {copy.node: copy for copy in strategy_problem.shared if copy.node >= len(strategy_problem.nodes)}
        self.edges: list[list[tuple[int, Edge]]] = [[] for _ in problem.nodes]
        for number, edge in enumerate(problem.edges):
            for end in {edge.source, edge.target}:
                self.edges[end].append((number, edge))
        self.next_copies = [
            sorted({end for _, edge in edges for end in (edge.source, edge.target) if end in self.copies and end != node})
            for node, edges in enumerate(self.edges)
        ]
        self.free = [node for node, choice in enumerate(problem.nodes) if choice.n_states > 1]

    def nearest(self, configs: Mapping[str, Config]) -> States:
        """Return the states in which the most operators of each node have the given configs, with the fastest copies."""
        states_of_nodes = [0] * len(self.built.problem.nodes)
        for number, (node, states) in enumerate(self.built.nodes):
            n_equal = np.zeros(states.n_states, np.int64)
            for op, configs_of_op, index in zip(node.operators, states.configs, states.index, strict=True):
                n_equal += np.array([config == configs[op.name] for config in configs_of_op], np.int64)[index]
            is_allowed = self.built.problem.nodes[number].time_ns < INFEASIBLE
            states_of_nodes[number] = int(np.argmax(np.where(is_allowed, n_equal, -1)))
        return self.with_copies(states_of_nodes)

    def with_copies(self, states: list[int]) -> States:
        """Return states with each shared copy the one that adds the least time."""
        for node in self.copies:
            states[node] = self._fastest_copy(node, states, {})
        return tuple(states)

    @cached_property
    def alike(self) -> dict[int, tuple[int, ...]]:
        """For each node all that have the same operators and configs, where there are several: those of repeated layers."""
        groups: dict[object, list[int]] = {}
        for number, (group, states) in enumerate(self.built.nodes):
            types = tuple(op.type for op in group.operators)
            configs = tuple(tuple(str(config) for config in options) for options in states.configs)
            groups.setdefault((types, configs, tuple(map(tuple, states.index))), []).append(number)
        return {node: tuple(group) for group in groups.values() if len(group) > 1 for node in group}

    def moved_together(self, states: Sequence[int], moves: Mapping[int, int]) -> dict[int, int]:
        """Return the changes of several operators' nodes to other states, and those of the shared copies next to them."""
        changes = dict(moves)
        for copy in dict.fromkeys(copy for node in moves for copy in self.next_copies[node]):
            changes[copy] = self._fastest_copy(copy, states, changes)
        return {i: choice for i, choice in changes.items() if choice != states[i]}

    def moved(self, states: Sequence[int], node: int, state: int, keeps_copies: bool) -> dict[int, int]:
        """Return the changes of a proposal: a node's state, and those of the shared copies next to an operator.

        A copy has several states of one operand sharding, of which neighbours' states allow one.
        """
        if node in self.copies:
            changes = {node: self._fastest_copy(node, states, {}, self.copies[node].shardings[state])}
        else:
            changes = {node: state}
            for copy in self.next_copies[node]:
                copy_sharding = self.copies[copy].shardings[states[copy]] if keeps_copies else None
                changes[copy] = self._fastest_copy(copy, states, changes, copy_sharding)
        return {i: choice for i, choice in changes.items() if choice != states[i]}

    def _fastest_copy(
        self, copy: int, states: Sequence[int], changes: Mapping[int, int], copy_sharding: OperandSharding | None = None
    ) -> int:
        """Return the state of a shared copy that adds the least time, of those of an operand sharding if one is given."""
        time_ns = self.built.problem.nodes[copy].time_ns
        for _, edge in self.edges[copy]:
            if edge.source == copy:
                time_ns = time_ns + edge.time_ns[:, changes.get(edge.target, states[edge.target])]
            else:
                time_ns = time_ns + edge.time_ns[changes.get(edge.source, states[edge.source])]
        if copy_sharding is not None:
            is_kept = [sharding == copy_sharding for sharding in self.copies[copy].shardings]
            time_ns = np.where(is_kept, time_ns, time_ns + np.int64(INFEASIBLE))
        return int(np.argmin(time_ns))

    def added_bytes(self, states: Sequence[int], changes: Mapping[int, int]) -> int | None:
        """Return the memory of Equation (1) that a change of some nodes' states adds; None if it isn't allowed."""
        problem, mem_bytes = self.built.problem, 0
        for node, state in changes.items():
            costs, state_before = problem.nodes[node], states[node]
            if costs.time_ns[state] >= INFEASIBLE:
                return None
            mem_bytes += int(costs.mem_bytes[state]) - int(costs.mem_bytes[state_before])
        for edge in dict(item for node in changes for item in self.edges[node]).values():
            pair_before = states[edge.source], states[edge.target]
            pair = changes.get(edge.source, pair_before[0]), changes.get(edge.target, pair_before[1])
            if edge.time_ns[pair] >= INFEASIBLE:
                return None
            mem_bytes += int(edge.mem_bytes[pair]) - int(edge.mem_bytes[pair_before])
        return mem_bytes


@dataclass
class Position:
    """The strategy that a walk is at, with its simulated step."""

    problem: Neighbours
    actions: StepActions
    states: list[int]
    mem_bytes: int
    view: StrategyView
    graph: StepGraph
    simulation: DeltaSimulation
    _trial: tuple[StrategyView, dict[int, int]] | None = None

    @classmethod
    def of(cls, problem: Neighbours, task: BaselineTask, actions: StepActions, network: Network, states: States) -> Position:
        strategy: Strategy = problem.built.strategy(states)
        view = Model(task.graph, task.costing.backward).view(strategy)
        graph = step_graph(view, actions.path_finder)
        simulation = DeltaSimulation(graph, actions.chains(view, graph.nodes), network)
        return cls(problem, actions, list(states), problem.built.problem.cost(states)[0], view, graph, simulation)

    @property
    def cost_ns(self) -> int:
        return self.simulation.makespan_ns

    def tried(self, changes: dict[int, int]) -> int:
        """Return the cost with some nodes' states changed."""
        strategy_problem, configs, shared = self.problem.built, {}, {}
        for node, state in changes.items():
            if node in self.problem.copies:
                copy = self.problem.copies[node]
                shared[copy.tensor.name] = copy.shardings[state]
                continue
            group, states = strategy_problem.nodes[node]
            for op, configs_of_op, index in zip(group.operators, states.configs, states.index, strict=True):
                config = configs_of_op[index[state]]
                if config != self.view.strategy.configs[op.name]:
                    configs[op.name] = config
        view = self.view.changed(configs, shared)
        self._trial = view, changes
        numbers = self.graph.touched(configs, shared)
        chains = self.actions.chains(view, (self.graph.nodes[number] for number in numbers))
        return self.simulation.try_chains(dict(zip(numbers, chains, strict=True)))

    def keep(self, added_bytes: int) -> None:
        """Take what was tried last, which needs so much more memory."""
        assert self._trial is not None
        self.view, changes = self._trial
        for node, state in changes.items():
            self.states[node] = state
        self.mem_bytes += added_bytes
        self.simulation.keep()
