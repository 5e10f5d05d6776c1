"""Prove that no strategy is below a corner, or find those that are, one corner after the other.

What no weighted sum excludes (:mod:`.lines`) is searched with frontiers of points (:mod:`.frontiers`). For all corners
together that takes too much, as what one of them needs isn't bounded by what is best for another. For one corner, its own
weights, and these mixed with all weight on a single cost, drop nearly all arcs, and often all of them.

Neighbouring corners are joined where they are nearer to each other than a third of the gap, so that few are searched.

Complexity: that of :mod:`.bounds` and :mod:`.frontiers` for each corner.
"""

from __future__ import annotations

import time

import numpy as np

from ...lower_bound import LowerBound
from ...pareto import reduce_unsorted
from ...tables.table import States
from .bounds import Corners, Floats, backward, forward, promising_arcs
from .eliminations import Eliminations
from .frontiers import Bounding, Effort, TooMuchError, frontier_points
from .lines import Lines

MIXED = (0.03, 0.1, 0.3)
"""The parts of a single cost that are mixed into a corner's weights."""
ROUNDS = 2
"""How often arcs are dropped before points are searched."""
MOST_CANDIDATES = 4e5
"""The most sums of points that are looked at for one corner."""
JOINED = 1 / 3
"""The part of the gap by which joined corners differ at most."""


def search_corners(
    lines: Lines, eliminations: Eliminations, n_nodes: int, gap: float, deadline: float
) -> tuple[LowerBound | None, bool]:
    """Search below the corners that no line excludes, those that are farthest from it first.

    Args:
        lines: gets further lines and strategies.
        n_nodes: the number of the problem's nodes.
        gap: how near to the bound the strategies are to be.
        deadline: by ``time.monotonic``.

    Returns:
        What is proven beside the lines, None if nothing is; and whether the strategies are as near as that.
    """
    lines.gap, bound = gap, None
    done: list[tuple[float, float]] = []
    n_failed = 0
    while time.monotonic() < deadline:
        mem, time_ns = lines.corners()
        reached = lines.reached(mem, time_ns)
        for of_mem, of_time in done:
            reached[(mem <= of_mem) & (time_ns <= of_time)] = np.inf
        if reached.min() > 1:
            return bound, not n_failed
        corner = _joined(mem, time_ns, reached, gap)
        done.append(corner)
        parts = lines.exclude(*corner)
        if parts is None:
            continue
        strategies = _strategies_below(eliminations, corner, parts, deadline)
        if strategies is None:
            n_failed += 1
            continue
        strategies = strategies[:, :n_nodes]
        excluded = _bound_beyond(corner, *lines.add(strategies))
        bound = excluded if bound is None else bound.tightened(excluded)
    return bound, False


def _joined(mem: Floats, time_ns: Floats, reached: Floats, gap: float) -> tuple[float, float]:
    """Return the corner that no line comes near to, joined with its neighbours that no line excludes."""
    middle = int(reached.argmin())
    factor = 1 + gap * JOINED
    first = after = middle
    while first > 0 and reached[first - 1] <= 1 and _are_near(mem, time_ns, first - 1, middle, factor):
        first -= 1
    while after + 1 < len(mem) and reached[after + 1] <= 1 and _are_near(mem, time_ns, first, after + 1, factor):
        after += 1
    return float(mem[after]), float(time_ns[first])


def _are_near(mem: Floats, time_ns: Floats, low: int, high: int, factor: float) -> bool:
    """Return whether two corners, by ascending memory and descending time, differ by at most a factor in both costs."""
    return bool(mem[high] <= factor * mem[low] and time_ns[low] <= factor * time_ns[high])


def _strategies_below(
    eliminations: Eliminations, corner: tuple[float, float], parts: Floats, deadline: float
) -> States | None:
    """Return the minimal strategies below a corner, and perhaps some above it; None where that would take too much.

    Args:
        parts: the corner's weights: parts of saved memory, of each segment's and of time, that add up to 1.
    """
    single = np.eye(len(parts))
    of_all = np.stack([parts, *((1 - part) * parts + part * each for part in MIXED for each in single)])
    weights = Lines.weights_for(of_all, *corner)
    corners = Corners(np.array([corner[0]]), np.array([corner[1]]))
    for _ in range(ROUNDS):
        least = forward(eliminations, weights)
        kept = promising_arcs(eliminations, least, backward(eliminations, least), corners, weights)
        left = eliminations.with_arcs(kept)
        if left is None:
            return np.zeros((0, eliminations.n_variables), np.int32)
        eliminations = left
    bounding = Bounding(weights, backward(eliminations, forward(eliminations, weights)), corners)
    try:
        found, _ = frontier_points(eliminations, bounding, Effort(eliminations.n_arcs, MOST_CANDIDATES, deadline))
    except TooMuchError:
        return None
    return found.strategies


def _bound_beyond(corner: tuple[float, float], mem: np.ndarray, time_ns: np.ndarray) -> LowerBound:
    """Return the bound of all strategies, where all that are below a corner are known: their memory and time."""
    beyond = [(int(corner[0]) + 1, 0)] if np.isfinite(corner[0]) else []
    beyond += [(0, int(corner[1]) + 1)] if np.isfinite(corner[1]) else []
    points = np.array(beyond, np.int64).reshape(-1, 2)
    mem, time_ns = np.concatenate([mem, points[:, 0]]), np.concatenate([time_ns, points[:, 1]])
    kept = reduce_unsorted(mem, time_ns)
    return LowerBound(mem[kept], time_ns[kept], "corners by segment")
