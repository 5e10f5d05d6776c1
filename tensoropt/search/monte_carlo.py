"""FlexFlow's search (section 6): Markov Chain Monte Carlo over strategies, of which the simulated step is the cost.

A walk holds a strategy S and proposes another one S*: an operator that is selected at random gets a random config. The
proposal is accepted with the probability of Metropolis and Hastings (Equation 1),

    min(1, exp(beta (cost(S) - cost(S*))))

and the best strategy that was met is kept. Walks start from data parallelism, from one weird trick (the expert's strategy)
and from a random strategy. Each ends when its share of the time is over, or when half of its proposals, of at least
:data:`LEAST`, haven't improved on its best.

What the paper leaves open: beta is 1 over :data:`TEMPERATURE` times data parallelism's cost, so that a proposal that is
slower by that share is accepted with probability 1/e. An operator here is a node of the problem that the frontier is
searched in, so light operators follow their neighbours in the compact space. In every second proposal of a node's config
the shared copies of the tensors at it become those that add the least time; which copies are shared is proposed as well, as
if they were operators. A proposal that needs more memory than the limit is rejected. Where S doesn't fit either, one that
needs less than S is accepted.

Everything but the end of the time follows from the seed alone.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from ..ft import Frontier, LowerBound
from ..ft.problem import INFEASIBLE, Edge
from ..program.simulator import DeltaSimulation, Network, StepActions, step_graph
from ..program.simulator.step_graph import StepGraph
from ..rules.rule import Config, OperandSharding
from ..sharding.model import Model
from ..sharding.resharding import Router
from ..sharding.strategy import Strategy, StrategyView
from .baselines import MONTE_CARLO, MONTE_CARLO_SECONDS, data_parallel, one_weird_trick
from .baselines.task import Task
from .problem.strategy_problem import StrategyProblem

SPACE_NOTE = "no operator runs on a part of the devices"
LEAST, MOST_KEPT, EACH_REPORT = 1000, 64, 50
TEMPERATURE = 1e-4
SEEDS = ("data-parallel", "one-weird-trick", "random")

States = tuple[int, ...]
"""The state of each node of the problem."""


@dataclass(frozen=True, slots=True)
class Limits:
    """When a search ends, and what it may use.

    Attributes:
        seconds: the time of all walks together.
        memory_bytes: the limit per device on the memory of Equation (1); None without one.
        seed: of the random numbers.
    """

    seconds: float = MONTE_CARLO_SECONDS
    memory_bytes: int | None = None
    seed: int = 0


@dataclass
class Walk:
    """What a walk from one seed came to.

    Attributes:
        name: of the seed.
        start_ns: the cost of the seed.
        best_ns: the least cost of a strategy that fits; None if none did.
        n_proposals, n_accepted: how many proposals there were, and were accepted.
        improved_at: the number of proposals at which the best was found.
    """

    name: str
    start_ns: int
    best_ns: int | None = None
    n_proposals: int = 0
    n_accepted: int = 0
    improved_at: int = 0

    @property
    def is_over(self) -> bool:
        """Return whether half of the proposals haven't improved on the best."""
        return self.n_proposals >= LEAST and self.n_proposals - self.improved_at >= self.n_proposals / 2

    def __str__(self) -> str:
        best = "nothing that fits" if self.best_ns is None else f"{self.best_ns / 1e3:,.1f} us"
        return f"{self.name} {self.start_ns / 1e3:,.1f} us to {best} in {self.n_proposals:,} proposals"


