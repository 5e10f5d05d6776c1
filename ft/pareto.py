"""Compute with frontiers in the Pareto semiring: product (all sums of pairs) and sum (the union), both reduced.

All kernels are pure functions on arrays that return *indices*, so that the caller can carry back-pointers along. Of points
with equal costs exactly one is kept, the one with the lowest index. The result does not depend on anything else, so every
search is deterministic.

| operation (section 3.1) | function | complexity |
|---|---|---|
| reduce, Algorithm 1 | ``reduce_unsorted``, ``reduce_sorted`` | O(n log n), O(n) |
| product | ``product`` | O(n m log(n m)) |
| union | ``union`` | O((n + m) log(n + m)) |
"""

from __future__ import annotations

import numpy as np

from .problem import Ints


def reduce_sorted(mem: Ints, time: Ints) -> Ints:
    """Return the indices of the frontier of points that are sorted by memory, then time, both ascending (Algorithm 1).

    A point is kept where its time is below that of all points before it: of equal points, the first.
    """
    is_minimal = np.ones(len(mem), np.bool_)
    is_minimal[1:] = time[1:] < np.minimum.accumulate(time)[:-1]
    return np.flatnonzero(is_minimal)


def reduce_unsorted(mem: Ints, time: Ints) -> Ints:
    """Return the indices of the frontier of points in any order, by ascending memory; of equal points, the lowest index."""
    order: Ints = np.lexsort((time, mem)).astype(np.int64, copy=False)  # stable: equal points stay by index
    indices: Ints = order[reduce_sorted(mem[order], time[order])]
    return indices


def product(mem: Ints, time: Ints, other_mem: Ints, other_time: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Compute the frontier of all sums of a point of one frontier and a point of the other.

    Returns:
        The result's memory and time, and for each of its points the index into the one frontier and into the other.
    """
    left = np.repeat(np.arange(len(mem), dtype=np.int64), len(other_mem))
    right = np.tile(np.arange(len(other_mem), dtype=np.int64), len(mem))
    sum_mem, sum_time = mem[left] + other_mem[right], time[left] + other_time[right]
    indices = reduce_unsorted(sum_mem, sum_time)
    return sum_mem[indices], sum_time[indices], left[indices], right[indices]


def union(mem: Ints, time: Ints, other_mem: Ints, other_time: Ints) -> tuple[Ints, Ints, Ints]:
    """Compute the frontier of the points of both frontiers.

    Returns:
        The result's memory and time, and the index of each of its points, where the other's points are counted after the
        first's.
    """
    all_mem, all_time = np.concatenate([mem, other_mem]), np.concatenate([time, other_time])
    indices = reduce_unsorted(all_mem, all_time)
    return all_mem[indices], all_time[indices], indices
