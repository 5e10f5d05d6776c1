"""Move between strategies of a problem by one node's state at a time, and know the simulated time of each.

What searches by simulated times have in common: FlexFlow's (:mod:`.monte_carlo`) and the descent from the frontier's fastest
point (:mod:`.simulated_descent`). A strategy's regathered copies and rematerialized operators aren't changed.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ..ft import Frontier, LowerBound
from ..ft.problem import INFEASIBLE, Edge
from ..program.simulator import DeltaSimulation, Network, StepActions, step_graph
from ..program.simulator.step_graph import StepGraph
from ..rules.rule import Config, OperandSharding
from ..sharding.model import Model
from ..sharding.strategy import Strategy, StrategyView
from .baselines.task import BaselineTask
from .problem.strategy_problem import StrategyProblem

SPACE_NOTE = "no operator runs on a part of the devices"

States = tuple[int, ...]
"""The state of each node of the problem."""


class Added(NamedTuple):
    """The costs that a change adds to a strategy, by the sums of Equations (1) and (3)."""

    mem_bytes: int
    time_ns: int


@dataclass(frozen=True)
class SimulatedResult:
    """The strategies that a search by simulated times found.

    Attributes:
        built: the problem whose states strategies are given in.
        candidates: the strategies that improved on all before, with their costs in nanoseconds; the best first.
        is_interrupted: whether Ctrl-C ended it.
    """

    built: StrategyProblem
    candidates: tuple[tuple[int, States], ...]
    is_interrupted: bool = False
    algorithm: str = ""

    @property
    def told(self) -> str:
        """Return the simulated time of the best strategy as text."""
        return f"simulated {self.candidates[0][0] / 1e3:,.1f} us"

    @property
    def note(self) -> str:
        """Return in a sentence what was found."""
        raise NotImplementedError

    def frontier(self, states: States) -> Frontier:
        """Return one strategy as a frontier of one point, bounded by the least of each node and edge alone."""
        problem = self.built.problem
        parts = (*problem.nodes, *problem.edges)
        least = [sum(int(getattr(part, cost).min()) for part in parts) for cost in ("mem_bytes", "time_ns")]
        bound = LowerBound(np.array(least[:1], np.int64), np.array(least[1:], np.int64), "the least of each node and edge")
        mem_bytes, time_ns = (np.array([cost], np.int64) for cost in problem.cost(states))
        return Frontier(mem_bytes, time_ns, np.array([states], np.int32), {}, self.algorithm, bound)


class Neighbours:
    """A problem, with the edges at each node, and the nodes of shared copies next to it."""

    def __init__(self, built: StrategyProblem) -> None:
        self.built = built
        problem = built.problem
        self.copies = {copy.node: copy for copy in built.shared if copy.node >= len(built.nodes)}
        self.edges: list[list[tuple[int, Edge]]] = [[] for _ in problem.nodes]
        for number, edge in enumerate(problem.edges):
            for end in {edge.source, edge.target}:
                self.edges[end].append((number, edge))
        self.next_copies = [
            sorted({end for _, edge in edges for end in (edge.source, edge.target) if end in self.copies and end != node})
            for node, edges in enumerate(self.edges)
        ]
        self.free = [node for node, each in enumerate(problem.nodes) if each.n_states > 1]

    def nearest(self, configs: Mapping[str, Config]) -> States:
        """Return the states in which the most operators of each node have the given configs, with the fastest copies."""
        chosen = [0] * len(self.built.problem.nodes)
        for number, (node, states) in enumerate(self.built.nodes):
            n_equal = np.zeros(states.n_states, np.int64)
            for op, of_op, index in zip(node.operators, states.configs, states.index, strict=True):
                n_equal += np.array([config == configs[op.name] for config in of_op], np.int64)[index]
            chosen[number] = int(np.argmax(n_equal))
        return self.with_copies(chosen)

    def with_copies(self, chosen: list[int]) -> States:
        """Return states with each shared copy the one that adds the least time."""
        for node in self.copies:
            chosen[node] = self._fastest_copy(node, chosen, {})
        return tuple(chosen)

    @cached_property
    def alike(self) -> tuple[tuple[int, ...], ...]:
        """The nodes that have the same operators and configs, where there are several: those of repeated layers."""
        found: dict[object, list[int]] = {}
        for number, (group, states) in enumerate(self.built.nodes):
            types = tuple(op.type for op in group.operators)
            configs = tuple(tuple(str(config) for config in each) for each in states.configs)
            found.setdefault((types, configs, tuple(map(tuple, states.index))), []).append(number)
        return tuple(tuple(each) for each in found.values() if len(each) > 1)

    def least_added_ns(self, states: Sequence[int], node: int, without: int = -1) -> np.ndarray:
        """Return the least time that each state of a node adds, with the shared copies next to it in any state: int64[S].

        It is INFEASIBLE or more where the state isn't allowed. Edges to the node ``without`` are left out.
        """
        nodes = self.built.problem.nodes
        total_ns = nodes[node].time_ns.copy()
        for _, edge in self.edges[node]:
            other = edge.target if edge.source == node else edge.source
            if other == without:
                continue
            of_edge = edge.time_ns if edge.source == node else edge.time_ns.T
            if other not in self.copies or node in self.copies:
                added_ns = of_edge[:, states[other]]
            else:
                of_copy = self._time_of_copy(other, states, {}, without=node)
                added_ns = np.minimum(of_edge + of_copy, INFEASIBLE).min(axis=1) - of_copy[states[other]]
            total_ns = np.minimum(total_ns + added_ns, INFEASIBLE)
        return np.where(total_ns < INFEASIBLE, total_ns - total_ns[states[node]], INFEASIBLE)

    @cached_property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """The pairs of operators' nodes with several states that an edge joins, or a shared copy between them."""
        found: dict[tuple[int, int], None] = {}
        free = set(self.free).difference(self.copies)
        for node, edges in enumerate(self.edges):
            near = {end for _, edge in edges for end in (edge.source, edge.target)} & free
            joined = itertools.combinations(sorted(near), 2) if node in self.copies else ((node, end) for end in near)
            found.update(dict.fromkeys((a, b) for a, b in joined if a < b and a in free))
        return tuple(sorted(found))

    def pair_added_ns(self, states: Sequence[int], pair: tuple[int, int]) -> np.ndarray:
        """Return about the least time that each two states of a pair of nodes add: int64[S1, S2].

        It is exact where no shared copy is next to both.
        """
        one, other = pair
        of_one, of_other = (self.least_added_ns(states, *ends) for ends in (pair, pair[::-1]))
        total_ns = np.minimum(of_one[:, None] + of_other, INFEASIBLE)
        for _, edge in self.edges[one]:
            if {edge.source, edge.target} == set(pair):
                between = edge.time_ns if edge.source == one else edge.time_ns.T
                total_ns = np.minimum(total_ns + between, INFEASIBLE) - between[states[one], states[other]]
        return total_ns

    def moved_together(self, states: Sequence[int], moves: Mapping[int, int]) -> dict[int, int]:
        """Return the changes of several operators' nodes to other states, and those of the shared copies next to them."""
        changes = dict(moves)
        for copy in dict.fromkeys(copy for node in moves for copy in self.next_copies[node]):
            changes[copy] = self._fastest_copy(copy, states, changes)
        return {each: new for each, new in changes.items() if new != states[each]}

    def moved(self, states: Sequence[int], node: int, state: int, keeps_copies: bool) -> dict[int, int]:
        """Return the changes of a proposal: a node's state, and those of the shared copies next to an operator.

        A copy has several states of one operand sharding, of which neighbours' states allow one.
        """
        if node in self.copies:
            changes = {node: self._fastest_copy(node, states, {}, self.copies[node].shardings[state])}
        else:
            changes = {node: state}
            for copy in self.next_copies[node]:
                kept = self.copies[copy].shardings[states[copy]] if keeps_copies else None
                changes[copy] = self._fastest_copy(copy, states, changes, kept)
        return {each: new for each, new in changes.items() if new != states[each]}

    def _fastest_copy(
        self, copy: int, states: Sequence[int], changes: Mapping[int, int], kept: OperandSharding | None = None
    ) -> int:
        """Return the state of a shared copy that adds the least time, of those of an operand sharding if one is given."""
        time_ns = self._time_of_copy(copy, states, changes)
        if kept is not None:
            is_kept = [sharding == kept for sharding in self.copies[copy].shardings]
            time_ns = np.where(is_kept, time_ns, time_ns + np.int64(INFEASIBLE))
        return int(np.argmin(time_ns))

    def _time_of_copy(self, copy: int, states: Sequence[int], changes: Mapping[int, int], without: int = -1) -> np.ndarray:
        """Return the time of each state of a shared copy, and of the edges to its neighbours but for one: int64[S]."""
        time_ns = self.built.problem.nodes[copy].time_ns
        for _, edge in self.edges[copy]:
            if without not in (edge.source, edge.target) and edge.source == copy:
                time_ns = time_ns + edge.time_ns[:, changes.get(edge.target, states[edge.target])]
            elif without not in (edge.source, edge.target):
                time_ns = time_ns + edge.time_ns[changes.get(edge.source, states[edge.source])]
        return time_ns

    def added(self, states: Sequence[int], changes: Mapping[int, int]) -> Added | None:
        """Return what a strategy needs more with some nodes' states changed; None if it isn't allowed then."""
        problem = self.built.problem
        mem_bytes = time_ns = 0
        for node, new in changes.items():
            each, old = problem.nodes[node], states[node]
            if each.time_ns[new] >= INFEASIBLE:
                return None
            mem_bytes += int(each.mem_bytes[new]) - int(each.mem_bytes[old])
            time_ns += int(each.time_ns[new]) - int(each.time_ns[old])
        for edge in dict(each for node in changes for each in self.edges[node]).values():
            before = states[edge.source], states[edge.target]
            after = changes.get(edge.source, before[0]), changes.get(edge.target, before[1])
            if edge.time_ns[after] >= INFEASIBLE:
                return None
            mem_bytes += int(edge.mem_bytes[after]) - int(edge.mem_bytes[before])
            time_ns += int(edge.time_ns[after]) - int(edge.time_ns[before])
        return Added(mem_bytes, time_ns)


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
        built, configs, shared = self.problem.built, {}, {}
        for node, state in changes.items():
            if node in self.problem.copies:
                copy = self.problem.copies[node]
                shared[copy.tensor.name] = copy.shardings[state]
                continue
            group, states = built.nodes[node]
            for op, of_op, index in zip(group.operators, states.configs, states.index, strict=True):
                config = of_op[index[state]]
                if config != self.view.strategy.configs[op.name]:
                    configs[op.name] = config
        view = self.view.changed(configs, shared)
        self._trial = view, changes
        touched = self.graph.touched(configs, shared)
        chains = self.actions.chains(view, (self.graph.nodes[number] for number in touched))
        return self.simulation.try_chains(dict(zip(touched, chains, strict=True)))

    def keep(self, added_bytes: int) -> None:
        """Take what was tried last, which needs so much more memory."""
        assert self._trial is not None
        self.view, changes = self._trial
        for node, state in changes.items():
            self.states[node] = state
        self.mem_bytes += added_bytes
        self.simulation.keep()
