"""Which parts of a Problem's times run beside each other, gathered while it is built, for
:mod:`...ft.nonadditive.overlap`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...costs.resharding_costs import ReshardingCosting
from ...ft.nonadditive.overlap import Overlap, Part
from .node_states import States

Ints = np.ndarray


class Beside:
    """Network that only updates of variables wait for, and compute of the backward pass, by node and edge.

    Attributes:
        places: by node, where in the program it is: the backward pass goes from the highest to the lowest.
    """

    def __init__(self, reshardings: ReshardingCosting, places: list[int], states: Sequence[States]) -> None:
        self.places = places
        self._reshardings = reshardings
        self._backward_ns = [each.backward_ns for each in states]
        self._trailing_ns: dict[int, Ints] = {i: each.trailing_ns for i, each in enumerate(states)}
        self._edges: dict[int, tuple[int, Ints]] = {}
        self._hideable: dict[int, Ints] = {}

    def add(self, node: int, trailing_ns: Ints) -> None:
        """Network of a node, by state, beside what it has by itself."""
        self._trailing_ns[node] = self._trailing_ns.get(node, 0) + trailing_ns

    def add_edge(self, edge: int, target: int, trailing_ns: Ints) -> None:
        """Network of an edge to a node, from where gradients come back."""
        self._edges[edge] = self.places[target], trailing_ns

    def overlap(self) -> Overlap | None:
        """All of it; None where nothing runs beside anything."""
        if not self._reshardings.overlaps:
            return None
        hideable = {i: Part(self.places[i], self._hidden(ns)) for i, ns in self._trailing_ns.items() if ns.any()}
        edges = {i: Part(place, self._hidden(ns)) for i, (place, ns) in self._edges.items() if ns.any()}
        hiding = {i: Part(self.places[i], ns) for i, ns in enumerate(self._backward_ns) if ns.any()}
        return Overlap(hideable, edges, hiding)

    def _hidden(self, trailing_ns: Ints) -> Ints:
        """Equal arrays stay equal by identity, by which a search knows equal layers."""
        key = id(trailing_ns)
        if key not in self._hideable:
            self._hideable[key] = self._reshardings.hideable_ns(trailing_ns)
        return self._hideable[key]
