"""Find one path by compiled code on the flat graph of layouts: the path that :mod:`.search` finds, some ten times as fast.

Dijkstra's algorithm goes back from the target, because edges are sorted by their targets, and ends when it has come to
the source. Then the layouts on cheapest paths are marked, from the source on. The path is read off from its end, where
ties are decided. O(E log L) for E edges into L layouts that are nearer to the target than the source is.

A search that changes one operator at a time asks for the paths from many layouts to one, or from one to many. So when an
end is asked for again its distances to all layouts, or from all, are found and kept. A path from or to it is then read
off: O(edges into the layouts on cheapest paths).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from importlib.util import find_spec

import numpy as np

from .bulk import Weighted, is_loaded
from .graph import LayoutGraph, layout_graph
from .kept import Kept
from .orders import Ints, Mask, n_layouts, orders
from .search import StepTimes, enumeration_order
from .steps import COMMUNICATING, Move, State, move_between

_WORTH_LOADING = 5_000
"""Layouts from which it pays to load compiled code, and to build the graph, for a single path."""
_ASKED_AGAIN = 2
"""How often an end is asked for before its distances are kept."""


def is_quick(steps: StepTimes, source: State, target: State, runs: int | None) -> bool:
    """Return whether :func:`quick_moves` pays: both ends are in the graph, and compiled code is loaded or worth it."""
    n_axes = len(steps.axis_sizes)
    known = orders(n_axes, runs)
    if not (known.has(*source) and known.has(*target)):
        return False
    return is_loaded() or (n_layouts(n_axes, len(steps.shape), runs) >= _WORTH_LOADING and find_spec("numba") is not None)


def quick_moves(steps: StepTimes, source: State, target: State, partial: bool, runs: int | None) -> list[Move]:
    """Return the moves that :func:`.search.cheapest_moves` returns."""
    graph = layout_graph(len(steps.axis_sizes), len(steps.shape), partial, runs)
    first, last = graph.number_of([source, target]).tolist()
    return _read_off(graph, *_graph_of(graph, steps).distances(first, last), first, last)


def _read_off(graph: LayoutGraph, distance: Ints, weight: Ints, is_between: Mask | None, first: int, last: int) -> list[Move]:
    """Return the moves of the cheapest path, from its end on; see :meth:`_Distances.distances`."""
    found: list[Move] = []
    at = last
    while at != first:
        edges = slice(graph.start[at], graph.start[at + 1])
        origin, of_edges = graph.source[edges], weight[edges]
        if is_between is None:
            on_time = distance[origin] + of_edges == distance[at]
        else:
            on_time = is_between[origin] & (distance[origin] == distance[at] + of_edges)
        before = min(origin[on_time].tolist(), key=lambda number: enumeration_order(graph.state(number)))
        move = move_between(graph.state(before), graph.state(at))
        assert move is not None, "every edge is a move"
        found.append(move)
        at = before
    return found[::-1]


@dataclass(frozen=True, slots=True, eq=False)
class _Distances:
    """A graph with the costs of one tensor's steps, and how often each end was asked for.

    Attributes:
        weight: int64[edges], a step's time, and below it what breaks ties.
        outward: the edges by their sources: their beginnings, targets and weights.
        asked: by (whether it is a target, state), how often it was one.
    """

    graph: LayoutGraph
    weight: Ints
    outward: tuple[Ints, Ints, Ints]
    asked: Counter[tuple[bool, int]] = field(default_factory=Counter)

    @classmethod
    def of(cls, graph: LayoutGraph, steps: StepTimes) -> _Distances:
        from . import compiled

        time_ns = Weighted.of(graph, steps).weight
        ties = np.where(graph.kind < len(COMMUNICATING), compiled.COLLECTIVE, compiled.LOCAL)
        weight = np.where(time_ns < compiled.LONGEST, (time_ns << compiled.TIE_BITS) + ties, compiled.FAR)
        by_source = np.argsort(graph.source, kind="stable")
        start = np.searchsorted(graph.source[by_source], np.arange(len(graph.start)))
        targets = np.repeat(np.arange(len(graph.key), dtype=np.int32), np.diff(graph.start))
        return cls(graph, weight, (start, targets[by_source], weight[by_source]))

    def distances(self, first: int, last: int) -> tuple[Ints, Ints, Mask | None]:
        """Return distances by which the cheapest paths from ``first`` to ``last`` can be read off, and the edges' weights.

        They are those from ``first``, with None; or those to ``last``, with the states on the cheapest paths.
        """
        from . import compiled

        graph, ends = self.graph, ((False, first), (True, last))
        self.asked.update(ends)
        of_first, of_last = (_kept.get((self, *end)) for end in ends)
        if of_first is None and of_last is None:
            if self.asked[True, last] >= max(_ASKED_AGAIN, self.asked[False, first]):
                of_last = compiled.distances(graph.start, graph.source, self.weight, last)
                _kept.put((self, True, last), of_last, of_last.nbytes)
            elif self.asked[False, first] >= _ASKED_AGAIN:
                of_first = compiled.distances(*self.outward, first)
                _kept.put((self, False, first), of_first, of_first.nbytes)
        if of_first is not None:
            return of_first, self.weight, None
        if of_last is not None:
            return of_last, self.weight, compiled.between(*self.outward, of_last, first)
        left, is_between = compiled.settle(graph.start, graph.source, self.weight, first, last)
        return left, self.weight, is_between


_kept: Kept[tuple[_Distances, bool, int], Ints] = Kept(1 << 26)
_graphs: Kept[tuple[LayoutGraph, StepTimes], _Distances] = Kept(1 << 26)


def _graph_of(graph: LayoutGraph, steps: StepTimes) -> _Distances:
    """Return the distances of a tensor's graph, made or as they were kept."""
    found = _graphs.get((graph, steps))
    if found is None:
        found = _Distances.of(graph, steps)
        _graphs.put((graph, steps), found, found.weight.nbytes + sum(each.nbytes for each in found.outward))
    return found
