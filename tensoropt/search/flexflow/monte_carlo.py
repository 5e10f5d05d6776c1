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

``--algorithm ft-simulated`` goes on from the frontier instead, whose fastest point by sums needn't be the fastest as
simulated: its :data:`MOST_POINTS` fastest points that fit, data parallelism and one weird trick are simulated, and the walks
start from the fastest three. There a proposal may also bring all nodes of repeated layers to one state.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from ...costs.objectives import MEMORY_TIME
from ...ft import ALGORITHMS, Budget, Frontier, LowerBound
from ...ft.problem import INFEASIBLE
from ...profiling.hardware import Hardware
from ...program.simulator import Network, StepActions, network_of
from ...sharding.resharding import PathFinder
from ..algorithms import FT_SIMULATED, MONTE_CARLO, MONTE_CARLO_SECONDS
from ..baselines import data_parallel, one_weird_trick
from ..problem.strategy_problem import StrategyProblem
from ..search_problem import ProblemSearch
from ..task import BaselineTask
from .simulated_position import Neighbours, Position, States

LEAST, MOST_KEPT, EACH_REPORT = 1000, 64, 50
TEMPERATURE = 1e-4
SEEDS = ("data-parallel", "one-weird-trick", "random")
MOST_POINTS, TOGETHER = 16, 0.25


@dataclass(frozen=True, slots=True)
class SearchLimits:
    """The limits of a search: when it ends, and how much memory a strategy may need.

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
    """The result of a walk from one seed.

    Attributes:
        name: of the seed.
        start_ns: the cost of the seed.
        best_ns: the least cost of a strategy that fits; None if none did.
        n_proposals: how many proposals there were.
        improved_at: the number of proposals at which the best was found; of a walk that doesn't fit the limit, that of the
            least memory.
        least_bytes: the least memory of a strategy that it came to; None before the first.
    """

    name: str
    start_ns: int
    best_ns: int | None = None
    n_proposals: int = 0
    improved_at: int = 0
    least_bytes: int | None = None

    @property
    def is_over(self) -> bool:
        """Return whether half of the proposals haven't improved on the best."""
        return self.n_proposals >= LEAST and self.n_proposals - self.improved_at >= self.n_proposals / 2

    def __str__(self) -> str:
        best = "nothing that fits" if self.best_ns is None else f"{self.best_ns / 1e3:,.1f} us"
        return f"{self.name} {self.start_ns / 1e3:,.1f} us to {best} in {self.n_proposals:,} proposals"


@dataclass(frozen=True)
class MonteCarloResult:
    """The strategies that a search found.

    Attributes:
        built: the problem whose states strategies are given in.
        candidates: the strategies that improved on all before, with their costs in nanoseconds; the best first.
        is_interrupted: whether Ctrl-C ended it.
        walks: one for each seed that was begun.
    """

    built: StrategyProblem
    candidates: tuple[tuple[int, States], ...]
    is_interrupted: bool
    walks: tuple[Walk, ...]
    algorithm: str = MONTE_CARLO

    @property
    def note(self) -> str:
        """Return in a sentence what was found from which seed."""
        end = "; interrupted, the best so far" if self.is_interrupted else ""
        best = f"simulated {self.candidates[0][0] / 1e3:,.1f} us"
        return f"{best}; {'; '.join(map(str, self.walks))}; no operator runs on a part of the devices{end}"

    def frontier(self, states: States) -> Frontier:
        """Return one strategy as a frontier of one point, bounded by the least of each node and edge alone."""
        problem = self.built.problem
        parts = (*problem.nodes, *problem.edges)
        minima = [sum(int(getattr(part, cost).min()) for part in parts) for cost in ("mem_bytes", "time_ns")]
        bound = LowerBound(np.array(minima[:1], np.int64), np.array(minima[1:], np.int64), "the least of each node and edge")
        mem_bytes, time_ns = (np.array([cost], np.int64) for cost in problem.cost(states))
        return Frontier(mem_bytes, time_ns, np.array([states], np.int32), {}, self.algorithm, bound)


