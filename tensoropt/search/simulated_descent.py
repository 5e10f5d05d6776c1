"""Search by simulated times from the frontier's fastest strategies on: ``--algorithm ft-simulated``.

Frontier-Tracking adds up costs, so that it can be exact. What a step takes as simulated is less where communication overlaps
with compute, and the strategy of the least sum needn't be the one of the least simulated time. So the fastest points of the
frontier are simulated, and beside them data parallelism and one weird trick; and from the best of these on a node's state
is changed as long as that makes the simulated step faster:

    repeat until nothing improves
        for each node, or all of one in repeated layers, and each other state, with the shared copies next to it,
        those that add the least time by the sum first
            take it if the simulated step is faster
        if none was, for each two nodes next to each other and each two other states, in the same order
            take them if the simulated step is faster, and begin again

A state is left out if by the sum it adds more than what is hidden now: the sum less the simulated time, or :data:`SLACK` of
it. Of pairs no more are simulated than single changes were, or :data:`LEAST_PAIRS`. The result is a local optimum: no claim
is made but that it is as fast as every strategy that was simulated. It is deterministic unless time runs out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from ..ft import Frontier
from ..ft.problem import INFEASIBLE
from ..program.simulator import Network, StepActions
from ..sharding.resharding import PathFinder
from .baselines import FT_SIMULATED, data_parallel, one_weird_trick
from .baselines.task import BaselineTask
from .monte_carlo import SearchLimits
from .simulated_position import SPACE_NOTE, Added, Neighbours, Position, SimulatedResult, States

MOST_POINTS, MOST_STARTS, MOST_KEPT = 16, 3, 64
SLACK = 0.05
LEAST_PAIRS = 1000


@dataclass(frozen=True)
class DescentResult(SimulatedResult):
    """The strategies that a search found.

    Attributes:
        fastest_ns: the simulated time of the frontier's fastest point that fits; None if none does.
        n_simulated: how many strategies were simulated.
    """

    fastest_ns: int | None = None
    n_simulated: int = 0
    algorithm: str = FT_SIMULATED

    @property
    def note(self) -> str:
        """Return in a sentence what was found from where."""
        end = "; interrupted, the best so far" if self.is_interrupted else ""
        fastest = "no point that fits" if self.fastest_ns is None else f"{self.fastest_ns / 1e3:,.1f} us"
        return f"{self.told}; the frontier's fastest {fastest}; {self.n_simulated:,} strategies simulated; {SPACE_NOTE}{end}"


def search(
    task: BaselineTask,
    network: Network,
    found: Frontier,
    limits: SearchLimits,
    progress: Callable[[int, int], None] | None = None,
) -> DescentResult:
    """Search for the strategy whose simulated step takes the least time, from a frontier on.

    Args:
        task: the model, the mesh, its costs, and the space.
        network: what the step is simulated on.
        found: the frontier of the task's full problem.
        progress: called with (seconds that have passed, seconds in all) now and then.
    """
    return _Descent(task, network, found, limits, progress).run()


@dataclass
class _Descent:
    task: BaselineTask
    network: Network
    found: Frontier
    limits: SearchLimits
    progress: Callable[[int, int], None] | None
    candidates: list[tuple[int, States]] = field(default_factory=list)
    n_simulated: int = 0

    def run(self) -> DescentResult:
        self.problem = Neighbours(self.task.full_problem())
        self.started = time.monotonic()
        actions = StepActions(self.task.costing, PathFinder(self.task.costing.reshardings.steps))
        is_interrupted, fastest_ns = False, None
        starts = list(dict.fromkeys(self._starts()))
        position = Position.of(self.problem, self.task, actions, self.network, starts[0])
        self._meet(position)
        if self._fits(position.mem_bytes):
            fastest_ns = position.cost_ns
        try:
            ranked = []
            for states in starts:
                self._go(position, states)
                ranked.append((position.cost_ns, states))
            for _, states in sorted(ranked)[:MOST_STARTS]:
                self._go(position, states)
                if not self._descend(position):
                    break
        except KeyboardInterrupt:
            is_interrupted = True
        candidates = tuple(sorted(self.candidates))[:MOST_KEPT]
        return DescentResult(self.problem.built, candidates, is_interrupted, FT_SIMULATED, fastest_ns, self.n_simulated)

    def _fits(self, mem_bytes: int) -> bool:
        return self.limits.memory_bytes is None or mem_bytes <= self.limits.memory_bytes

    def _starts(self) -> Iterator[States]:
        """Yield the frontier's fastest points that fit, the fastest first, and what others would do.

        Where none fits, yield those of the least memory, of which one may have a peak that fits.
        """
        found = self.found
        fitting = [point for point, mem_bytes in enumerate(found.mem_bytes.tolist()) if self._fits(mem_bytes)]
        for point in fitting[: -MOST_POINTS - 1 : -1] or range(min(MOST_POINTS, len(found))):
            yield tuple(map(int, found.strategies[point]))
        for module in (data_parallel, one_weird_trick):
            states = self.problem.nearest(module.configs(self.task))
            if not fitting or self._fits(self.problem.built.problem.cost(states)[0]):
                yield states

    def _go(self, position: Position, states: States) -> None:
        """Go to a strategy, all nodes at once."""
        changes = {node: state for node, state in enumerate(states) if state != position.states[node]}
        if changes:
            position.tried(changes)
            added = self.problem.added(position.states, changes)
            assert added is not None, "a start isn't allowed"
            position.keep(added.mem_bytes)
            self._meet(position)

    def _descend(self, position: Position) -> bool:
        """Change one node after the other while that makes the step faster; return whether there is time left."""
        is_better = True
        while is_better:
            is_better = False
            for nodes, state in self._proposals(position):
                if self._is_over():
                    return False
                for changes, added in self._changes(position, nodes, state):
                    is_better |= self._improve(position, changes, added)
            for changes, added in () if is_better else self._pairs(position):
                if self._is_over():
                    return False
                is_better = self._improve(position, changes, added)
                if is_better:
                    break
        return True

    def _is_over(self) -> bool:
        """Tell how much time has passed; return whether that is all of it."""
        passed = time.monotonic() - self.started
        if self.progress is not None:
            self.progress(min(int(passed), int(self.limits.seconds)), int(self.limits.seconds))
        return passed >= self.limits.seconds

    def _improve(self, position: Position, changes: dict[int, int], added: Added) -> bool:
        """Make changes if they make the step faster; return whether they did."""
        self.n_simulated += 1
        is_better = position.tried(changes) < position.cost_ns
        if is_better:
            position.keep(added.mem_bytes)
            self._meet(position)
        return is_better

    def _pairs(self, position: Position) -> Iterator[tuple[dict[int, int], Added]]:
        """Yield changes of two nodes next to each other, those first that add the least time, with what they add."""
        problem, states, most_ns = self.problem, list(position.states), self._most_ns(position)
        found = [np.empty((0, 4), np.int64)]
        for number, (one, other) in enumerate(problem.pairs):
            added_ns = problem.pair_added_ns(states, (one, other))
            added_ns[states[one]] = added_ns[:, states[other]] = INFEASIBLE
            chosen = np.nonzero(added_ns <= most_ns)
            found.append(np.column_stack([added_ns[chosen], np.full(len(chosen[0]), number), *chosen]))
        every = np.concatenate(found)
        order = np.argsort(every[:, 0], kind="stable")[: max(LEAST_PAIRS, self.n_simulated)]
        for _, number, *chosen_states in every[order].tolist():
            changes = problem.moved_together(states, dict(zip(problem.pairs[number], chosen_states, strict=True)))
            added = problem.added(states, changes)
            if added is not None and added.time_ns <= most_ns and self._fits(position.mem_bytes + added.mem_bytes):
                yield changes, added

    def _proposals(self, position: Position) -> list[tuple[tuple[int, ...], int]]:
        """Return which nodes may be brought to which state, those first that add the least time."""
        most_ns, free = self._most_ns(position), set(self.problem.free)
        found: list[tuple[int, tuple[int, ...], int]] = []
        for nodes in self.problem.alike:
            for state in range(self.problem.built.problem.nodes[nodes[0]].n_states) if free.issuperset(nodes) else ():
                found += [(added.time_ns, nodes, state) for _, added in self._changes(position, nodes, state)]
        for node in self.problem.free:
            added_ns = self.problem.least_added_ns(position.states, node).tolist()
            found += [(ns, (node,), state) for state, ns in enumerate(added_ns) if ns <= most_ns]
        return [(nodes, state) for _, nodes, state in sorted(found)]

    def _most_ns(self, position: Position) -> int:
        """Return how much a change may add by the sum."""
        overlap_ns = self.problem.built.problem.cost(position.states)[1] - position.cost_ns
        return max(overlap_ns, round(SLACK * position.cost_ns))

    def _changes(self, position: Position, nodes: tuple[int, ...], state: int) -> Iterator[tuple[dict[int, int], Added]]:
        """Yield the changes that bring nodes to one state, and may pay, with what they add.

        The shared copies next to a node become the fastest; or their operand shardings stay.
        """
        problem, states, most_ns = self.problem, position.states, self._most_ns(position)
        if len(nodes) > 1:
            possible = [problem.moved_together(states, dict.fromkeys(nodes, state))]
        else:
            possible = [problem.moved(states, nodes[0], state, keeps_copies) for keeps_copies in (False, True)]
        for changes in possible[: 1 + (possible[0] != possible[-1])]:
            added = problem.added(states, changes) if changes else None
            if added is not None and added.time_ns <= most_ns and self._fits(position.mem_bytes + added.mem_bytes):
                yield changes, added

    def _meet(self, position: Position) -> None:
        self.n_simulated += 1
        self.candidates.append((position.cost_ns, tuple(position.states)))
