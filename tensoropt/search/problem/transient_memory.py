"""Collect the transient bytes of each rematerialization segment while a Problem is built.

:mod:`...ft.nonadditive.segment_memory` searches with them.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...ft.nonadditive.segment_memory import SegmentMemory, Transient
from .edge_costs import EdgeCosts
from .remat_segments import Segments

Ints = np.ndarray


class Transients:
    """The bytes of each rematerialization segment that are in memory only while the backward pass is in it.

    They belong to nodes of the segment and to edges from them: what isn't saved because it is rematerialized.
    """

    def __init__(self, segments: Segments) -> None:
        self._block = {node: remat.segment for node, remat in segments.nodes.items()}
        self._large = segments.large
        self._nodes: dict[int, Ints] = {}
        self._edges: dict[int, dict[int, Ints]] = {}
        self._sums: dict[tuple[object, ...], tuple[Ints, object]] = {}  # by identities, with what has them

    def begin(self, node: int, transient: Ints) -> None:
        """Set the transient bytes of the node's own results, int64[K]; ignored if the node is in no segment."""
        if node in self._block:
            self._nodes[node] = transient

    def add(self, node: int, costs: EdgeCosts, mask: Ints | bool) -> None:
        """Add the transient bytes of a resharding within the node, in the states given by ``mask``."""
        if costs.transient is not None and node in self._block:
            self._nodes[node] = self._sum(self._nodes[node], costs.transient, mask)

    def add_edge(self, edge: int, producer: int, consumer: int, costs: EdgeCosts) -> None:
        """Add an edge's transient bytes to the producer's segment, and its held bytes to the consumer's.

        Transient is what isn't saved because the producer is rematerialized; held are the regathered copies that stay in
        memory from the consumer's rematerialization on.
        """
        for node, n_bytes in ((producer, costs.transient), (consumer, costs.held)):
            if n_bytes is not None and node in self._block:
                edge_bytes = self._edges.setdefault(edge, {})
                previous = edge_bytes.get(self._block[node])
                edge_bytes[self._block[node]] = n_bytes if previous is None else self._sum(previous, n_bytes, True)

    def _sum(self, base: Ints, extra: Ints, mask: Ints | bool) -> Ints:
        """Return bytes with more added where that is so: one object for the same arrays, as equal layers have them."""
        key = id(base), id(extra), mask if isinstance(mask, bool) else mask.tobytes()
        if key not in self._sums:
            self._sums[key] = base + np.where(mask, extra, 0), (base, extra)
        return self._sums[key][0]

    def transient(self, rematerializes: Mapping[int, Ints], others: Mapping[int, Ints]) -> Transient | None:
        """Return the transient memory of all segments; None where nothing can be rematerialized.

        Args:
            rematerializes: for each node, whether each of its states rematerializes operators, bool[K].
            others: as in :class:`...ft.nonadditive.segment_memory.Transient`.
        """
        if not self._block:
            return None
        numbers = sorted(set(self._block.values()))
        nodes: dict[int, dict[int, Ints]] = {number: {} for number in numbers}
        edges: dict[int, dict[int, Ints]] = {number: {} for number in numbers}
        for node, n_bytes in self._nodes.items():
            nodes[self._block[node]][node] = n_bytes
        for edge, edge_bytes in self._edges.items():
            for number, n_bytes in edge_bytes.items():
                edges[number][edge] = n_bytes
        segments = [SegmentMemory(nodes[number], edges[number]) for number in numbers]
        large = frozenset(index for index, number in enumerate(numbers) if number in self._large)
        plain_states = {node: np.flatnonzero(~mask) for node, mask in rematerializes.items()}
        return Transient(tuple(segments), plain_states, others, large or frozenset(range(len(segments))))
