"""Find one path by compiled code on the flat graph of layouts: the path that :mod:`.dijkstra` finds, some ten times as fast.

Dijkstra's algorithm goes back from the target and finds the distances of all layouts to it, which are kept: a search that
changes one operator at a time asks for the paths from many layouts to one. Then the layouts on cheapest paths are marked,
from the source on. The path is read off from its end, where ties are decided. O(E log L) for E edges of L layouts.

One of the ends may be of more runs of axes than the layouts of the graph: then it is a step away from some of them, the
distances of the other end are found, and the least sum of both is the path.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from ..orders import Ints, Mask, n_layouts, orders
from ..steps import Move, State, move_between
from .bounded_cache import BoundedCache
from .bulk import Weighted, steps_into
from .dijkstra import StepTimes, enumeration_order
from .layout_graph import LayoutGraph, layout_graph

_WORTH_LOADING = 5_000
"""Layouts from which it pays to load compiled code, and to build the graph, for a single path."""


def is_quick(steps: StepTimes, source: State, target: State, runs: int | None) -> bool:
    """Return whether :func:`quick_moves` pays: an end is in the graph, and compiled code is loaded or worth it."""
    n_axes = len(steps.axis_sizes)
    table = orders(n_axes, runs)
    if not (table.has(*source) or table.has(*target)):
        return False
    is_loaded = f"{__package__}.path_kernels" in sys.modules
    return is_loaded or n_layouts(n_axes, len(steps.shape), runs) >= _WORTH_LOADING


def quick_moves(steps: StepTimes, source: State, target: State, may_be_partial: bool, runs: int | None) -> list[Move]:
    """Return the moves that :func:`.dijkstra.dijkstra_moves` returns. An end at least must be in the graph."""
    if source == target:
        return []
    graph = layout_graph(len(steps.axis_sizes), len(steps.shape), may_be_partial, runs)
    search = _Search(graph, steps, Weighted.of(graph, steps).weight)
    if not graph.orders.has(*target):
        return search.moves_out(source, target)
    if not graph.orders.has(*source):
        return search.moves_in(source, target)
    first, last = graph.number_of([source, target]).tolist()
    rest = search.distances_of(True, last)
    return search.read_off(rest, search.between(rest, [first]), first, last)


_Edges = tuple[Ints, npt.NDArray[np.int32], npt.NDArray[np.int32]]
_kept: BoundedCache[tuple[LayoutGraph, StepTimes, bool, int], Ints] = BoundedCache(1 << 26)


@dataclass(frozen=True, slots=True, eq=False)
class _Search:
    """A graph with the times of one tensor's steps, int64[edges]."""

    graph: LayoutGraph
    steps: StepTimes
    time_ns: Ints

    @property
    def _costs(self) -> tuple[Ints, Mask]:
        return self.time_ns, self.graph.communicates

    def distances_of(self, is_target: bool, end: int) -> Ints:
        """Return the distances of all states to an end, or from there, as they are kept or found now: int64[states]."""
        from . import path_kernels

        key = self.graph, self.steps, is_target, end
        distance = _kept.get(key)
        if distance is None:
            edges = _inward(self.graph) if is_target else _outward(self.graph)
            distance = path_kernels.distances(*edges, *self._costs, end)
            _kept.put(key, distance, distance.nbytes)
        return distance

    def between(self, rest: Ints, firsts: Sequence[int]) -> Mask:
        """Return the states on the cheapest paths from some states, given what is left from each state."""
        from . import path_kernels

        starts = np.array(firsts, np.int64)
        is_between: Mask = path_kernels.on_cheapest_paths(*_outward(self.graph), *self._costs, rest, starts)
        return is_between

    def read_off(
        self, distance: Ints, is_between: Mask | None, first: int, last: int, entries: dict[int, State] | None = None
    ) -> list[Move]:
        """Return the moves of the cheapest path, from its end on.

        Args:
            distance: int64[states], the distances of all states from ``first``; or those to ``last``, where ``is_between``
                has the states on the cheapest paths, bool[states].
            first: the state that the path begins with; -1 if that is outside of the graph.
            entries: the state outside by the states that are next to it on a cheapest path.
        """
        from . import path_kernels

        graph, entries = self.graph, entries or {}
        path: list[Move] = []
        state = last
        while state != first:
            edges = slice(graph.start[state], graph.start[state + 1])
            origin = graph.source[edges]
            ties = np.where(graph.communicates[edges], path_kernels.COLLECTIVE, path_kernels.LOCAL)
            time_ns = self.time_ns[edges]
            weight = np.where(time_ns < path_kernels.LONGEST, (time_ns << path_kernels.TIE_BITS) + ties, path_kernels.FAR)
            if is_between is None:
                on_time = distance[origin] + weight == distance[state]
            else:
                on_time = is_between[origin] & (distance[origin] == distance[state] + weight)
            possible = [(graph.state(number), number) for number in origin[on_time].tolist()]
            if state in entries:
                possible.append((entries[state], -1))
            before, number = min(possible, key=lambda candidate: enumeration_order(candidate[0]))
            move = move_between(before, graph.state(state))
            assert move is not None, "every edge is a move"
            path.append(move)
            state = number
        return path[::-1]

    def moves_in(self, source: State, target: State) -> list[Move]:
        """Return the moves from a state outside of the graph to one inside."""
        (last,) = self.graph.number_of([target]).tolist()
        rest = self.distances_of(True, last)
        near = self._next_to(source, is_target=False)
        least = min(weight + rest[number] for number, weight in near.items())
        entries = {number: source for number, weight in near.items() if weight + rest[number] == least}
        return self.read_off(rest, self.between(rest, list(entries)), -1, last, entries)

    def moves_out(self, source: State, target: State) -> list[Move]:
        """Return the moves from a state of the graph to one outside."""
        graph = self.graph
        (first,) = graph.number_of([source]).tolist()
        distance = self.distances_of(False, first)
        near = self._next_to(target, is_target=True)
        least = min(weight + distance[number] for number, weight in near.items())
        possible = (number for number, weight in near.items() if weight + distance[number] == least)
        before = min(possible, key=lambda number: enumeration_order(graph.state(number)))
        move = move_between(graph.state(before), target)
        assert move is not None, "a neighbour is a move away"
        return [*self.read_off(distance, None, first, before), move]

    def _next_to(self, state: State, is_target: bool) -> dict[int, int]:
        """Return the states of the graph one move before a state outside of it, or after, with the weights of the moves."""
        from . import path_kernels

        ties, bits = (path_kernels.LOCAL, path_kernels.COLLECTIVE), path_kernels.TIE_BITS
        near = steps_into(self.steps, self.graph, state, is_target)
        return {number: (time_ns << bits) + ties[communicates] for number, time_ns, communicates in near}


@lru_cache(maxsize=16)
def _inward(graph: LayoutGraph) -> _Edges:
    """Return the edges by their targets: where those of each state begin, their sources, and their numbers."""
    return graph.start, graph.source, np.arange(len(graph.source), dtype=np.int32)


@lru_cache(maxsize=16)
def _outward(graph: LayoutGraph) -> _Edges:
    """Return the edges by their sources: where those of each state begin, their targets, and their numbers."""
    by_source = np.argsort(graph.source, kind="stable").astype(np.int32)
    start = np.searchsorted(graph.source[by_source], np.arange(len(graph.start)))
    return start, graph.target[by_source], by_source