def acceptance(beta: float, cost_ns: int, proposed_ns: int) -> float:
    """Return the probability with which a proposal is accepted: FlexFlow's Equation 1."""
    return min(1.0, math.exp(min(0.0, beta * (cost_ns - proposed_ns))))


def find(task: BaselineTask, hardware: Hardware, algorithm: str, limits: SearchLimits) -> MonteCarloResult:
    """Return what one of ``BY_SIMULATION`` finds for a task on some hardware."""
    task = replace(task, built=task.full_problem())
    progress, points = task.progress and partial(task.progress, "search"), None
    if algorithm == FT_SIMULATED:
        points = ProblemSearch(MEMORY_TIME, ALGORITHMS[0], progress, Budget()).plain(task.full_problem())
    return search(task, network_of(hardware, task.mesh), limits, progress, points)


def search(
    task: BaselineTask,
    network: Network,
    limits: SearchLimits,
    progress: Callable[[int, int], None] | None = None,
    frontier: Frontier | None = None,
) -> MonteCarloResult:
    """Search for the strategy whose simulated step takes the least time.

    Args:
        task: the model, the mesh, its costs, and the space.
        network: what the step is simulated on.
        progress: called with (seconds that have passed, seconds in all) now and then.
        frontier: the frontier of the task's full problem, to start from its fastest points.
    """
    return _Search(task, network, limits, progress, frontier).run()


