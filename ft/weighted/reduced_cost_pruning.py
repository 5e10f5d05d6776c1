"""Drop states, and pairs of states, that cannot be on the frontier, by weighted searches. Exact, or within a proven factor.

A strategy with state s of node v costs at least M_w(v, s) for all weights w (min-marginals, :mod:`.weighted_search`). A set
U of real strategies is known: those that the weighted searches found, and others. Between two neighbouring points of U, by
memory, lies a *corner* c: the largest memory and time of a strategy that neither point dominates. They are one below the
memory of the one point and one below the time of the other. A strategy that no point of U weakly dominates costs at most as
much as some corner, in both costs. So s matters only if

    w . c >= M_w(v, s)  for all weights w, for some corner c,

and otherwise every strategy with s is weakly dominated by a known one. The states that are left, together with U, have the
same frontier. With epsilon > 0 the points of U are divided by 1 + epsilon before corners are formed: then every strategy
that is dropped is within that factor of a known one. The same holds for the pairs of states of an edge.

A few lines (:mod:`.lagrangian`) come first, and their weights drop states only. What they leave is smaller, so that the
further lines take less time. (These hold for all strategies, as the dropped ones are bounded by U.) Weights are used in the
order in which :mod:`.lagrangian` chose them, most revealing first. Min-marginals of what is left are higher than those of
the given problem, so each time that many states are gone the search is planned again.

For each state, the corners that are left are bits of integers, kept over all weights: w . c is sorted, and the position of
M_w tells which corners are left. Neighbouring corners are joined (at the larger of both costs) where there are more than
MAX_CORNERS.

Complexity: min-marginals for each weight, and O(K log C) for each of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ..lower_bound import LowerBound
from ..pareto import reduce_unsorted
from ..problem import INFEASIBLE, Edge, InfeasibleError, Ints, Node, Problem
from .lagrangian import Found, Hull, lagrangian
from .min_plus import Floats
from .weighted_search import MAX_CELLS, TimeIsUpError, WeightedSearch

N_WEIGHTS = 24
N_FIRST_LINES = 9
MAX_CORNERS = 256
_WORD = 64
_WORTH_PLANNING = 0.9
"""The share of states or pairs that may be left for it to pay to plan the next weighted search again."""

Bits = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True, eq=False)
class Pruned:
    """A problem after pruning, and what is known of its frontier.

    Attributes:
        problem: the problem with the kept states; pairs that are dropped are at INFEASIBLE. None if the known strategies
            dominate all others.
        kept: for each node the states that are left, ascending.
        found: strategies of the given problem.
        bound: the Lagrangian lower bound of all strategies.
        of_dropped: a lower bound of the strategies that are dropped.
        n_pairs: allowed pairs of states of all edges, before and after.
    """

    problem: Problem | None
    kept: tuple[Ints, ...]
    found: Found
    bound: LowerBound
    of_dropped: LowerBound
    n_pairs: tuple[int, int]


def pruned(
    problem: Problem,
    epsilon: float = 0.0,
    n_weights: int = N_WEIGHTS,
    deadline: float = math.inf,
    known: Found | None = None,
    max_cells: int = MAX_CELLS,
) -> Pruned:
    """Drop what cannot be on the frontier: the frontiers of what is left and of what is found, united, are the problem's.

    Args:
        epsilon: also drop what is within this factor of what is found, in both costs.
        n_weights: number of weights for which min-marginals are looked at.
        deadline: by ``time.monotonic``; less is dropped if it passes.
        known: real strategies that are known before.
        max_cells: the most cells of a table of a weighted search; see :class:`.WeightedSearch`.

    Raises:
        InfeasibleError: no strategy is allowed.
        TimeIsUpError: the deadline passed before there was any bound.
    """
    few = lagrangian(WeightedSearch(problem, max_cells, deadline), N_FIRST_LINES, known)
    found = few.found if known is None else few.found.with_others(known)
    first = _Pruning(problem, few, found, epsilon).run(min(n_weights, N_FIRST_LINES), with_pairs=False)
    if first.problem is None or len(few.lines) < N_FIRST_LINES:
        return first
    try:
        search = WeightedSearch(first.problem, max_cells, deadline)
        hull = lagrangian(search, known=found, dropped=first.of_dropped)
    except TimeIsUpError:
        return first
    except InfeasibleError:
        return _nothing_left(first)
    second = _Pruning(first.problem, hull, found.with_others(hull.found.as_given(first.kept)), epsilon).run(
        n_weights, with_pairs=True
    )
    kept = [of_given[those] for of_given, those in zip(first.kept, second.kept, strict=True)]
    bound = first.bound.tightened(second.bound)
    return replace(second, kept=tuple(kept), bound=bound, n_pairs=(first.n_pairs[0], second.n_pairs[1]))


def _nothing_left(left: Pruned) -> Pruned:
    """Return the result for a problem of which every state can be dropped."""
    kept = tuple(np.empty(0, np.int64) for _ in left.kept)
    return replace(left, problem=None, kept=kept, n_pairs=(left.n_pairs[0], 0))


class _Pruning:
    """The pruning of one problem by the lines of one hull.

    Attributes:
        corners: memory and time of the corners.
        of_nodes: for each node, for each state, the corners that are left, as bits.
        of_edges: for each edge, for each pair of states, the corners that are left, as bits.
    """

    def __init__(self, problem: Problem, hull: Hull, found: Found, epsilon: float) -> None:
        self.problem, self.hull, self.found = problem, hull, found
        self.kept: list[Ints] = [np.arange(node.n_states, dtype=np.int64) for node in problem.nodes]
        scaled = scaled_costs(found, epsilon)
        self.of_dropped = LowerBound(*scaled, "pruning")
        self.corners = _live_corners(hull, *scaled)
        n_words = -(-len(self.corners[0]) // _WORD)
        full = np.full(n_words, ~np.uint64(0))
        self.of_nodes = [np.tile(full, (node.n_states, 1)) for node in problem.nodes]
        self.of_edges = [np.tile(full, (*edge.mem_bytes.shape, 1)) for edge in problem.edges]
        self.n_pairs = _n_pairs(problem)

    def run(self, n_weights: int, with_pairs: bool) -> Pruned:
        n_before = self.n_pairs
        try:
            self._look_with(n_weights, with_pairs)
            nothing_is_left = False
        except InfeasibleError:
            nothing_is_left = True
        except TimeIsUpError:
            nothing_is_left = not all(bits.any() for bits in self.of_nodes)
        if not nothing_is_left:
            self._restrict(worth=1.0)
        n_pairs = n_before, self.n_pairs
        left = Pruned(self.problem, tuple(self.kept), self.found, self.hull.bound, self.of_dropped, n_pairs)
        return _nothing_left(left) if nothing_is_left else left

    def _look_with(self, n_weights: int, with_pairs: bool) -> None:
        """Cross out corners and restrict the problem, weight by weight.

        Raises:
            InfeasibleError: nothing is left.
            TimeIsUpError: the deadline has passed.
        """
        if not len(self.corners[0]):
            raise InfeasibleError("the known strategies dominate all others")
        search = self.hull.search
        for result in self.hull.results[:n_weights]:
            self._look(search, (int(result.weights[0]), int(result.weights[1])), with_pairs)
            if not all(bits.any() for bits in self.of_nodes):
                raise InfeasibleError("the known strategies dominate all others")
            if self._restrict():
                search = WeightedSearch(self.problem, search.plan.max_cells, search.deadline)

    def _look(self, search: WeightedSearch, weights: tuple[int, int], with_pairs: bool) -> None:
        """Cross out the corners that, by these weights, a strategy with a state or a pair of states can't be below."""
        marginals = search.marginals(weights, with_edges=with_pairs)
        thresholds = weights[0] * self.corners[0] + weights[1] * self.corners[1]
        order = np.argsort(thresholds)
        masks = _masks_from(order, self.of_nodes[0].shape[-1])
        ordered = thresholds[order]
        for bits, marginal in zip(self.of_nodes, marginals.nodes, strict=True):
            bits &= masks[np.searchsorted(ordered, marginal)]
        if not with_pairs:
            return
        for edge, pair_bits, of_pairs in zip(self.problem.edges, self.of_edges, marginals.edges, strict=True):
            if of_pairs is not None:
                pair_bits &= masks[np.searchsorted(ordered, of_pairs)]
            pair_bits &= self.of_nodes[edge.source][:, None] & self.of_nodes[edge.target]

    def _restrict(self, worth: float = _WORTH_PLANNING) -> bool:
        """Leave out states and pairs that have no corner left, if they are many; return whether they were."""
        left = [np.flatnonzero(bits.any(axis=1)) for bits in self.of_nodes]
        n_left = sum(map(len, left))
        n_pairs = sum(int(bits.any(axis=2).sum()) for bits in self.of_edges)
        if n_left > worth * sum(map(len, self.kept)) and n_pairs > worth * self.n_pairs:
            return False
        edges = []
        for index, edge in enumerate(self.problem.edges):
            block = np.ix_(left[edge.source], left[edge.target])
            bits = self.of_edges[index][block]
            gone = ~bits.any(axis=2)
            mem, time_ns = (np.where(gone, INFEASIBLE, costs[block]) for costs in (edge.mem_bytes, edge.time_ns))
            edges.append(Edge(edge.source, edge.target, mem, time_ns))
            self.of_edges[index] = bits
        nodes = [Node(n.name, n.mem_bytes[s], n.time_ns[s]) for n, s in zip(self.problem.nodes, left, strict=True)]
        self.problem = Problem(tuple(nodes), tuple(edges))
        self.kept = [kept[s] for kept, s in zip(self.kept, left, strict=True)]
        self.of_nodes = [bits[s] for bits, s in zip(self.of_nodes, left, strict=True)]
        self.n_pairs = _n_pairs(self.problem)
        return True


