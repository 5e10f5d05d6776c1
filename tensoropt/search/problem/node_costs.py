"""Add up the costs that a Problem's nodes are charged while their edges are built; equal sums are one object."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ...ft.problem import Node
from .edge_costs import EdgeCosts


@dataclass(frozen=True)
class _Charged:
    """A node's own costs, and the costs that came on top: each in the states that are given as bool[K], or in all."""

    name: str
    mem_bytes: np.ndarray
    time_ns: np.ndarray
    more: list[tuple[EdgeCosts, np.ndarray | None]] = field(default_factory=list)

    @property
    def key(self) -> tuple[object, ...]:
        """Return what is equal for nodes of equal costs: of equal layers, all arrays are the same objects."""
        charges = ((id(costs), None if mask is None else mask.tobytes()) for costs, mask in self.more)
        return id(self.mem_bytes), id(self.time_ns), *charges


class NodeCosts:
    """The nodes of a Problem, numbered in the order in which they are added."""

    def __init__(self) -> None:
        self._nodes: list[_Charged] = []

    def __len__(self) -> int:
        return len(self._nodes)

    def name(self, node: int) -> str:
        return self._nodes[node].name

    def add(self, name: str, mem_bytes: np.ndarray, time_ns: np.ndarray) -> None:
        """Add a node with costs of its own, int64[K]."""
        self._nodes.append(_Charged(name, mem_bytes, time_ns))

    def charge(self, node: int, costs: EdgeCosts, mask: np.ndarray | None = None) -> None:
        """Charge a node for a resharding within it, in the states given by ``mask``."""
        self._nodes[node].more.append((costs, mask))

    def nodes(self) -> tuple[Node, ...]:
        """Return the nodes with all that they were charged."""
        first: dict[tuple[object, ...], Node] = {}
        nodes = []
        for charged in self._nodes:
            twin = first.get(charged.key)
            if twin is None:
                mem_bytes, time_ns = charged.mem_bytes, charged.time_ns
                for costs, mask in charged.more:
                    mem_bytes = mem_bytes + (costs.mem if mask is None else np.where(mask, costs.mem, 0))
                    time_ns = time_ns + (costs.time_ns if mask is None else np.where(mask, costs.time_ns, 0))
                nodes.append(Node(charged.name, mem_bytes, time_ns))
                first[charged.key] = nodes[-1]
            else:
                nodes.append(Node(charged.name, twin.mem_bytes, twin.time_ns))
        return tuple(nodes)