@dataclass(frozen=True)
class MonteCarloResult:
    """What a search found.

    Attributes:
        built: the problem whose states strategies are given in.
        candidates: the strategies that improved on all before, with their costs in nanoseconds; the best first.
        walks: one for each seed that was begun.
        is_interrupted: whether Ctrl-C ended it.
    """

    built: StrategyProblem
    candidates: tuple[tuple[int, States], ...]
    walks: tuple[Walk, ...]
    is_interrupted: bool = False

    @property
    def note(self) -> str:
        """Return in a sentence what was found from which seed."""
        end = "; interrupted, the best so far" if self.is_interrupted else ""
        return f"simulated {self.candidates[0][0] / 1e3:,.1f} us; {'; '.join(map(str, self.walks))}; {SPACE_NOTE}{end}"

    def frontier(self, states: States) -> Frontier:
        """Return one strategy as a frontier of one point, bounded by the least of each node and edge alone."""
        problem = self.built.problem
        parts = (*problem.nodes, *problem.edges)
        least = [sum(int(getattr(part, cost).min()) for part in parts) for cost in ("mem_bytes", "time_ns")]
        bound = LowerBound(np.array(least[:1], np.int64), np.array(least[1:], np.int64), "the least of each node and edge")
        mem_bytes, time_ns = (np.array([cost], np.int64) for cost in problem.cost(states))
        return Frontier(mem_bytes, time_ns, np.array([states], np.int32), {}, MONTE_CARLO, bound)


def acceptance(beta: float, cost_ns: int, proposed_ns: int) -> float:
    """Return the probability with which a proposal is accepted: FlexFlow's Equation 1."""
    return min(1.0, math.exp(min(0.0, beta * (cost_ns - proposed_ns))))


def search(
    task: Task, network: Network, limits: Limits, progress: Callable[[int, int], None] | None = None
) -> MonteCarloResult:
    """Search for the strategy whose simulated step takes the least time.

    Args:
        task: the model, the mesh, its costs, and the space.
        network: what the step is simulated on.
        progress: called with (seconds that have passed, seconds in all) now and then.
    """
    return _Search(task, network, limits, progress).run()


@dataclass
class _Search:
    task: Task
    network: Network
    limits: Limits
    progress: Callable[[int, int], None] | None
    candidates: list[tuple[int, States]] = field(default_factory=list)
    smallest: tuple[int, int, States] | None = None

    def run(self) -> MonteCarloResult:
        task = self.task
        self.problem = _Neighbours(task.full_problem())
        started = time.monotonic()
        self.actions = StepActions(task.costing, Router(task.costing.reshardings.steps))
        walks: list[Walk] = []
        beta = 0.0
        is_interrupted = False
        try:
            for number, (name, states) in enumerate(self._seeds()):
                position = _Position.of(self.problem, task, self.actions, self.network, states)
                walks.append(Walk(name, position.cost_ns))
                self._meet(walks[-1], position)
                beta = beta or 1 / (TEMPERATURE * max(1, position.cost_ns))
                deadline = started + self.limits.seconds * (number + 1) / len(SEEDS)
                self._walk(walks[-1], position, beta, random.Random(f"{self.limits.seed} {name}"), started, deadline)
        except KeyboardInterrupt:
            if self.smallest is None:
                raise
            is_interrupted = True
        if not self.candidates:
            assert self.smallest is not None
            _, cost_ns, states = self.smallest
            self.candidates.append((cost_ns, states))
        return MonteCarloResult(self.problem.built, tuple(self.candidates[::-1]), tuple(walks), is_interrupted)

    def _seeds(self) -> Iterator[tuple[str, States]]:
        for module in (data_parallel, one_weird_trick):
            yield SEEDS[(data_parallel, one_weird_trick).index(module)], self.problem.nearest(module.configs(self.task))
        rng = random.Random(f"{self.limits.seed} seed")
        chosen = [rng.randrange(node.n_states) for node in self.problem.built.problem.nodes]
        yield SEEDS[-1], self.problem.with_copies(chosen)

    def _walk(
        self, walk: Walk, position: _Position, beta: float, rng: random.Random, started: float, deadline: float
    ) -> None:
        limit, free = self.limits.memory_bytes, self.problem.free
        while free and not walk.is_over:
            if walk.n_proposals % EACH_REPORT == 0:
                now = time.monotonic()
                if self.progress is not None:
                    self.progress(min(int(now - started), int(self.limits.seconds)), int(self.limits.seconds))
                if now >= deadline:
                    return
            walk.n_proposals += 1
            node = rng.choice(free)
            n_states = self.problem.built.problem.nodes[node].n_states
            state = rng.randrange(n_states - 1)
            state += state >= position.states[node]
            luck = rng.random()
            changes = self.problem.moved(position.states, node, state, keeps_copies=rng.random() < 0.5)
            added = self.problem.added_bytes(position.states, changes)
            is_over = limit is not None and position.mem_bytes + (added or 0) > limit
            if added is None or (is_over and added >= 0):
                continue
            cost_ns = position.tried(changes)
            must_shrink = limit is not None and position.mem_bytes > limit
            if must_shrink or luck < acceptance(beta, position.cost_ns, cost_ns):
                position.keep(added)
                walk.n_accepted += 1
                self._meet(walk, position)

    def _meet(self, walk: Walk, position: _Position) -> None:
        """Remember a strategy if it is the best so far, or if none fits yet and it needs the least memory."""
        limit, states = self.limits.memory_bytes, tuple(position.states)
        least = position.mem_bytes, position.cost_ns
        if self.smallest is None or least < self.smallest[:2]:
            self.smallest = (*least, states)
            if limit is not None and position.mem_bytes > limit:
                walk.improved_at = walk.n_proposals
        if limit is not None and position.mem_bytes > limit:
            return
        if walk.best_ns is None or position.cost_ns < walk.best_ns:
            walk.best_ns, walk.improved_at = position.cost_ns, walk.n_proposals
        if not self.candidates or position.cost_ns < self.candidates[-1][0]:
            self.candidates.append((position.cost_ns, states))
            del self.candidates[:-MOST_KEPT]


