"""What is there for a while in the backward pass, gathered by block while a Problem is built, for :mod:`.ft.transient`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from .blocks import Blocks
from .delivery_arrays import Costs
from .ft.transient import Block, Transient

Ints = np.ndarray


class Transients:
    """By block what its nodes, and the edges from them, don't keep since it is computed again.

    The problem's memory has a share of what the large blocks have: one divided by their number.
    """

    def __init__(self, blocks: Blocks) -> None:
        self._block = {node: each.block for node, each in blocks.nodes.items()}
        self._large = blocks.large & set(self._block.values())
        self._nodes: dict[int, Ints] = {}
        self._edges: dict[int, tuple[int, Ints]] = {}
        self._charged: dict[tuple[int, int], tuple[Costs, Ints]] = {}

    def charged(self, node: int, mem: Ints, transient: Ints) -> Ints:
        """A node's memory with its share of what is there for a while."""
        if node not in self._block:
            return mem
        self._nodes[node] = transient
        return mem + self._part(node, transient)

    def of_node(self, node: int, costs: Costs, where: Ints) -> Ints:
        """The memory of more that a node is charged for, in some states."""
        if costs.transient is None or node not in self._block:
            return costs.mem
        before = self._nodes[node]
        after = self._nodes[node] = before + np.where(where, costs.transient, 0)
        # Rounded down once for the node.
        return costs.mem + self._part(node, after) - self._part(node, before)

    def of_edge(self, edge: int, producer: int, costs: Costs) -> Ints:
        """An edge's memory with its share; equal arrays stay equal by identity, by which a search knows equal layers."""
        if costs.transient is None or producer not in self._block:
            return costs.mem
        self._edges[edge] = self._block[producer], costs.transient
        key = id(costs), self._share(self._block[producer])
        if key not in self._charged:
            self._charged[key] = costs, costs.mem + self._part(producer, costs.transient)
        return self._charged[key][1]

    def _share(self, block: int) -> int:
        return len(self._large) if block in self._large else 0

    def _part(self, node: int, transient: Ints) -> Ints:
        share = self._share(self._block[node])
        return transient // share if share else np.zeros_like(transient)

    def transient(self, recomputes: Mapping[int, Ints]) -> Transient | None:
        """All of it; None where nothing is computed again.

        Args:
            recomputes: by node, whether its states compute something again, bool[K].
        """
        if not self._block:
            return None
        blocks = []
        for block in sorted(set(self._block.values())):
            nodes = {node: n_bytes for node, n_bytes in self._nodes.items() if self._block[node] == block}
            edges = {edge: n_bytes for edge, (of, n_bytes) in self._edges.items() if of == block}
            blocks.append(Block(nodes, edges, self._share(block)))
        return Transient(tuple(blocks), {node: np.flatnonzero(~each) for node, each in recomputes.items()})
