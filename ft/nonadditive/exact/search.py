"""Find the frontier of a small problem, where its memory includes the largest segment's: ``frontier_within``.

1. *Bounds*: in a few rounds, weighted sums (:mod:`.bounds`) find strategies, and drop the arcs (:mod:`.eliminations`) that
   no better strategy than the known ones can have. Each direction of memory and time begins with equal weights for the
   segments that are likely to be large; from round to round, half of them goes to those that are largest in the strategy
   found.
2. *Points*: what is left is eliminated with frontiers of points (:mod:`.frontiers`).

Where a factor 1 + epsilon is enough, what is known is divided by 1 + epsilon / 2 before corners are formed, and tables are
thinned by at most epsilon / 3 of the least costs. For epsilon up to 1 / 4 that is within the factor, since then
1 / (1 + epsilon / 2) - epsilon / 3 >= 1 / (1 + epsilon).

With epsilon = 0 the result is exact whatever was known before; it only takes less where more was known. A problem of more
than MAX_SEGMENTS, or that would take more than an :class:`.Effort`, is given up: the result is None.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from ...interning import interned
from ...lower_bound import LowerBound
from ...problem import INFEASIBLE, Ints, Problem
from ...tables.table import NO_SLACK, Slack, States
from ...weighted.lagrangian import Found
from ...weighted.reduced_cost_pruning import scaled_costs
from ...weighted.weighted_search import TimeIsUpError, WeightedSearch
from ..segment_memory import Transient, summed
from .below_corners import search_corners
from .bounds import (
    ROUNDING,
    Corners,
    Floats,
    backward,
    best_strategies,
    forward,
    promising_arcs,
    weights_of,
)
from .eliminations import FIRST, MEM, TIME, Eliminations
from .frontiers import Bounding, Effort, TooMuchError, frontier_points
from .lines import NEAR, Lines, Weighted

MAX_SEGMENTS = 8
PAIRS_OF_ARC = 4
"""The pairs of states over all edges for each arc that may be looked at, from which a problem isn't tried."""
LITTLE = Effort(1 << 16, 1e6)
"""The effort of an attempt that is made whatever time is left."""
SECONDS_OF_ARC = 2e-5
"""The time before a deadline, for each arc, from which a problem isn't tried: it would hardly be enough."""
ROUNDS = 4
MOST_CELLS = 1 << 16
"""The most cells of a table in a weighted search of a large problem."""
MOST_SUMS = 1 << 24
"""The most weighted sums of arcs that are held in memory at once."""
DIRECTIONS = 8
"""Directions of memory and time that are weighted, beside each of both alone."""


@dataclass(frozen=True, slots=True, eq=False)
class Solved:
    """A frontier, exact or with a lower bound, and how it was found.

    Attributes:
        found: strategies.
        bound: a lower bound of all strategies; None if the frontier is exact.
        counts: the number of eliminations of each kind.
    """

    found: Found
    bound: LowerBound | None
    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True, eq=False)
