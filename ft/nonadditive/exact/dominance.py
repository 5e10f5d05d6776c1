"""Find the points of many sets that no other point of their set is as good as, in several costs.

Points come sorted by set, then by all costs one after the other, so that what a point is beaten by comes before it. Of equal
points the first stays.

Complexity: O(points x points that stay, of a set) comparisons of costs.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec

import numpy as np
import numpy.typing as npt

from ...problem import Ints
from ...tables.table import expand_ranges

Mask = npt.NDArray[np.bool_]
AT_ONCE = 1 << 17
"""Pairs of points that are compared at once."""
_WORTH_CALLING, _WORTH_LOADING = 256, 1 << 17
"""Points from which it pays to call compiled code, and to load Numba for it."""


def minimal_points(in_set: Ints, costs: Ints) -> Ints:
    """Return the indices of the points that stay, by ascending set.

    Args:
        in_set: int64[P], the set of each point, in any order.
        costs: int64[D, P].
    """
    order = np.lexsort((*costs[::-1], in_set))
    kept = undominated(in_set[order], np.ascontiguousarray(costs[:, order]))
    result: Ints = order[kept]
    return result


def undominated(in_set: Ints, costs: Ints) -> Mask:
    """Return which of sorted points stay: bool[P]. By compiled code where that pays, earlier where Numba is loaded."""
    if len(in_set) > (_WORTH_CALLING if "numba" in sys.modules else _WORTH_LOADING) and find_spec("numba") is not None:
        from .numba_dominance import mark_undominated

        kept = np.zeros(len(in_set), np.bool_)
        mark_undominated(in_set, costs, kept)
        return kept
    return undominated_in_numpy(in_set, costs)


def undominated_in_numpy(in_set: Ints, costs: Ints) -> Mask:
    """Do what ``undominated`` does, in NumPy alone: the first point of each set drops what it beats, and so on."""
    kept = np.zeros(len(in_set), np.bool_)
    left = np.arange(len(in_set))
    while True:
        begins = np.flatnonzero(np.diff(in_set[left], prepend=-1))
        sizes = np.diff(begins, append=len(left))
        if (sizes * sizes).sum() <= AT_ONCE:
            break
        kept[left[begins]] = True
        first = np.repeat(left[begins], sizes)
        left = left[(costs[:, first] > costs[:, left]).any(axis=0)]
    before = np.arange(len(left)) - np.repeat(begins, sizes)
    point = np.repeat(left, before)
    other = left[expand_ranges(np.repeat(begins, sizes), before)]
    kept[left] = True
    kept[point[(costs[:, other] <= costs[:, point]).all(axis=0)]] = False
    return kept
