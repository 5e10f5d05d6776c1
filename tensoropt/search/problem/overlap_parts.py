"""Collect which parts of a Problem's times overlap while the Problem is built.

:mod:`...ft.nonadditive.overlap` searches with them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ...costs.resharding_costs import ReshardingCosting
from ...ft.nonadditive.overlap import Overlap, OverlapPart
from ...ir.graph import SOURCES, Graph
from ...sharding.consumers import Consumer
from .fusion_groups import FusionGroup
from .node_states import States

Ints = np.ndarray


def program_positions(graph: Graph, nodes: Sequence[FusionGroup], consumers: Mapping[str, Sequence[Consumer]]) -> list[int]:
    """Return, for each node, the index in program order to which the backward pass comes last.

    The backward pass runs from high to low, so that is the index of the node's first operator that isn't a source. A node of
    sources alone, such as a parameter, has the lowest index among its consumers': its gradient is complete when the backward
    pass has come there.
    """
    program = {name: i for i, name in enumerate(graph.operators)}
    number = {op.name: n for n, node in enumerate(nodes) for op in node.operators}
    positions = [program[node.name] for node in nodes]
    for n, node in enumerate(nodes):
        if all(op.type in SOURCES for op in node.operators):
            readers = (consumer for op in node.operators for consumer in consumers.get(op.result.name, ()))
            places = [positions[number[reader.name]] for reader in readers if not (reader.is_step or reader.is_update)]
            positions[n] = min(places, default=positions[n])
    return positions


class OverlapTimes:
    """The times that may overlap, by node and edge.

    They are network time that only updates of variables wait for, and compute time of the backward pass.

    Attributes:
        positions: each node's index in program order; the backward pass goes from the highest to the lowest.
    """

    def __init__(self, reshardings: ReshardingCosting, positions: list[int], states: Sequence[States]) -> None:
        self.positions = positions
        self._reshardings = reshardings
        self._backward_ns = [node_states.backward_ns for node_states in states]
        self._overlappable_ns: dict[int, Ints] = {i: node_states.overlappable_ns for i, node_states in enumerate(states)}
        self._edges: dict[int, tuple[int, Ints]] = {}
        self._hideable: dict[int, Ints] = {}

    def add(self, node: int, overlappable_ns: Ints) -> None:
        """Add network time that only updates wait for to a node, int64[K], beside that of its own states."""
        self._overlappable_ns[node] = self._overlappable_ns.get(node, 0) + overlappable_ns

    def add_edge(self, edge: int, target: int, overlappable_ns: Ints) -> None:
        """Set the network time of an edge that only updates wait for; its gradient comes back from the node ``target``."""
        self._edges[edge] = self.positions[target], overlappable_ns

    def overlap(self) -> Overlap | None:
        """Return all parts that may overlap; None where the cost model has no overlap."""
        if not self._reshardings.overlaps:
            return None
        overlappable = {
            i: OverlapPart(self.positions[i], self._overlapped(ns)) for i, ns in self._overlappable_ns.items() if ns.any()
        }
        edges = {i: OverlapPart(position, self._overlapped(ns)) for i, (position, ns) in self._edges.items() if ns.any()}
        computing = {i: OverlapPart(self.positions[i], ns) for i, ns in enumerate(self._backward_ns) if ns.any()}
        return Overlap(overlappable, edges, computing)

    def _overlapped(self, overlappable_ns: Ints) -> Ints:
        """Return the overlappable part of a time, the same object for the same array.

        A search recognises equal layers by the identity of their arrays.
        """
        key = id(overlappable_ns)
        if key not in self._hideable:
            self._hideable[key] = self._reshardings.overlappable_ns(overlappable_ns)
        return self._hideable[key]
