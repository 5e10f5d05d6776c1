"""What is there for a while in the backward pass, gathered by block while a Problem is built, for
:mod:`...ft.nonadditive.segment_memory`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...ft.nonadditive.segment_memory import Block, Transient
from .edge_costs import Costs
from .remat_segments import Blocks

Ints = np.ndarray


class Transients:
    """By block what its nodes, and the edges from them, don't keep since it is computed again."""

    def __init__(self, blocks: Blocks) -> None:
        self._block = {node: each.block for node, each in blocks.nodes.items()}
        self._large = blocks.large
        self._nodes: dict[int, Ints] = {}
        self._edges: dict[int, dict[int, Ints]] = {}

    def begin(self, node: int, transient: Ints) -> None:
        """What a node doesn't keep of its own, by state."""
        if node in self._block:
            self._nodes[node] = transient

    def add(self, node: int, costs: Costs, where: Ints | bool) -> None:
        """What it doesn't keep beside that, in some states."""
        if costs.transient is not None and node in self._block:
            self._nodes[node] = self._nodes[node] + np.where(where, costs.transient, 0)

    def add_edge(self, edge: int, producer: int, consumer: int, costs: Costs) -> None:
        """What isn't kept since the producer is computed again is there in the producer's block; copies that are there
        while the consumer is computed again, in the consumer's."""
        for node, n_bytes in ((producer, costs.transient), (consumer, costs.held)):
            if n_bytes is not None and node in self._block:
                of_edge = self._edges.setdefault(edge, {})
                before = of_edge.get(self._block[node])
                of_edge[self._block[node]] = n_bytes if before is None else before + n_bytes

    def transient(self, recomputes: Mapping[int, Ints], others: Mapping[int, Ints]) -> Transient | None:
        """All of it; None where nothing is computed again.

        Args:
            recomputes: by node, whether its states compute something again, bool[K].
            others: as of :class:`...ft.nonadditive.segment_memory.Transient`.
        """
        if not self._block:
            return None
        numbers = sorted(set(self._block.values()))
        blocks = []
        for number in numbers:
            nodes = {node: n_bytes for node, n_bytes in self._nodes.items() if self._block[node] == number}
            blocks.append(Block(nodes, {edge: of[number] for edge, of in self._edges.items() if number in of}))
        large = frozenset(place for place, number in enumerate(numbers) if number in self._large)
        plain = {node: np.flatnonzero(~each) for node, each in recomputes.items()}
        return Transient(tuple(blocks), plain, others, large or frozenset(range(len(blocks))))
