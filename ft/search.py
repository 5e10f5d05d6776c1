"""Frontier-Tracking: ``search(problem, algorithm) -> Frontier`` (Algorithm 2).

| algorithm | steps | use |
|---|---|---|
| ``ft-ldp`` | mark the linear graph, eliminate the rest, LDP, unroll | the default |
| ``ft-elimination`` | eliminate down to nothing, unroll | for comparison with the paper's |
| ``exhaustive`` | try every strategy | small problems, tests |

All three give the same points, to the byte and the nanosecond, unless a limit of the :class:`.Budget` was reached. The
result then says so, and carries a lower bound, from which it tells how far from the true frontier it can be at most:

- where heuristic elimination was used, the frontier of a relaxation (see :mod:`.elimination`);
- where frontiers were thinned, what :mod:`.trim` proves.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from .bound import LowerBound
from .budget import Budget
from .dominance import states_that_matter
from .elimination import TableGraph
from .exhaustive import exhaustive
from .frontier import Frontier
from .lagrangian import Found
from .least import TimeIsUpError
from .pareto import reduce_unsorted
from .problem import InfeasibleError, Ints, Problem
from .pruning import N_WEIGHTS, pruned
from .replaceable import without_replaceable
from .separable import split_sum
from .solver import Solver
from .table import States, dense_table, unit_table
from .trim import Thinning
from .unroll import unroll

Progress = Callable[[int, int], None]
ALGORITHMS = ("ft-ldp", "ft-elimination", "exhaustive")
_MORE_CELLS = 4
_MOST_GAP = 0.1
_SHARE = 0.75
"""Of the time that is left, for pruning."""
_NO_BOUND = LowerBound(np.zeros(1, np.int64), np.zeros(1, np.int64), "nothing")


class _TimeIsUp(Exception):
    """A round was not ready in time."""


def search(
    problem: Problem,
    algorithm: str = "ft-ldp",
    progress: Progress | None = None,
    budget: Budget | None = None,
) -> Frontier:
    """The frontier of a problem.

    Args:
        problem: what to search.
        algorithm: one of ALGORITHMS.
        progress: called with (done, total) now and then.
        budget: how hard to search; ``Budget()`` if not given. Enumeration knows no limits but its own.

    Raises:
        ValueError: unknown algorithm, or too many strategies to enumerate.
        InfeasibleError: no strategy is allowed.
    """
    if algorithm not in ALGORITHMS:
        raise ValueError(f"unknown algorithm {algorithm!r}; choose one of {', '.join(ALGORITHMS)}")
    if algorithm == "exhaustive":
        return exhaustive(problem, progress)
    return _Search(problem, algorithm, progress, budget or Budget()).run()


class _Search:
    """One search: a round; if that is not exact, pruning; then rounds with more and more cells, until time is up.

    Attributes:
        problem: what is searched, with ``states`` of each node of the problem that was given.
        dropped: the strategies that made states and pairs superfluous, and what bounds those that had them from below.
    """

    def __init__(self, problem: Problem, algorithm: str, progress: Progress | None, budget: Budget) -> None:
        self.algorithm = algorithm
        self.progress = progress
        self.budget = budget
        self.start, self.deadline = time.monotonic(), math.inf
        self.n_nodes = len(problem.nodes)
        self.dropped: Frontier | None = None
        states_that_matter(problem)  # names what is not allowed, as the problem was given
        self.states = tuple(np.arange(node.n_states, dtype=np.int64) for node in problem.nodes)
        self._enter(without_replaceable(problem), self.states)

    def _enter(self, problem: Problem, states: Sequence[Ints]) -> None:
        """Search this problem from now on, whose states are these of the given one's."""
        kept = states_that_matter(problem)
        self.states = tuple(of_given[those] for of_given, those in zip(states, kept, strict=True))
        self.problem = problem.restricted(kept)
        self.graph = _initialise(self.problem, Thinning.of(self.problem, self.budget.epsilon, self.budget.max_points))

    def run(self) -> Frontier:
        max_cells = self.budget.max_table_cells
        may_prune = self.budget.prune and self.budget.seconds > 0
        best = self._round(max_cells, has_bound=not may_prune)
        if may_prune and best.worst_gap > self.budget.gap:
            best = self._pruned(best, max_cells)
        self.deadline = self.start + self.budget.seconds
        expected = (
            0.0  # seconds: a round takes up to as many times longer as it has more cells, and eliminations are not cut short
        )
        while best.eliminations["heuristic"] and self._goes_on(best, expected):
            began = time.monotonic()
            try:
                best = _better(best, self._round(max_cells))
            except _TimeIsUp:
                break
            except InfeasibleError:
                return self._only_dropped(best)
            max_cells *= _MORE_CELLS
            expected = _MORE_CELLS * (time.monotonic() - began)
        return best

    def _goes_on(self, best: Frontier, expected: float) -> bool:
        return not best.exact and best.worst_gap > self.budget.gap and time.monotonic() + expected < self.deadline

    def _pruned(self, best: Frontier, max_cells: int) -> Frontier:
        """What was found, with what weighted searches find and prove; what they drop is not searched any more.

        If there is no time for any bound the relaxation has to do. Where frontiers were
        thinned for their length alone, nothing is dropped.
        """
        columns = [np.searchsorted(those, best.strategies[:, node]) for node, those in enumerate(self.states)]
        known = Found(best.mem_bytes, best.time_ns, np.stack(columns, axis=1).astype(np.int32))
        is_relaxed = best.eliminations["heuristic"] > 0
        epsilon = max(self.budget.epsilon, min(self.budget.gap, _MOST_GAP))
        now = time.monotonic()
        deadline = now + _SHARE * max(self.start + self.budget.seconds - now, 0.0)
        try:
            left = pruned(self.problem, epsilon, N_WEIGHTS if is_relaxed else 0, deadline, known)
        except TimeIsUpError:
            return replace(best, bound=self._relaxation(max_cells)) if is_relaxed else best
        found = replace(
            self._frontier(left.found.mem, left.found.time, left.found.strategies, best.eliminations), bound=left.bound
        )
        if not is_relaxed:
            return _better(best, found)
        best = replace(best, bound=found.bound)
        self.dropped = replace(found, bound=left.of_dropped)
        if left.problem is None:
            return self._only_dropped(best)
        try:
            self._enter(left.problem, [those[kept] for those, kept in zip(self.states, left.kept, strict=True)])
        except InfeasibleError:
            return self._only_dropped(best)
        return _better(best, found)

    def _only_dropped(self, best: Frontier) -> Frontier:
        """What is found where nothing else is left."""
        assert self.dropped is not None
        return _better(best, _settled(self.dropped))

    def _frontier(self, mem: Ints, time_ns: Ints, reduced: States, eliminations: Mapping[str, int]) -> Frontier:
        """With the given problem's states."""
        columns = [those[reduced[:, node]] for node, those in enumerate(self.states)]
        strategies = np.stack(columns, axis=1).astype(np.int32)
        return Frontier(mem, time_ns, strategies, eliminations, self.algorithm)

    def _round(self, max_cells: int, has_bound: bool = True) -> Frontier:
        """One solution; where that is not exact for its states with a bound, unless that is to come from elsewhere."""
        solved = self._solver(max_cells).solve(self.graph.copy())
        result = solved.tables[()]
        reduced = unroll(result.trace, result.n_points, self.n_nodes, solved.fixed)
        found = self._frontier(result.mem, result.time, reduced, solved.counts)
        if solved.counts["heuristic"]:
            found = replace(found, bound=self._relaxation(max_cells) if has_bound else _NO_BOUND)
        elif any(result.slack):
            found = replace(found, bound=LowerBound.within(result.mem, result.time, result.slack, "thinning"))
        return _settled(found if self.dropped is None else _together(found, self.dropped))

    def _relaxation(self, max_cells: int) -> LowerBound:
        relaxed = self._solver(max_cells).relax(self.graph.copy()).tables[()]
        return LowerBound.within(relaxed.mem, relaxed.time, relaxed.slack, "relaxation")

    def _solver(self, max_cells: int) -> Solver:
        return Solver(self.algorithm == "ft-ldp", max_cells, self._report)

    def _report(self, graph: TableGraph) -> None:
        if time.monotonic() > self.deadline:
            raise _TimeIsUp
        if self.progress is not None:
            self.progress(max(self.n_nodes - len(graph.variables), 0), self.n_nodes)


