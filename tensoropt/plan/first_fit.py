"""Which point of a frontier fits within a memory limit, where to know what a point needs takes a replay of its step.

Points stand in the order in which they are wanted. What they need mostly falls along it, but not always: the memory of a
frontier is Equation (1) of the paper, while a limit goes by the peak. So there is no bisection. A grid of points is looked
at, then what lies between the one that was found and its neighbours, and so on. Up to ``ALL_AT_ONCE`` points all are looked
at, and the answer is exact. Of more, no point that was looked at is better than the answer; a better one can be missed only
between two neighbours of a grid that are both worse.

Complexity: O(GRID log P) looks at P points, or O(FINE_GRID log P) for the least.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

ALL_AT_ONCE = 64
GRID = 16
FINE_GRID = 48
"""For the least of all, which has no order to go by: by what is there for a moment needs rise and fall along a frontier."""


def first_that_fits(points: Sequence[int], fits: Callable[[int], bool]) -> int | None:
    """The first of some points that fits; None if none that was looked at does.

    Args:
        points: by how much they are wanted, the most first.
        fits: whether a point does; asked once of each that is looked at.
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
    """The point that needs the least, of those that were looked at; of several the first.

    Args:
        points: at least one, neighbours next to each other.
        needed_bytes: what a point needs; asked more than once of some.
    """
    while True:
        looked = grid(len(points), n_spread=FINE_GRID)
        at = min(range(len(looked)), key=lambda i: needed_bytes(points[looked[i]]))
        if len(looked) == len(points):
            return points[at]
        # Without its neighbours, which were looked at, but for the ends.
        points = points[looked[max(at - 1, 0)] : looked[min(at + 1, len(looked) - 1)] + 1]


def grid(n_places: int, most: int = ALL_AT_ONCE, n_spread: int = GRID) -> list[int]:
    """Places among so many: all of them up to ``most``, else some from end to end."""
    if n_places <= most:
        return list(range(n_places))
    return [round(i * (n_places - 1) / (n_spread - 1)) for i in range(n_spread)]
