"""Weigh costs, and multiply matrices in the algebra (min, +), compiled by Numba: the inner loops of weighted searches.

A row of the result is the least of shifted rows. Two rows of the result are made together, so that a row that is shifted is
loaded once for both. Four of these are taken at a time, so that the two are loaded and stored once for all four. Nothing is
skipped: to look for the tenth of the rows that can't be the least anywhere takes longer than to add them.

Complexity: O(B O G J).

It compiles where there is no compiled code on disk yet (some seconds, once).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...common.compiled import compiled

_AT_ONCE = 4
"""The number of shifted rows that are taken at once."""


@compiled
def weigh(mem: Any, time: Any, forbidden: Any, mem_weight: float, time_weight: float, result: Any) -> None:
    """Write ``mem_weight mem + time_weight time`` into ``result``, infinite where it is forbidden; all arrays are flat."""
    for i in range(len(result)):
        cost = mem[i] * mem_weight + time[i] * time_weight
        result[i] = np.inf if forbidden[i] else cost


@compiled
def _lower_both(old: Any, new: Any, one: Any, two: Any, matrix: Any, begin: int) -> None:
    """Write into ``new`` the least of both rows of ``old`` and of four rows of a matrix, shifted for each of the two.

    The four are those from ``begin`` on; where there are fewer, the last is taken again. Nothing is changed in place: the
    compiler would not store what stays as it is, and all else under a mask, which some processors do many times more slowly
    than storing everything.
    """
    last = len(matrix) - 1
    g0, g1, g2, g3 = begin, min(begin + 1, last), min(begin + 2, last), min(begin + 3, last)
    r0, r1, r2, r3 = matrix[g0], matrix[g1], matrix[g2], matrix[g3]
    s0, s1, s2, s3 = one[g0], one[g1], one[g2], one[g3]
    t0, t1, t2, t3 = two[g0], two[g1], two[g2], two[g3]
    old_one, old_two, new_one, new_two = old[0], old[1], new[0], new[1]
    for j in range(len(r0)):
        p, q, u, v = r0[j], r1[j], r2[j], r3[j]
        a, b, c, d = p + s0, q + s1, u + s2, v + s3
        a = a if a < b else b
        c = c if c < d else d
        a = a if a < c else c
        new_one[j] = a if a < old_one[j] else old_one[j]
        a, b, c, d = p + t0, q + t1, u + t2, v + t3
        a = a if a < b else b
        c = c if c < d else d
        a = a if a < c else c
        new_two[j] = a if a < old_two[j] else old_two[j]


@compiled
def min_plus(left: Any, right: Any) -> Any:
    """Return ``result[b, o, j] = min over g of left[b, o, g] + right[b, g, j]``: float64, contiguous, none of them -inf.

    Rows of the result are made in pairs; the last of an odd number is made twice.
    """
    n_batch, n_outer, n_groups = left.shape
    n_inner = right.shape[2]
    result = np.empty((n_batch, n_outer, n_inner))
    rows, spare = np.empty((2, n_inner)), np.empty((2, n_inner))
    for batch in range(n_batch):
        matrix = right[batch]
        for outer in range(0, n_outer, 2):
            last = min(outer + 1, n_outer - 1)
            one, two = left[batch, outer], left[batch, last]
            for j in range(n_inner):
                rows[0, j], rows[1, j] = matrix[0, j] + one[0], matrix[0, j] + two[0]
            for g in range(1, n_groups, _AT_ONCE):
                _lower_both(rows, spare, one, two, matrix, g)
                rows, spare = spare, rows
            result[batch, outer], result[batch, last] = rows[0], rows[1]
    return result
