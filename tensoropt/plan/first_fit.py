"""Find the first point of a frontier that fits within a memory limit, with few evaluations.

Evaluating a point is expensive: its peak memory takes a replay of its step. The points are given in order of preference.
Along this order the peak mostly falls, but not always, because the frontier's memory is Equation (1) of the paper while a
limit applies to the peak. So bisection is not possible. Instead a grid of points is evaluated, then a grid between the
first point that fits and the one before it, and so on. Up to ``ALL_AT_ONCE`` points are all evaluated, and the answer is
exact. Among more points, no evaluated point is better than the answer; a better one can be missed only between two
neighbours of a grid that are both worse.

Complexity: O(GRID log P) evaluations of P points, or O(FINE_GRID log P) for the least peak.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

ALL_AT_ONCE = 64
GRID = 16
FINE_GRID = 48
"""The grid for the least peak, to which no order leads: due to transient memory, peaks rise and fall along a frontier."""


def first_that_fits(points: Sequence[int], fits: Callable[[int], bool]) -> int | None:
    """Return the first point that fits; None if no evaluated point does.

    Args:
        points: in order of preference, the best first.
        fits: returns whether a point fits; called once for each evaluated point.
    """
    best: int | None = None
    while points:
        looked = grid(len(points))
        at = next((i for i, place in enumerate(looked) if fits(points[place])), None)
        if at is None:
            break
        best = points[looked[at]]
        points = points[looked[at - 1] + 1 : looked[at]] if at else ()
    return best


def least_of(points: Sequence[int], needed_bytes: Callable[[int], int]) -> int:
    """Return the evaluated point that needs the least memory; the first if several do.

    Args:
        points: at least one, in the order of the frontier.
        needed_bytes: returns the memory that a point needs; called more than once for some points.
    """
    while True:
        looked = grid(len(points), n_spread=FINE_GRID)
        at = min(range(len(looked)), key=lambda i: needed_bytes(points[looked[i]]))
        if len(looked) == len(points):
            return points[at]
        # Continue with the points around the least, from the grid point before it to the one after it.
        points = points[looked[max(at - 1, 0)] : looked[min(at + 1, len(looked) - 1)] + 1]


def grid(n_places: int, most: int = ALL_AT_ONCE, n_spread: int = GRID) -> list[int]:
    """Return indices below ``n_places``: all up to ``most`` of them, else ``n_spread``, evenly from end to end."""
    if n_places <= most:
        return list(range(n_places))
    return [round(i * (n_places - 1) / (n_spread - 1)) for i in range(n_spread)]
