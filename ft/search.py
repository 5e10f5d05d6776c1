"""Frontier-Tracking: ``search(problem, algorithm) -> Frontier`` (Algorithm 2).

| algorithm | steps | use |
|---|---|---|
| ``ft-ldp`` | mark the linear graph, eliminate the rest, LDP, unroll | the default |
| ``ft-elimination`` | eliminate down to nothing, unroll | for comparison with the paper's |
| ``exhaustive`` | try every strategy | small problems, tests |

All three give the same points, to the byte and the nanosecond, unless heuristic elimination was needed: where the next
exact elimination would make a table of more than ``max_table_cells`` cells. It is counted, and the result then says
that it is not exact.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .dominance import states_that_matter
from .elimination import Effort, TableGraph
from .exhaustive import exhaustive
from .frontier import Frontier
from .ldp import linear_dynamic_programming
from .linear import components, cut_vertices, linear_graph
from .problem import INFEASIBLE, InfeasibleError, Ints, Problem
from .table import dense_table, unit_table
from .unroll import unroll

Progress = Callable[[int, int], None]
ALGORITHMS = ("ft-ldp", "ft-elimination", "exhaustive")
MAX_TABLE_CELLS = 1 << 18


def search(
    problem: Problem,
    algorithm: str = "ft-ldp",
    progress: Progress | None = None,
    max_table_cells: int = MAX_TABLE_CELLS,
) -> Frontier:
    """The frontier of a problem, deterministic to the last strategy.

    Args:
        problem: what to search.
        algorithm: one of ALGORITHMS.
        progress: called with (done, total) now and then.
        max_table_cells: exact elimination may make tables up to this many cells; beyond it, a variable with many
            neighbours is given one state (heuristic elimination, not exact). Enumeration has no such limit.

    Raises:
        ValueError: unknown algorithm, or too many strategies to enumerate.
        InfeasibleError: no strategy is allowed.
    """
    if algorithm not in ALGORITHMS:
        raise ValueError(f"unknown algorithm {algorithm!r}; choose one of {', '.join(ALGORITHMS)}")
    if max_table_cells < 1:
        raise ValueError(f"max_table_cells must be at least 1, got {max_table_cells}")
    if algorithm == "exhaustive":
        return exhaustive(problem, progress)
    states = states_that_matter(problem)
    graph = _initialise(problem, states)
    solved = _Solver(algorithm == "ft-ldp", max_table_cells, len(problem.nodes), progress).solve(graph)
    result = solved.tables[()]
    reduced = unroll(result.trace, result.n_points, len(problem.nodes), solved.fixed)
    strategies = np.empty_like(reduced)
    for node, kept in enumerate(states):
        strategies[:, node] = kept[reduced[:, node]]
    exact = solved.counts["heuristic"] == 0
    return Frontier(result.mem, result.time, strategies, exact, solved.counts, algorithm)


def _initialise(problem: Problem, states: tuple[Ints, ...]) -> TableGraph:
    """The problem as tables, over the states that matter (Algorithm 2, line 3)."""
    graph = TableGraph(tuple(node.name for node in problem.nodes), tuple(len(kept) for kept in states))
    graph.add(unit_table())
    for index, node in enumerate(problem.nodes):
        graph.add(dense_table((index,), node.mem_bytes[states[index]], node.time_ns[states[index]]))
    for edge in problem.edges:
        kept = np.ix_(states[edge.source], states[edge.target])
        mem, time, scope = edge.mem_bytes[kept], edge.time_ns[kept], (edge.source, edge.target)
        if edge.source > edge.target:
            mem, time, scope = mem.T, time.T, (edge.target, edge.source)
        split = _split_sum(mem), _split_sum(time)
        if split[0] is not None and split[1] is not None:
            for variable, part_mem, part_time in zip(scope, split[0], split[1], strict=True):
                graph.add(dense_table((variable,), part_mem, part_time))
        else:
            graph.add(dense_table(scope, mem, time))
    return graph


def _split_sum(costs: Ints) -> tuple[Ints, Ints] | None:
    """``(f, g)`` with ``costs[i, j] = f[i] + g[j]``, both non-negative, if there is such: the ends do not interact.

    That holds for every edge to a node with a single state, and for edges that are free.
    """
    if int(costs.max()) >= INFEASIBLE:
        return None
    column = int(np.argmin(costs[0]))
    of_source, of_target = costs[:, column], costs[0] - costs[0, column]
    return (of_source, of_target) if (of_source[:, None] + of_target == costs).all() else None


class _Solver:
    """Algorithm 2 without its first and last steps."""

    def __init__(self, use_ldp: bool, max_table_cells: int, n_variables: int, progress: Progress | None) -> None:
        self.use_ldp = use_ldp
        self.max_table_cells = max_table_cells
        self.n_variables = n_variables
        self.progress = progress

    def solve(self, graph: TableGraph) -> TableGraph:
        """Reduce the graph to one table that depends on nothing; ``graph`` is used up.

        Heuristic elimination may leave nothing that is allowed where a different state would: the next is tried then.
        """
        blocked = self._eliminate_exactly(graph)
        if blocked is None:
            if self.use_ldp:
                for component in components(graph):
                    line = linear_graph(graph, component)
                    linear_dynamic_programming(graph, line, lambda: self._report(graph))
            return graph
        variable = max(graph.variables, key=lambda v: (len(graph.neighbours(v)), -v))
        failure: InfeasibleError | None = None
        for state in graph.states_by_promise(variable):
            attempt = graph.copy()
            try:
                attempt.condition(variable, state)
                self._report(attempt)
                return self.solve(attempt)
            except InfeasibleError as error:
                failure = failure or error
        raise failure or AssertionError(f"{graph.names[variable]!r} has no state left")

    def _eliminate_exactly(self, graph: TableGraph) -> Effort | None:
        """Eliminate while it is cheap: all variables, or with LDP all that are not marked.

        Returns:
            None when done, else the elimination that would take too much.
        """
        for variable in graph.variables:
            if graph.sizes[variable] == 1:
                graph.condition(variable, 0)
                self._report(graph)
        while True:
            marked = self._marked(graph)
            held = marked | cut_vertices(graph) if self.use_ldp else marked
            free = [variable for variable in graph.variables if variable not in held]
            if not free:
                return None  # side branches end in variables that are no cut vertices: only marked ones are left
            blocked = self._eliminate_among(graph, set(free))
            if blocked is not None:
                return blocked

    def _marked(self, graph: TableGraph) -> set[int]:
        if not self.use_ldp:
            return set()
        return {variable for component in components(graph) for variable in linear_graph(graph, component)}

    def _eliminate_among(self, graph: TableGraph, free: set[int]) -> Effort | None:
        while free:
            effort = graph.cheapest(free)
            assert effort is not None
            if effort.cells > self.max_table_cells:
                return effort
            graph.eliminate(effort.variable)
            free.remove(effort.variable)
            self._report(graph)
        return None

    def _report(self, graph: TableGraph) -> None:
        if self.progress is not None:
            self.progress(self.n_variables - len(graph.variables), self.n_variables)