class _Neighbours:
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
            for op, of_op, place in zip(node.operators, states.configs, states.place, strict=True):
                n_equal += np.array([config == configs[op.name] for config in of_op], np.int64)[place]
            chosen[number] = int(np.argmax(n_equal))
        return self.with_copies(chosen)

    def with_copies(self, chosen: list[int]) -> States:
        """Return states with each shared copy the one that adds the least time."""
        for node in self.copies:
            chosen[node] = self._fastest_copy(node, chosen, {})
        return tuple(chosen)

    def moved(self, states: list[int], node: int, state: int, keeps_copies: bool) -> dict[int, int]:
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
        self, copy: int, states: list[int], changes: Mapping[int, int], kept: OperandSharding | None = None
    ) -> int:
        """Return the state of a shared copy that adds the least time, of those of an operand sharding if one is given."""
        time_ns = self.built.problem.nodes[copy].time_ns
        if kept is not None:
            time_ns = np.where([sharding == kept for sharding in self.copies[copy].shardings], time_ns, np.int64(INFEASIBLE))
        for _, edge in self.edges[copy]:
            if edge.source == copy:
                time_ns = time_ns + edge.time_ns[:, changes.get(edge.target, states[edge.target])]
            else:
                time_ns = time_ns + edge.time_ns[changes.get(edge.source, states[edge.source])]
        return int(np.argmin(time_ns))

    def added_bytes(self, states: list[int], changes: Mapping[int, int]) -> int | None:
        """Return how many bytes more a strategy needs with some nodes' states changed; None if it isn't allowed then."""
        problem = self.built.problem
        added = 0
        for node, new in changes.items():
            if problem.nodes[node].time_ns[new] >= INFEASIBLE:
                return None
            added += int(problem.nodes[node].mem_bytes[new]) - int(problem.nodes[node].mem_bytes[states[node]])
        for edge in dict(each for node in changes for each in self.edges[node]).values():
            source, target = states[edge.source], states[edge.target]
            changed = changes.get(edge.source, source), changes.get(edge.target, target)
            if edge.time_ns[changed] >= INFEASIBLE:
                return None
            added += int(edge.mem_bytes[changed]) - int(edge.mem_bytes[source, target])
        return added


@dataclass
class _Position:
    """The strategy that a walk is at, with its simulated step."""

    problem: _Neighbours
    actions: StepActions
    states: list[int]
    mem_bytes: int
    view: StrategyView
    graph: StepGraph
    simulation: DeltaSimulation
    _trial: tuple[StrategyView, dict[int, int]] | None = None

    @classmethod
    def of(
        cls, problem: _Neighbours, task: Task, actions: StepActions, network: Network, states: States
    ) -> _Position:
        strategy: Strategy = problem.built.strategy(states)
        view = Model(task.graph, task.costing.backward).view(strategy)
        graph = step_graph(view, actions.router)
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
            for op, of_op, place in zip(group.operators, states.configs, states.place, strict=True):
                config = of_op[place[state]]
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