class Lined:
    """Lower bounds of a problem's strategies by weighted sums of memory and time; see :mod:`.lines`.

    Attributes:
        lines: the weighted sums, and strategies.
        eliminations: the problem's; None if it is large.
    """

    lines: Lines
    eliminations: Eliminations | None

    def solved(self, beside: LowerBound | None = None) -> Solved:
        """Return the strategies with what is proven of all.

        Args:
            beside: what is proven beside the weighted sums.
        """
        bound = self.lines.bound if beside is None else self.lines.bound.tightened(beside)
        return Solved(self.lines.found, bound, {} if self.eliminations is None else self.eliminations.counts)

    def weights(self, n_arcs: int) -> Floats:
        """Return the weights of so many sums as can be looked at for all of so many arcs at once, evenly chosen."""
        n_lines = len(self.lines.weights)
        n_chosen = max(1, min(n_lines, MOST_SUMS // max(1, n_arcs)))
        chosen: Floats = self.lines.weights[np.linspace(0, n_lines - 1, n_chosen).round().astype(np.intp)]
        return chosen


def frontier_within(
    problem: Problem,
    transient: Transient,
    known: States,
    effort: Effort = LITTLE,
    epsilon: float = 0.0,
    lined: Lined | None = None,
) -> Solved | None:
    """Return the frontier of a problem with transient memory; None where finding it would take too much.

    Args:
        known: strategies, int32[P, nodes]; there may be none.
        epsilon: every strategy is within 1 plus this of one that is found, in both costs; 0 for the exact frontier.
        lined: what is proven already; its weights then bound cells, arcs and points.

    Raises:
        InfeasibleError: no strategy is allowed.
    """
    if not _is_small(problem, transient, effort):
        return None
    eliminations = Eliminations.of(problem, transient, effort.max_arcs) if lined is None else lined.eliminations
    if eliminations is None or (lined is None and _takes_too_long(eliminations, effort)):
        return None
    counts = eliminations.counts
    found = _costed(problem, transient, known)
    if not len(found):
        ends = weights_of(np.eye(2), np.zeros((2, len(transient.segments))))
        strategies = best_strategies(eliminations, forward(eliminations, ends))[:, : len(problem.nodes)]
        found = _costed(problem, transient, strategies)
    if not len(found):
        return None  # sums of the cheapest are too large to be allowed
    lowest = _lowest(problem)
    directions = _directions(found)
    parts = np.zeros((len(directions), len(transient.segments)))
    parts[:, sorted(transient.large)] = 1 / len(transient.large)
    of_lines = None if lined is None else lined.weights(eliminations.n_arcs)
    for _ in range(ROUNDS if of_lines is None else 1):
        if time.monotonic() > effort.deadline:
            return None
        weights = weights_of(directions, parts) if of_lines is None else of_lines
        least = forward(eliminations, weights)
        strategies = best_strategies(eliminations, least)[:, : len(problem.nodes)]
        found = found.with_others(_costed(problem, transient, strategies))
        left = _narrowed(eliminations, weights, least, found, epsilon / 2)
        if left is None:
            return _solved(found, NO_SLACK, epsilon / 2, counts)
        eliminations = left
        if of_lines is None:
            parts = (parts + _of_largest(transient.by_segment(problem, strategies))) / 2
        elif _takes_too_long(eliminations, effort):
            return None
    # The other half of memory's weight goes to what is the largest segment so far.
    weights = weights_of(_directions(found), parts / 2) if of_lines is None else of_lines
    least = forward(eliminations, weights)
    corners = _corners(eliminations, weights, least, found, epsilon / 2)
    if not len(corners):
        return _solved(found, NO_SLACK, epsilon / 2, counts)
    bounding = Bounding(weights, backward(eliminations, least), corners)
    allowed = Slack(*(int(epsilon / 3 * cost) for cost in lowest))
    try:
        others, slack = frontier_points(eliminations, bounding, effort, allowed)
    except TooMuchError:
        return None
    strategies = others.strategies[:, : len(problem.nodes)]
    return _solved(found.with_others(replace(others, strategies=strategies)), slack, epsilon / 2, counts)


def lines_within(problem: Problem, transient: Transient, known: States, effort: Effort, gap: float) -> Lined | None:
    """Return known strategies, those that weighted sums find, and what these sums prove; None where it would take too much.

    Args:
        known: allowed strategies, int32[P, nodes], at least one.
        effort: where there are more arcs, weighted searches of the whole problem take the place of sums along arcs.
        gap: how near to the bound the strategies are to be.

    Raises:
        InfeasibleError: no strategy is allowed.
    """
    found = _costed(problem, transient, known)
    if len(transient.segments) > MAX_SEGMENTS or not len(found) or not _has_positive(transient):
        return None
    is_small = _has_few_pairs(problem, effort)
    eliminations = Eliminations.of(problem, transient, effort.max_arcs) if is_small else None
    if eliminations is None:
        weighted = _by_passes(problem, transient, effort.deadline)
    else:
        weighted = _along_arcs(eliminations, len(problem.nodes))
    lines = Lines(weighted, lambda strategies: _rows(problem, transient, strategies), found, gap)
    with contextlib.suppress(TimeIsUpError):
        lines.search(effort.deadline)
    return Lined(lines, eliminations) if len(lines.least) else None


def _along_arcs(eliminations: Eliminations, n_nodes: int) -> Weighted:
    """Return weighted sums along the arcs of a small problem."""

    def weighted(weights: Floats) -> tuple[Floats, States]:
        least = forward(eliminations, weights)
        bound: Floats = least[eliminations.steps[-1].result][:, 0] * (1 - ROUNDING)
        return bound, best_strategies(eliminations, least)[:, :n_nodes]

    return weighted


def _by_passes(problem: Problem, transient: Transient, deadline: float) -> Weighted:
    """Return weighted searches of a large problem, whose memory then has parts of the segments' (:mod:`...weighted`).

    They raise TimeIsUpError once the deadline has passed.
    """

    def weighted(weights: Floats) -> tuple[Floats, States]:
        (mem, time_ns), of_segments = weights[0, :FIRST].tolist(), weights[0, FIRST:]
        whole = interned(transient.weighted(problem, of_segments / mem if mem else np.zeros_like(of_segments)))
        search = WeightedSearch(whole, MOST_CELLS, deadline)
        integers = search.integer_weights(mem, time_ns)
        found = search.tightened(integers, near=NEAR)
        scale = min(weight / integer for weight, integer in zip((mem, time_ns), integers, strict=True) if integer)
        strategies = [each.strategy for each in found if each.strategy is not None]
        bound = np.array([found[-1].bound * scale * (1 - ROUNDING)])
        return bound, np.array(strategies, np.int32).reshape(-1, len(problem.nodes))

    return weighted


def corners_within(lined: Lined, problem: Problem, gap: float, deadline: float) -> tuple[Solved, bool]:
    """Return the strategies that are found below corners that no weighted sum excludes, and what is proven of all.

    Args:
        lined: gets further weighted sums and strategies; of a small problem.
        gap: how near to the bound the strategies are to be.
        deadline: by ``time.monotonic``.

    Returns:
        The strategies, and whether they are as near as that.
    """
    assert lined.eliminations is not None
    beside, is_near = search_corners(lined.lines, lined.eliminations, len(problem.nodes), gap, deadline)
    return lined.solved(beside), is_near


def _narrowed(
    eliminations: Eliminations, weights: Floats, least: list[Floats], found: Found, epsilon: float
) -> Eliminations | None:
    """Return the eliminations with the arcs of strategies that may be below a corner; None if there are none."""
    corners = _corners(eliminations, weights, least, found, epsilon)
    if not len(corners):
        return None
    return eliminations.with_arcs(promising_arcs(eliminations, least, backward(eliminations, least), corners, weights))


def _corners(eliminations: Eliminations, weights: Floats, least: list[Floats], found: Found, epsilon: float) -> Corners:
    """Return the corners between what is within a factor of 1 + epsilon of known strategies."""
    return Corners.between(*scaled_costs(found, epsilon), weights, least[eliminations.steps[-1].result][:, 0])


def _solved(found: Found, slack: Slack, epsilon: float, counts: Mapping[str, int]) -> Solved:
    """Return strategies that all others are within a factor and a slack of.

    What is dropped is above what is within the factor of known strategies, and by its slack may be below that.
    """
    if not epsilon and not any(slack):
        return Solved(found, None, counts)
    return Solved(found, LowerBound.within(*scaled_costs(found, epsilon), slack, "bounds by segment"), counts)


def _is_small(problem: Problem, transient: Transient, effort: Effort) -> bool:
    """Return whether a problem is small enough to be tried, and has no negative transient memory."""
    return _has_few_pairs(problem, effort) and len(transient.segments) <= MAX_SEGMENTS and _has_positive(transient)


def _has_few_pairs(problem: Problem, effort: Effort) -> bool:
    """Return whether a problem's pairs of states are few enough for the arcs that may be looked at."""
    return sum(edge.mem_bytes.size for edge in problem.edges) <= PAIRS_OF_ARC * effort.max_arcs


def _takes_too_long(eliminations: Eliminations, effort: Effort) -> bool:
    """Return whether eliminations would hardly be done by the deadline."""
    return time.monotonic() + SECONDS_OF_ARC * eliminations.n_arcs > effort.deadline


def _has_positive(transient: Transient) -> bool:
    """Return whether no transient memory is negative, as bounds by weighted sums need."""
    arrays = [array for each in transient.segments for array in (*each.nodes.values(), *each.edges.values())]
    return all(int(array.min()) >= 0 for array in arrays)


def _lowest(problem: Problem) -> tuple[int, int]:
    """Return memory and time that no strategy is below: the sums of all parts' least."""
    parts = [(node.mem_bytes, node.time_ns) for node in problem.nodes]
    parts += [(edge.mem_bytes, edge.time_ns) for edge in problem.edges]
    return sum(int(mem.min()) for mem, _ in parts), sum(int(time_ns.min()) for _, time_ns in parts)


def _costed(problem: Problem, transient: Transient, strategies: States) -> Found:
    """Return the Pareto-minimal ones of strategies that are allowed, with their costs, the largest segment's included."""
    rows = _rows(problem, transient, strategies)
    mem, time_ns = rows[MEM] + rows[FIRST:].max(axis=0), rows[TIME]
    allowed = np.maximum(mem, time_ns) < INFEASIBLE
    return Found.of(mem[allowed], time_ns[allowed], strategies[allowed])


def _rows(problem: Problem, transient: Transient, strategies: States) -> Ints:
    """Return strategies' saved memory, time and transient memory by segment: int64[FIRST + segments, P]."""
    return np.concatenate([summed(problem, strategies), transient.by_segment(problem, strategies)])


def _directions(found: Found) -> Floats:
    """Return weights of memory and time, float64[D, 2]: each alone, and normal to the sides of the known hull.

    Where it has few sides, others are between them. A strategy of the known ones has about weighted cost 1.
    """
    scale = np.array([1 / max(float(found.mem[0]), 1.0), 1 / max(float(found.time[-1]), 1.0)])
    hull: list[tuple[int, int]] = []
    for point in zip(found.mem.tolist(), found.time.tolist(), strict=True):
        while len(hull) > 1 and _turns_back(hull[-2], hull[-1], point):
            hull.pop()
        hull.append(point)
    sides = np.diff(np.array(hull, np.float64), axis=0)
    if len(sides) > DIRECTIONS:
        sides = sides[np.unique(np.linspace(0, len(sides) - 1, DIRECTIONS).round().astype(np.intp))]
    normals = np.stack([-sides[:, 1], sides[:, 0]], axis=1) if len(sides) else np.zeros((0, 2))
    ratios = 2.0 ** np.linspace(-4, 4, DIRECTIONS - len(normals))
    normals = np.concatenate([normals, np.stack([ratios * scale[0], np.full(len(ratios), scale[1])], axis=1)])
    normals /= (normals @ (1 / scale))[:, None]
    return np.concatenate([[[scale[0], 0.0], [0.0, scale[1]]], normals])


def _turns_back(first: tuple[int, int], middle: tuple[int, int], last: tuple[int, int]) -> bool:
    """Return whether the middle point isn't below the line from the first to the last."""
    one, other = (middle[0] - first[0], middle[1] - first[1]), (last[0] - first[0], last[1] - first[1])
    return one[0] * other[1] - one[1] * other[0] <= 0


def _of_largest(of_segments: Ints) -> Floats:
    """Return for each strategy equal parts for the segments that are largest, float64[P, segments]."""
    is_largest = (of_segments == of_segments.max(axis=0)).T
    result: Floats = is_largest / is_largest.sum(axis=1, keepdims=True)
    return result