def _better(one: Frontier, other: Frontier) -> Frontier:
    """The points and the lower bound that two searches give together."""
    if one.bound is None or other.bound is None:
        return one if one.bound is None else other
    mem, time_ns = np.concatenate([one.mem_bytes, other.mem_bytes]), np.concatenate([one.time_ns, other.time_ns])
    kept = reduce_unsorted(mem, time_ns)
    strategies = np.concatenate([one.strategies, other.strategies])[kept]
    bound = one.bound.tightened(other.bound)
    return _settled(Frontier(mem[kept], time_ns[kept], strategies, other.eliminations, other.algorithm, bound))


def _together(kept: Frontier, dropped: Frontier) -> Frontier:
    """The frontier of all strategies, from those of the ones that are left and of the ones that are not."""
    mem, time_ns = np.concatenate([kept.mem_bytes, dropped.mem_bytes]), np.concatenate([kept.time_ns, dropped.time_ns])
    which = reduce_unsorted(mem, time_ns)
    strategies = np.concatenate([kept.strategies, dropped.strategies])[which]
    assert dropped.bound is not None
    bound = (kept.bound or LowerBound(kept.mem_bytes, kept.time_ns, "pruning")).loosened(dropped.bound)
    return replace(kept, mem_bytes=mem[which], time_ns=time_ns[which], strategies=strategies, bound=bound)


def _settled(found: Frontier) -> Frontier:
    """Without its bound if that is no lower than the frontier, which is exact then."""
    return replace(found, bound=None) if found.worst_gap == 0 else found


def _initialise(problem: Problem, thinning: Thinning) -> TableGraph:
    """The problem as tables (Algorithm 2, line 3)."""
    names, sizes = tuple(node.name for node in problem.nodes), tuple(node.n_states for node in problem.nodes)
    graph = TableGraph(names, sizes, thinning)
    graph.add(unit_table())
    for index, node in enumerate(problem.nodes):
        graph.add(dense_table((index,), node.mem_bytes, node.time_ns))
    for edge in problem.edges:
        mem, time, scope = edge.mem_bytes, edge.time_ns, (edge.source, edge.target)
        if edge.source > edge.target:
            mem, time, scope = mem.T, time.T, (edge.target, edge.source)
        split = split_sum(mem), split_sum(time)
        if split[0] is not None and split[1] is not None:
            for variable, part_mem, part_time in zip(scope, split[0], split[1], strict=True):
                graph.add(dense_table((variable,), part_mem, part_time))
        else:
            graph.add(dense_table(scope, mem, time))
    return graph
