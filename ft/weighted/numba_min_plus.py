"""Multiply matrices in the algebra (min, +), compiled by Numba: the inner loop of weighted searches.

A row of the result is the least of shifted rows. Most of these are nowhere the least: a row whose least number, shifted, is
not below the largest of the result so far is skipped. So the most promising row goes first, and rows are taken several at
once, so that the result is loaded and stored once for all of them.

Complexity: O(B O G J) at most; O(B (O G + G J)) where the first row settles it.

Importing this module needs Numba, and compiles where there is no compiled code on disk yet (some seconds, once).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..tables.numba_kernels import _compile

_AT_ONCE = 4
_LOOKS = 8
"""Number of batches of rows after which the largest number of the result is updated."""


@_compile
def _least_of(row: Any) -> Any:
    """Return the least number of a row."""
    a = b = c = d = np.inf
    n = len(row) - len(row) % 4
    for j in range(0, n, 4):
        a, b, c, d = min(a, row[j]), min(b, row[j + 1]), min(c, row[j + 2]), min(d, row[j + 3])
    for j in range(n, len(row)):
        a = min(a, row[j])
    return min(min(a, b), min(c, d))


@_compile
def _largest_of(row: Any) -> Any:
    """Return the largest number of a row."""
    a = b = c = d = -np.inf
    n = len(row) - len(row) % 4
    for j in range(0, n, 4):
        a, b, c, d = max(a, row[j]), max(b, row[j + 1]), max(c, row[j + 2]), max(d, row[j + 3])
    for j in range(n, len(row)):
        a = max(a, row[j])
    return max(max(a, b), max(c, d))


@_compile
def min_plus(left: Any, right: Any) -> Any:
    """Return ``result[b, o, j] = min over g of left[b, o, g] + right[b, g, j]``: float64, contiguous, none of them -inf."""
    n_batch, n_outer, n_groups = left.shape
    n_inner = right.shape[2]
    result = np.full((n_batch, n_outer, n_inner), np.inf)
    least = np.empty(n_groups)
    chosen = np.empty(n_groups, np.int64)
    for batch in range(n_batch):
        for g in range(n_groups):
            least[g] = _least_of(right[batch, g])
        for outer in range(n_outer):
            shifts, row = left[batch, outer], result[batch, outer]
            first, low = -1, np.inf
            for g in range(n_groups):
                if shifts[g] + least[g] < low:
                    first, low = g, shifts[g] + least[g]
            if first < 0:
                continue
            shift, source = shifts[first], right[batch, first]
            for j in range(n_inner):
                row[j] = source[j] + shift
            limit = _largest_of(row)
            n = 0
            for g in range(n_groups):
                if g != first and shifts[g] + least[g] < limit:
                    chosen[n] = g
                    n += 1
            k = kept = 0
            while k < n:
                # Collect the next few rows that may still be the least somewhere.
                n_ready = 0
                g0 = g1 = g2 = g3 = first
                while k < n and n_ready < _AT_ONCE:
                    g = chosen[k]
                    k += 1
                    if shifts[g] + least[g] < limit:
                        if n_ready == 0:
                            g0 = g
                        elif n_ready == 1:
                            g1 = g
                        elif n_ready == 2:
                            g2 = g
                        else:
                            g3 = g
                        n_ready += 1
                if n_ready == 0:
                    break
                s0, s1, s2, s3 = shifts[g0], shifts[g1], shifts[g2], shifts[g3]
                r0, r1, r2, r3 = right[batch, g0], right[batch, g1], right[batch, g2], right[batch, g3]
                for j in range(n_inner):
                    a, b, c, d = r0[j] + s0, r1[j] + s1, r2[j] + s2, r3[j] + s3
                    a = a if a < b else b
                    c = c if c < d else d
                    a = a if a < c else c
                    row[j] = a if a < row[j] else row[j]
                kept += 1
                if kept % _LOOKS == 0:
                    limit = _largest_of(row)
    return result
