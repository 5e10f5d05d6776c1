"""Make equal arrays of costs one object, so that what repeats in a problem is recognised by identity.

Models repeat their layers, and so do the costs of their nodes and edges. What is computed of them here is computed once for
arrays that are the same object. Arrays that are only equal, because each layer's were built or restricted by themselves, are
replaced by the first of them.

Complexity: two passes over the cells of arrays that are different objects.
"""

from __future__ import annotations

from .problem import Edge, Ints, Node, Problem, identity


class Interned:
    """The first of each kind of equal arrays that it was called with."""

    def __init__(self) -> None:
        # With the arrays themselves, so that no others can get their addresses.
        self._by_identity: dict[tuple[object, ...], tuple[Ints, Ints]] = {}
        self._by_sums: dict[tuple[object, ...], list[Ints]] = {}

    def __call__(self, array: Ints) -> Ints:
        """Return the first array that is equal to this one; often the array itself."""
        key = identity(array)
        if key not in self._by_identity:
            self._by_identity[key] = array, self._first(array)
        return self._by_identity[key][1]

    def _first(self, array: Ints) -> Ints:
        # Sums tell nearly all different arrays apart; those with equal ones are compared cell by cell.
        candidates = self._by_sums.setdefault((array.shape, array.sum(axis=-1).tobytes()), [])
        for candidate in candidates:
            if (candidate == array).all():
                return candidate
        candidates.append(array)
        return array


def interned(problem: Problem) -> Problem:
    """Return the problem with equal arrays as one object."""
    first = Interned()
    nodes = (Node(node.name, first(node.mem_bytes), first(node.time_ns)) for node in problem.nodes)
    edges = (Edge(edge.source, edge.target, first(edge.mem_bytes), first(edge.time_ns)) for edge in problem.edges)
    return Problem(tuple(nodes), tuple(edges))
