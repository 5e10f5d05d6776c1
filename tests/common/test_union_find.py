"""Elements that are joined are one class, whichever way they were joined."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tensoropt.common.union_find import UnionFind


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9))))
def test_classes_are_the_connected_parts(pairs: list[tuple[int, int]]) -> None:
    joined, classes = UnionFind(range(10)), {element: {element} for element in range(10)}
    for first, other in pairs:
        joined.union(first, other)
        together = classes[first] | classes[other]
        classes |= dict.fromkeys(together, together)
    assert all(joined[element] in classes[element] for element in joined)
    assert {frozenset(found) for found in joined.classes()} == {frozenset(found) for found in classes.values()}
