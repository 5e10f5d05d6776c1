"""Collect what a Problem's nodes and edges are charged while it is built.

That is their costs (:class:`NodeCosts`), the transient bytes of each rematerialization segment (:class:`Transients`), with
which :mod:`...ft.nonadditive.segment_memory` searches, and which parts of times overlap (:class:`OverlapTimes`), with which
:mod:`...ft.nonadditive.overlap` does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ...costs.resharding_costs import ReshardingCosting
from ...ft.nonadditive.overlap import Overlap, OverlapPart
from ...ft.nonadditive.segment_memory import SegmentMemory, Transient
from ...ft.problem import Node
from ...ir.graph import SOURCES, Graph
from ...sharding.consumers import Consumer
from .edge_costs import EdgeCosts
from .fusion_groups import FusionGroup
from .node_states import States
from .remat_segments import Segments

Ints = np.ndarray


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
