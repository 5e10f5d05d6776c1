"""The operations of the Pareto semiring, against a check of dominance by definition, from which its laws follow."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensoropt.ft.pareto import product, reduce_sorted, reduce_unsorted, union
from tensoropt.ft.problem import INFEASIBLE

small = st.integers(0, 6)  # few values: ties and duplicates
large = st.integers(0, INFEASIBLE - 1)
points = st.one_of(st.lists(st.tuples(small, small), max_size=25), st.lists(st.tuples(large, large), max_size=8))
Points = list[tuple[int, int]]


def arrays(pairs: Points) -> tuple[np.ndarray, np.ndarray]:
    array = np.array(pairs, np.int64).reshape(-1, 2)
    return array[:, 0].copy(), array[:, 1].copy()


def minimal(pairs: Points) -> Points:
    """Definition 1, O(n^2): the distinct points that no other point is at least as good as in both costs."""
    distinct = sorted(set(pairs))
    return [p for p in distinct if not any(q != p and q[0] <= p[0] and q[1] <= p[1] for q in distinct)]


@given(points)
def test_reduce_keeps_the_minimal_points_once_by_lowest_index(pairs: Points) -> None:
    """Hence it is idempotent, and doesn't depend on the order."""
    kept = reduce_unsorted(*arrays(pairs)).tolist()
    assert [pairs[index] for index in kept] == minimal(pairs)
    assert kept == [pairs.index(pair) for pair in minimal(pairs)]


@given(points)
def test_reduce_of_sorted_points_is_the_same(pairs: Points) -> None:
    ordered = sorted(pairs)
    assert reduce_sorted(*arrays(ordered)).tolist() == reduce_unsorted(*arrays(ordered)).tolist()


@given(points, points)
def test_product_is_all_sums_with_their_origins(a: Points, b: Points) -> None:
    mem, time, left, right = product(*arrays(a), *arrays(b))
    got = list(zip(mem.tolist(), time.tolist(), strict=True))
    assert got == minimal([(m + n, t + u) for m, t in a for n, u in b])
    assert got == [(a[i][0] + b[j][0], a[i][1] + b[j][1]) for i, j in zip(left, right, strict=True)]


@given(points, points)
def test_union_is_both_with_their_origins(a: Points, b: Points) -> None:
    mem, time, origin = union(*arrays(a), *arrays(b))
    got = list(zip(mem.tolist(), time.tolist(), strict=True))
    assert got == minimal(a + b)
    assert got == [(a + b)[index] for index in origin]


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        ([], []),
        ([(1, 1)], [0]),
        ([(1, 1), (1, 1), (1, 1)], [0]),  # duplicates: the first
        ([(1, 5), (1, 3), (1, 4)], [1]),  # ties in memory: the least time
        ([(3, 2), (1, 2), (2, 2)], [1]),  # ties in time: the least memory
        ([(2, 1), (1, 2), (1, 2), (2, 1)], [1, 0]),
    ],
)
def test_table_of_ties(pairs: Points, expected: list[int]) -> None:
    assert reduce_unsorted(*arrays(pairs)).tolist() == expected
