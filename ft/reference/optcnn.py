"""Find the strategy of least time, as OptCNN's search does (Jia, Lin, Qi and Aiken, 2018).

Memory plays no part, so tables hold numbers and not frontiers, in the algebra (min, +). With o the own time of a node j,

    node elimination   time(i, k) = min over states j of  o(j) + time(i, j) + time(j, k)     (Equation 2)
    edge elimination   time(i, k) = time_1(i, k) + time_2(i, k)                              (Equation 3)

are done until neither applies (Algorithm 1, lines 6 to 13). Going back, each eliminated node takes its best state for those
that its neighbours took (lines 15 to 23). Both are cases of variable elimination (:mod:`..weighted.weighted_search`), whose
tables have as many dimensions as it takes, so what is left is not enumerated (line 14). Where tables would have too many
cells, that gives a strategy and lower bounds by state. What can't be part of a faster strategy is
dropped, and the rest is searched again, with more cells. Where finally nothing more can be dropped, the result is a strategy
and a bound.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import numpy as np

from ..frontier import Frontier
from ..interning import interned
from ..lower_bound import LowerBound
from ..problem import INFEASIBLE, Edge, InfeasibleError, Ints, Node, Problem
from ..weighted.weighted_search import MAX_CELLS, WeightedSearch

TIME_ONLY = (0.0, 1.0)
MOST_ROUNDS = 20
FIRST_CELLS, MORE_CELLS = 1 << 14, 4


def least_time(problem: Problem, progress: Callable[[int, int], None] | None = None, max_cells: int = MAX_CELLS) -> Frontier:
    """Return a frontier of one point, that of least time; its ``bound`` is set if that could not be proven.

    Args:
        progress: called with (rounds done, rounds at most).
        max_cells: the most cells of a table.

    Raises:
        InfeasibleError: no strategy is allowed.
    """
    nodes = tuple(Node(node.name, *_time_alone(node)) for node in problem.nodes)
    edges = (Edge(edge.source, edge.target, *_time_alone(edge)) for edge in problem.edges)
    counts: Counter[str] = Counter()
    problem_of_time = interned(Problem(nodes, tuple(edges)))  # layers that are alike are looked at once
    strategy, bound = _fastest(problem_of_time, max_cells, counts, progress or (lambda done, most: None))
    mem_bytes, time_ns = (np.array([cost], np.int64) for cost in problem.cost(strategy))
    lower = LowerBound(mem_bytes, np.array([bound], np.int64), "variable elimination") if bound < time_ns[0] else None
    return Frontier(mem_bytes, time_ns, np.array([strategy], np.int32), counts, "optcnn", lower)


def _fastest(
    problem: Problem, max_cells: int, counts: Counter[str], progress: Callable[[int, int], None]
) -> tuple[list[int], int]:
    """Return a strategy by variable elimination, and a time that no strategy is below; count the eliminations.

    That time is the strategy's own if it is proven the fastest.
    """
    best: list[int] = []
    best_time, bound, cells = INFEASIBLE, 0, min(FIRST_CELLS, max_cells)
    subsets = [np.arange(node.n_states, dtype=np.int64) for node in problem.nodes]
    for number in range(MOST_ROUNDS):
        search = WeightedSearch(problem, cells)
        counts.update("branch" if len(bucket.shape) > 2 else "node" for step in search.plan.steps for bucket in step.buckets)
        progress(number, MOST_ROUNDS)
        try:
            marginals = search.marginals(TIME_ONLY)
        except InfeasibleError:
            if best:
                return best, best_time  # nothing else is left
            raise
        if marginals.least.strategy is not None and marginals.least.time_ns < best_time:
            best = [int(subset[state]) for subset, state in zip(subsets, marginals.least.strategy, strict=True)]
            best_time = marginals.least.time_ns
        is_last = cells >= max_cells
        cells *= MORE_CELLS
        if not best:  # the choices that the buckets of a too large table make don't go together
            continue
        cells = min(cells, max_cells)
        bound = math.ceil(marginals.least.bound)
        faster = [np.flatnonzero(marginal < best_time) for marginal in marginals.nodes]
        if bound >= best_time or not all(map(len, faster)):
            return best, best_time
        if is_last and all(len(a) == len(b) for a, b in zip(faster, subsets, strict=True)):
            break
        problem = problem.restricted(faster)
        subsets = [subset[states] for subset, states in zip(subsets, faster, strict=True)]
    return best, bound


def _time_alone(part: Node | Edge) -> tuple[Ints, Ints]:
    """Return no memory, zeros of which only one is stored, and the times, INFEASIBLE where the time or the memory is."""
    time_ns = np.where(part.mem_bytes >= INFEASIBLE, INFEASIBLE, np.minimum(part.time_ns, INFEASIBLE))
    return np.broadcast_to(np.int64(0), time_ns.shape), time_ns
