"""Classes of elements that are joined two by two, without NetworkX, whose import takes a fifth of a second."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import Generic, TypeVar

Element = TypeVar("Element", bound=Hashable)


class UnionFind(Generic[Element]):
    """Classes of elements: each is alone until it is joined with others."""

    def __init__(self, elements: Iterable[Element] = ()) -> None:
        self._parents = {element: element for element in elements}

    def __getitem__(self, element: Element) -> Element:
        """Return the element that stands for the class of one."""
        parents = self._parents
        parent = parents.setdefault(element, element)
        while (above := parents[parent]) != parent:
            parents[element] = above  # so that the next way is shorter
            element, parent = parent, above
        return parent

    def __iter__(self) -> Iterator[Element]:
        return iter(self._parents)

    def union(self, first: Element, *others: Element) -> None:
        """Join the classes of elements."""
        root = self[first]
        for other in others:
            self._parents[self[other]] = root

    def classes(self) -> list[set[Element]]:
        """Return all classes."""
        found: dict[Element, set[Element]] = {}
        for element in self:
            found.setdefault(self[element], set()).add(element)
        return list(found.values())
