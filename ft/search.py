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
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from .bound import LowerBound
from .budget import Budget
from .dominance import states_that_matter
from .elimination import TableGraph
from .exhaustive import exhaustive
from .frontier import Frontier
from .pareto import reduce_unsorted
from .problem import Ints, Problem
from .replaceable import without_replaceable
from .separable import split_sum
from .solver import Solver
from .table import dense_table, unit_table
from .trim import Thinning
from .unroll import unroll

Progress = Callable[[int, int], None]
ALGORITHMS = ("ft-ldp", "ft-elimination", "exhaustive")
_MORE_CELLS = 4


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
    """One search: rounds with more and more cells, until one is exact, close enough, or time is up."""

    def __init__(self, problem: Problem, algorithm: str, progress: Progress | None, budget: Budget) -> None:
        self.algorithm = algorithm
        self.progress = progress
        self.budget = budget
        self.start, self.deadline = time.monotonic(), math.inf
        self.n_nodes = len(problem.nodes)
        states_that_matter(problem)  # names what is not allowed, as the problem was given
        reduced = without_replaceable(problem)
        self.states = states_that_matter(reduced)
        self.graph = _initialise(reduced, self.states, Thinning.of(problem, budget.epsilon, budget.max_points))

    def run(self) -> Frontier:
        max_cells = self.budget.max_table_cells
        best = self._round(max_cells)
        while not best.exact and best.worst_gap > self.budget.gap and best.eliminations["heuristic"]:
            self.deadline = self.start + self.budget.seconds
            max_cells *= _MORE_CELLS
            try:
                best = _better(best, self._round(max_cells))
            except _TimeIsUp:
                break
        return best

    def _round(self, max_cells: int) -> Frontier:
        solver = Solver(self.algorithm == "ft-ldp", max_cells, self._report)
        solved = solver.solve(self.graph.copy())
        result = solved.tables[()]
        reduced = unroll(result.trace, result.n_points, self.n_nodes, solved.fixed)
        strategies = np.empty_like(reduced)
        for node, kept in enumerate(self.states):
            strategies[:, node] = kept[reduced[:, node]]
        bound = None
        if solved.counts["heuristic"]:
            relaxed = solver.relax(self.graph.copy()).tables[()]
            bound = LowerBound.within(relaxed.mem, relaxed.time, relaxed.slack, "relaxation")
        elif any(result.slack):
            bound = LowerBound.within(result.mem, result.time, result.slack, "thinning")
        return _settled(Frontier(result.mem, result.time, strategies, solved.counts, self.algorithm, bound))

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


def _settled(found: Frontier) -> Frontier:
    """Without its bound if that is no lower than the frontier, which is exact then."""
    return replace(found, bound=None) if found.worst_gap == 0 else found


def _initialise(problem: Problem, states: tuple[Ints, ...], thinning: Thinning) -> TableGraph:
    """The problem as tables, over the states that matter (Algorithm 2, line 3)."""
    names, sizes = tuple(node.name for node in problem.nodes), tuple(len(kept) for kept in states)
    graph = TableGraph(names, sizes, thinning)
    graph.add(unit_table())
    for index, node in enumerate(problem.nodes):
        graph.add(dense_table((index,), node.mem_bytes[states[index]], node.time_ns[states[index]]))
    for edge in problem.edges:
        kept = np.ix_(states[edge.source], states[edge.target])
        mem, time, scope = edge.mem_bytes[kept], edge.time_ns[kept], (edge.source, edge.target)
        if edge.source > edge.target:
            mem, time, scope = mem.T, time.T, (edge.target, edge.source)
        split = split_sum(mem), split_sum(time)
        if split[0] is not None and split[1] is not None:
            for variable, part_mem, part_time in zip(scope, split[0], split[1], strict=True):
                graph.add(dense_table((variable,), part_mem, part_time))
        else:
            graph.add(dense_table(scope, mem, time))
    return graph