def _n_pairs(problem: Problem) -> int:
    """Return the number of allowed pairs of states of all edges."""
    return sum(int(((e.mem_bytes < INFEASIBLE) & (e.time_ns < INFEASIBLE)).sum()) for e in problem.edges)


def scaled_costs(found: Found, epsilon: float) -> tuple[Ints, Ints]:
    """Return the least integer costs, memory and time, that are within 1 + epsilon of the known strategies', reduced."""
    if not epsilon:
        return found.mem, found.time
    factor = (1 + epsilon) * (1 - 1e-12)
    mem, time_ns = (np.ceil(cost / factor).astype(np.int64) for cost in (found.mem, found.time))
    kept = reduce_unsorted(mem, time_ns)
    return mem[kept], time_ns[kept]


def _live_corners(hull: Hull, u_mem: Ints, u_time: Ints) -> tuple[Floats, Floats]:
    """Return memory and time of the corners that, by the lines, a strategy may be below."""
    most_mem, most_time = hull.search.most
    mem, time_ns = np.append(u_mem - 1.0, float(most_mem)), np.insert(u_time - 1.0, 0, float(most_time))
    live = np.ones(len(mem), np.bool_)
    for line in hull.lines:
        live &= line.mem_weight * mem + line.time_weight * time_ns >= line.least
    mem, time_ns = mem[live], time_ns[live]
    size = -(-len(mem) // MAX_CORNERS)
    if size > 1:
        starts = np.arange(0, len(mem), size)
        mem, time_ns = np.maximum.reduceat(mem, starts), np.maximum.reduceat(time_ns, starts)
    return mem, time_ns


def _masks_from(order: npt.NDArray[np.intp], n_words: int) -> Bits:
    """Return uint64[C + 1, words], where row k has the bits of corners ``order[k:]``."""
    n_corners = len(order)
    single = np.zeros((n_corners + 1, n_words), np.uint64)
    single[np.arange(n_corners), order // _WORD] = np.uint64(1) << (order % _WORD).astype(np.uint64)
    result: Bits = np.bitwise_or.accumulate(single[::-1], axis=0)[::-1]
    return result