@dataclass
class _Search:
    task: BaselineTask
    network: Network
    limits: SearchLimits
    progress: Callable[[int, int], None] | None
    found: Frontier | None
    candidates: list[tuple[int, States]] = field(default_factory=list)
    smallest: tuple[int, int, States] | None = None

    def run(self) -> MonteCarloResult:
        task = self.task
        self.problem = Neighbours(task.full_problem())
        start_s = time.monotonic()
        self.actions = StepActions(task.costing, PathFinder(task.costing.reshardings.steps))
        walks: list[Walk] = []
        beta = 0.0
        is_interrupted = False
        try:
            for number, (name, states) in enumerate(self._seeds()):
                position = self._at(states)
                walks.append(Walk(name, position.cost_ns))
                self._meet(walks[-1], position)
                beta = beta or 1 / (TEMPERATURE * max(1, position.cost_ns))
                deadline = start_s + self.limits.seconds * (number + 1) / len(SEEDS)
                self._walk(walks[-1], position, beta, random.Random(f"{self.limits.seed} {name}"), start_s, deadline)
        except KeyboardInterrupt:
            if self.smallest is None:
                raise
            is_interrupted = True
        if not self.candidates:
            assert self.smallest is not None
            _, cost_ns, states = self.smallest
            self.candidates.append((cost_ns, states))
        algorithm = MONTE_CARLO if self.found is None else FT_SIMULATED
        return MonteCarloResult(self.problem.built, tuple(self.candidates[::-1]), is_interrupted, tuple(walks), algorithm)

    def _seeds(self) -> Iterator[tuple[str, States]]:
        """Yield what walks start from, with its name."""
        modules = zip(SEEDS, (data_parallel, one_weird_trick), strict=False)
        baselines = [(name, self.problem.nearest(module.configs(self.task))) for name, module in modules]
        if self.found is not None:
            yield from self._fastest([*self._points(self.found), *baselines])
            return
        yield from baselines
        rng = random.Random(f"{self.limits.seed} seed")
        allowed = [np.flatnonzero(node.time_ns < INFEASIBLE).tolist() for node in self.problem.built.problem.nodes]
        drawn_states = [rng.choice(states) for states in allowed]
        yield SEEDS[-1], self.problem.with_copies(drawn_states)

    def _points(self, frontier: Frontier) -> Iterator[tuple[str, States]]:
        """Yield the fastest points of a frontier that fit, the fastest first; those of the least memory where none does."""
        limit = self.limits.memory_bytes
        fitting = [point for point, n_bytes in enumerate(frontier.mem_bytes.tolist()) if limit is None or n_bytes <= limit]
        for point in fitting[: -MOST_POINTS - 1 : -1] or range(min(MOST_POINTS, len(frontier))):
            yield f"point {point + 1} of the frontier", tuple(map(int, frontier.strategies[point]))

    def _fastest(self, seeds: Sequence[tuple[str, States]]) -> list[tuple[str, States]]:
        """Return as many seeds as there are walks: those that fit before others, of these the fastest as simulated."""
        position, limit = self._at(seeds[0][1]), self.limits.memory_bytes
        ranks = []
        for _, states in seeds:
            changes = {node: state for node, state in enumerate(states) if state != position.states[node]}
            n_bytes = self.problem.built.problem.cost(states)[0]
            cost_ns = position.tried(changes) if changes else position.cost_ns
            ranks.append((limit is not None and n_bytes > limit, cost_ns))
        return [seeds[place] for place in sorted(range(len(seeds)), key=ranks.__getitem__)[: len(SEEDS)]]

    def _at(self, states: States) -> Position:
        return Position.of(self.problem, self.task, self.actions, self.network, states)

    def _walk(
        self, walk: Walk, position: Position, beta: float, rng: random.Random, start_s: float, deadline: float
    ) -> None:
        limit, nodes = self.limits.memory_bytes, self.problem.free
        while nodes and not walk.is_over:
            if walk.n_proposals % EACH_REPORT == 0:
                now_s = time.monotonic()
                if self.progress is not None:
                    self.progress(min(int(now_s - start_s), int(self.limits.seconds)), int(self.limits.seconds))
                if now_s >= deadline:
                    return
            walk.n_proposals += 1
            node = rng.choice(nodes)
            n_states = self.problem.built.problem.nodes[node].n_states
            state = rng.randrange(n_states - 1)
            state += state >= position.states[node]
            luck = rng.random()
            twins = self.problem.alike.get(node, ()) if self.found is not None and rng.random() < TOGETHER else ()
            if twins:
                changes = self.problem.moved_together(position.states, dict.fromkeys(twins, state))
            else:
                changes = self.problem.moved(position.states, node, state, keeps_copies=rng.random() < 0.5)
            n_bytes = self.problem.added_bytes(position.states, changes)
            if n_bytes is None or (limit is not None and n_bytes >= 0 and position.mem_bytes + n_bytes > limit):
                continue
            cost_ns = position.tried(changes)
            must_shrink = limit is not None and position.mem_bytes > limit
            if must_shrink or luck < acceptance(beta, position.cost_ns, cost_ns):
                position.keep(n_bytes)
                self._meet(walk, position)

    def _meet(self, walk: Walk, position: Position) -> None:
        """Remember a strategy if it is the best so far, or if none fits yet and it needs the least memory."""
        limit, states = self.limits.memory_bytes, tuple(position.states)
        if position.mem_bytes >= INFEASIBLE:
            return
        is_within = limit is None or position.mem_bytes <= limit
        costs = position.mem_bytes, position.cost_ns
        if self.smallest is None or costs < self.smallest[:2]:
            self.smallest = (*costs, states)
        if walk.least_bytes is None or position.mem_bytes < walk.least_bytes:
            walk.least_bytes = position.mem_bytes
            if not is_within:
                walk.improved_at = walk.n_proposals
        if not is_within:
            return
        if walk.best_ns is None or position.cost_ns < walk.best_ns:
            walk.best_ns, walk.improved_at = position.cost_ns, walk.n_proposals
        if not self.candidates or position.cost_ns < self.candidates[-1][0]:
            self.candidates.append((position.cost_ns, states))
            del self.candidates[:-MOST_KEPT]
