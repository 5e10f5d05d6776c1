"""Move between strategies of a problem by one node's state at a time, and know the simulated time of each.

For FlexFlow's search (:mod:`.monte_carlo`). A strategy's regathered copies and rematerialized operators aren't changed.

*The delta simulation.* FlexFlow's Algorithm 2 updates the task graph and then the times of the tasks that change. Here the
graph never changes: a strategy decides only the chain of actions of each node (:mod:`...program.simulator.step_graph`), and
a change of one operator gives a few nodes other chains. Nothing differs before the first of these nodes becomes ready. So
the state of the simulation is kept at :data:`N_SAVED` points, and the events are processed again from the last point before
that one. The timeline is the full simulation's, to the nanosecond: both take the same events in the same order. A changed
strategy is *tried*; then it is kept, or forgotten at no cost.

Complexity: O(changed nodes + E' log E') for E' events from the saved point on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ...ft.problem import INFEASIBLE, Edge
from ...program.simulator import Network, StepActions, step_graph
from ...program.simulator.actions import Chain
from ...program.simulator.event_tables import Buffers, WorkTables, largest, packed
from ...program.simulator.step_graph import StepGraph
from ...rules.rule import Config, OperandSharding
from ...sharding.model import Model
from ...sharding.strategy import Strategy, StrategyView
from ..problem.strategy_problem import StrategyProblem
from ..task import BaselineTask

N_SAVED = 16


class Event(NamedTuple):
    """The beginning and end of an action of a node; the action is its number in the chain.

    A node that has no actions has one event, of action 0, which takes no time.
    """

    node: int
    first: int
    action: int
    ready_ns: int
    end_ns: int


class DeltaSimulation:
    """A simulated step whose nodes' chains of actions can be changed."""

    def __init__(self, graph: StepGraph, chains: Sequence[Chain], network: Network) -> None:
        self._n_classes, self._n_resources = len(network.classes), len(network.resources)
        lead_start = np.cumsum([0, *map(len, graph.leads_to)])
        self._lead = packed(lead_start), packed(after for followers in graph.leads_to for after in followers)
        self._missing = packed(len(before) for before in graph.waits_for for _ in range(self._n_classes))
        self._tables = WorkTables(network)
        self._chains = packed(map(self._tables.chain, chains))
        # An action is an event for each class at most, and a node without any is one.
        self._most_events = self._n_classes * sum(max(1, len(chain)) for chain in chains)
        self._trial: dict[int, int] = {}
        self._n_from = self._n_events = 0
        self._make_room()

    def _make_room(self) -> None:
        """Simulate from the beginning, with room for more events than now."""
        size = 2 * self._most_events, N_SAVED, self._n_resources, len(self._missing)
        self._kept, self._tried = Buffers(*size), Buffers(*size)
        self._n_events = self._run(self._kept, 0)
        self.makespan_ns = largest(self._kept.log[3][: self._n_events])

    def try_chains(self, changed: Mapping[int, Chain]) -> int:
        """Return the makespan, in nanoseconds, if nodes had other chains; given are some nodes' chains, by their numbers."""
        numbers = {node: self._tables.chain(chain) for node, chain in changed.items()}
        self._trial = {node: chain for node, chain in numbers.items() if chain != self._chains[node]}
        if not self._trial:
            return self.makespan_ns
        before = {node: int(self._chains[node]) for node in self._trial}
        more = self._n_classes * sum(
            max(1, self._tables.length(chain)) - max(1, self._tables.length(before[node]))
            for node, chain in self._trial.items()
        )
        if self._most_events + more > self._kept.most_events:
            self._most_events += more
            self._make_room()
            self._most_events -= more
        self._put(self._trial)
        self._n_tried = self._run(self._tried, self._n_same(self._trial))
        self._put(before)
        kept_ends, tried_ends = self._kept.log[3], self._tried.log[3]
        self._more = more
        self._tried_ns = max(largest(kept_ends[: self._n_from]), largest(tried_ends[self._n_from : self._n_tried]))
        return self._tried_ns

    def keep(self) -> None:
        """Keep what was tried last."""
        if not self._trial:
            return
        self._put(self._trial)
        self._kept.take(self._tried, self._n_from, self._n_tried)
        self._n_events, self.makespan_ns = self._n_tried, self._tried_ns
        self._most_events += self._more
        self._trial = {}

    def events(self) -> list[Event]:
        """Return the events of the kept step, in the order in which they became ready."""
        columns = (map(int, column[: self._n_events]) for column in self._kept.log)
        return [Event(*divmod(slot, self._n_classes), *rest) for slot, *rest in zip(*columns, strict=True)]

    def _put(self, chains: Mapping[int, int]) -> None:
        for node, chain in chains.items():
            self._chains[node] = chain

    def _n_same(self, nodes: Iterable[int]) -> int:
        """Return how many events of the kept step come before the first that these nodes can change."""
        arrived, n = self._kept.arrived, self._n_classes
        return min(int(arrived[slot]) for node in nodes for slot in range(node * n, node * n + n)) + 1

    def _run(self, buffers: Buffers, n_same: int) -> int:
        """Process events from the last saved point of at most ``n_same`` events of the kept step; return their number."""
        from ...program.simulator.events import run

        kept, n_slots = self._kept, len(self._missing)
        chosen = n_same // kept.stride
        tables = (*self._lead, self._chains, *self._tables.packed())
        self._n_from = chosen * kept.stride
        buffers.arrived = kept.arrived.copy() if chosen else np.full(n_slots, -1)
        state = np.zeros(self._n_resources, np.int64), np.stack([self._missing, *np.zeros((4, n_slots), np.int64)])
        sizes = self._n_from, kept.stride, self._n_classes
        return int(run(tables, *state, buffers.log, buffers.arrived, kept.saved, buffers.saved, *sizes))


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
