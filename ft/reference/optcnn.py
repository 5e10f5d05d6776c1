"""Find the strategy of least time by OptCNN's search (Jia, Lin, Qi and Aiken, 2018): node and edge elimination.

Memory plays no part, so tables hold numbers and not frontiers, in the algebra (min, +). With o the own time of a node j,

    node elimination   time(i, k) = min over states j of  o(j) + time(i, j) + time(j, k)     (Equation 2)   _eliminate
    edge elimination   time(i, k) = time_1(i, k) + time_2(i, k)                              (Equation 3)   _join

are done until neither applies (Algorithm 1, lines 6 to 13). Going back, each eliminated node takes its best state for those
that its neighbours took (lines 15 to 23). Two things differ from the paper, without changing the result:

- The direction of an edge doesn't matter, and a node with one edge only (a parameter, which OptCNN has no nodes for) is
  eliminated into its neighbour: time(i) = o(i) + min over j of  o(j) + time(i, j).
- What is left is not enumerated (line 14): variables are eliminated in tables of as many dimensions as it takes
  (:mod:`..weighted.weighted_search`). Where these would have too many cells, that gives a strategy and lower bounds by state
  and by pair of states. What can't be part of a faster strategy is dropped, and the rest is searched again, with more cells
  (:func:`_least_of_rest`). Where finally nothing more can be dropped, the result is a strategy and a bound.

Complexity: O(E R K C) for E edges of K states, of which R rows and C columns differ; the paper's O(E K^3) where all do.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from ..frontier import Frontier
from ..lower_bound import LowerBound
from ..problem import INFEASIBLE, Edge, InfeasibleError, Ints, Node, Problem
from ..weighted.min_plus import Floats
from ..weighted.weighted_search import MAX_CELLS, WeightedSearch

Pair = tuple[int, int]
TIME_ONLY = (0.0, 1.0)
MOST_ROUNDS = 20
FIRST_CELLS, MORE_CELLS = 1 << 14, 4


def least_time(
    problem: Problem, progress: Callable[[int, int], None] | None = None, max_cells: int = MAX_CELLS
) -> Frontier:
    """Return a frontier of one point, that of least time; its ``bound`` is set if that could not be proven.

    Args:
        progress: called with (nodes eliminated, nodes) now and then.
        max_cells: the most cells of a table when variables are eliminated from what node and edge elimination leave.

    Raises:
        InfeasibleError: no strategy is allowed.
    """
    graph = _Graph.of(problem)
    graph.reduce(progress)
    states, bound = graph.solve_rest(max_cells)
    graph.undo(states)
    strategy = np.array([states[node] for node in range(len(problem.nodes))], np.int32)
    mem_bytes, time_ns = problem.cost(strategy.tolist())
    lower = None
    if bound < time_ns:
        lower = LowerBound(np.array([mem_bytes], np.int64), np.array([bound], np.int64), "variable elimination")
    one_mem, one_time = np.array([mem_bytes], np.int64), np.array([time_ns], np.int64)
    return Frontier(one_mem, one_time, strategy[None], graph.counts, "optcnn", lower)


@dataclass(frozen=True, slots=True, eq=False)
class _Eliminated:
    """A node that was eliminated.

    Attributes:
        own: its own times, [own states].
        edges: its neighbours, each with the times of the edge between them, [own states, neighbour's states].
    """

    node: int
    own: Ints
    edges: tuple[tuple[int, Ints], ...]


@dataclass
class _Graph:
    """The nodes and edges that are not yet eliminated.

    Attributes:
        own: each node's own times.
        edges: one table for each two neighbours, by (lower, higher) node.
        neighbours: each node's neighbours.
        gone: the eliminated nodes, in order.
        counts: eliminations done, by kind.
    """

    own: dict[int, Ints]
    edges: dict[Pair, Ints] = field(default_factory=dict)
    neighbours: dict[int, set[int]] = field(default_factory=dict)
    gone: list[_Eliminated] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=lambda: {"node": 0, "edge": 0})

    @classmethod
    def of(cls, problem: Problem) -> _Graph:
        """Return the graph of a problem's times; they are INFEASIBLE where the time or the memory is."""
        graph = cls({n: _allowed(node.mem_bytes, node.time_ns) for n, node in enumerate(problem.nodes)})
        graph.neighbours = {n: set() for n in graph.own}
        for edge in problem.edges:
            graph._join(edge.source, edge.target, _allowed(edge.mem_bytes, edge.time_ns))
        return graph

    def reduce(self, progress: Callable[[int, int], None] | None) -> None:
        """Do node and edge elimination until neither applies."""
        total = len(self.own)
        pending = sorted(self.own, reverse=True)
        while pending:
            node = pending.pop()
            if node in self.own and 0 < len(self.neighbours[node]) <= 2:
                touched = sorted(self.neighbours[node])
                self._eliminate(node)
                pending += touched
                if progress is not None:
                    progress(total - len(self.own), total)

    def solve_rest(self, max_cells: int) -> tuple[dict[int, int], int]:
        """Return the states of the nodes that are left, and a time that no strategy is below."""
        left = sorted(self.own)
        place = {node: i for i, node in enumerate(left)}
        nodes = [Node(str(node), _free(self.own[node]), self.own[node]) for node in left]
        edges = [Edge(place[a], place[b], _free(table), table) for (a, b), table in self.edges.items()]
        states, bound = _least_of_rest(Problem(tuple(nodes), tuple(edges)), max_cells)
        return dict(zip(left, states, strict=True)), bound

    def undo(self, states: dict[int, int]) -> None:
        """Add the best state of each eliminated node to ``states``, the last eliminated first."""
        for each in reversed(self.gone):
            costs = each.own
            for neighbour, table in each.edges:
                costs = _plus(costs, table[:, states[neighbour]])
            states[each.node] = int(np.argmin(costs))

    def _eliminate(self, node: int) -> None:
        """Eliminate a node with one or two neighbours."""
        own = self.own.pop(node)
        edges = tuple((other, self._remove(node, other)) for other in sorted(self.neighbours.pop(node)))
        self.gone.append(_Eliminated(node, own, edges))
        self.counts["node"] += 1
        first, to_first = edges[0]
        if len(edges) == 1:
            self.own[first] = _plus(self.own[first], _plus(own[:, None], to_first).min(axis=0))
            return
        second, to_second = edges[1]
        self._join(first, second, _product(_plus(own[:, None], to_first).T, to_second))

    def _join(self, one: int, other: int, table: Ints) -> None:
        """Add an edge; if there is one already, that is edge elimination."""
        key, table = ((one, other), table) if one < other else ((other, one), table.T)
        if key in self.edges:
            self.edges[key] = _plus(self.edges[key], table)
            self.counts["edge"] += 1
            return
        self.edges[key] = table
        self.neighbours[one].add(other)
        self.neighbours[other].add(one)

    def _remove(self, node: int, other: int) -> Ints:
        """Remove an edge and return its times: [states of node, states of other]."""
        self.neighbours[other].discard(node)
        return self.edges.pop((node, other)) if node < other else self.edges.pop((other, node)).T


def _least_of_rest(problem: Problem, max_cells: int) -> tuple[list[int], int]:
    """Return a strategy by variable elimination, and a time that no strategy is below.

    That time is the strategy's own if it is proven the fastest.
    """
    best: list[int] = []
    best_time, bound, cells = INFEASIBLE, 0, min(FIRST_CELLS, max_cells)
    kept = [np.arange(node.n_states, dtype=np.int64) for node in problem.nodes]
    for _ in range(MOST_ROUNDS):
        try:
            found = WeightedSearch(problem, cells).marginals(TIME_ONLY, with_edges=True)
        except InfeasibleError:
            if best:
                return best, best_time  # nothing else is left
            raise
        if found.least.strategy is not None and found.least.time_ns < best_time:
            best = [int(those[state]) for those, state in zip(kept, found.least.strategy, strict=True)]
            best_time = found.least.time_ns
        is_last = cells >= max_cells
        cells *= MORE_CELLS
        if not best:  # the choices that the buckets of a too large table make don't go together
            continue
        cells = min(cells, max_cells)
        bound = math.ceil(found.least.bound)
        faster = [np.flatnonzero(marginal < best_time) for marginal in found.nodes]
        if bound >= best_time or not all(map(len, faster)):
            return best, best_time
        edges = [_without_slow(edge, marginal, best_time) for edge, marginal in zip(problem.edges, found.edges, strict=True)]
        is_all = all(len(a) == len(b) for a, b in zip(faster, kept, strict=True)) and edges == list(problem.edges)
        if is_all and is_last:
            break
        problem = Problem(problem.nodes, tuple(edges)).restricted(faster)
        kept = [those[states] for those, states in zip(kept, faster, strict=True)]
    return best, bound


def _without_slow(edge: Edge, marginal: Floats | None, time_ns: int) -> Edge:
    """Return an edge without the pairs that no faster strategy has; the edge itself if there is no such pair."""
    if marginal is None:
        return edge
    slow = (marginal >= time_ns) & (edge.time_ns < INFEASIBLE)
    if not slow.any():
        return edge
    return Edge(edge.source, edge.target, edge.mem_bytes, np.where(slow, INFEASIBLE, edge.time_ns))


def _free(time: Ints) -> Ints:
    """Return costs of no memory: zeros of the same shape, of which only one is stored."""
    result: Ints = np.broadcast_to(np.int64(0), time.shape)
    return result


def _allowed(mem: Ints, time: Ints) -> Ints:
    """Return the times, INFEASIBLE where the time or the memory is."""
    result: Ints = np.where(mem >= INFEASIBLE, INFEASIBLE, np.minimum(time, INFEASIBLE))
    return result


def _plus(one: Ints, other: Ints) -> Ints:
    """Return a sum that is limited to INFEASIBLE, so that it can't overflow."""
    result: Ints = np.minimum(one + other, INFEASIBLE)
    return result


def _product(left: Ints, right: Ints) -> Ints:
    """Return min over j of left[i, j] + right[j, k].

    It is computed once for rows of ``left``, and columns of ``right``, that are equal.
    """
    rows, row_of = np.unique(left, axis=0, return_inverse=True)
    columns, column_of = np.unique(right.T, axis=0, return_inverse=True)
    result = np.full((len(rows), len(columns)), INFEASIBLE, np.int64)
    for j in range(rows.shape[1]):
        np.minimum(result, rows[:, j, None] + columns[None, :, j], out=result)
    expanded: Ints = result[np.ix_(row_of.ravel(), column_of.ravel())]
    return expanded
