"""Find one path by compiled code on the flat graph of layouts: the path that :mod:`.search` finds, some ten times as fast.

Dijkstra's algorithm goes back from the target, because edges are sorted by their targets, and ends when it has come to
the source. Then the layouts on cheapest paths are marked, from the source on. The path is read off from its end, where
ties are decided. O(E log L) for E edges into L layouts that are nearer to the target than the source is.

A search that changes one operator at a time asks for the paths from many layouts to one, or from one to many. So what is looked
at for an end is added up, and when that comes to all layouts its distances to all, or from all, are found and kept: at most
twice the work, whatever is asked. A path from or to it is then read off: O(edges into the layouts on cheapest paths).
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from importlib.util import find_spec

import numpy as np
import numpy.typing as npt

from .bulk import Weighted, is_loaded
from .graph import LayoutGraph, layout_graph
from .kept import Kept
from .orders import Ints, Mask, n_layouts, orders
from .search import StepTimes, enumeration_order
from .steps import COMMUNICATING, Move, State, move_between

_WORTH_LOADING = 5_000
"""Layouts from which it pays to load compiled code, and to build the graph, for a single path."""


def is_quick(steps: StepTimes, source: State, target: State, runs: int | None) -> bool:
    """Return whether :func:`quick_moves` pays: both ends are in the graph, and compiled code is loaded or worth it."""
    n_axes = len(steps.axis_sizes)
    known = orders(n_axes, runs)
    if not (known.has(*source) and known.has(*target)):
        return False
    return is_loaded() or (n_layouts(n_axes, len(steps.shape), runs) >= _WORTH_LOADING and find_spec("numba") is not None)


def quick_moves(steps: StepTimes, source: State, target: State, partial: bool, runs: int | None) -> list[Move]:
    """Return the moves that :func:`.search.cheapest_moves` returns."""
    from . import compiled

    graph = layout_graph(len(steps.axis_sizes), len(steps.shape), partial, runs)
    time_ns = Weighted.of(graph, steps).weight
    first, last = graph.number_of([source, target]).tolist()
    distance, is_between = _distances(graph, steps, time_ns, first, last)
    found: list[Move] = []
    at = last
    while at != first:
        edges = slice(graph.start[at], graph.start[at + 1])
        origin, ties = graph.source[edges], np.where(_communicates(graph)[edges], compiled.COLLECTIVE, compiled.LOCAL)
        weight = np.where(time_ns[edges] < compiled.LONGEST, (time_ns[edges] << compiled.TIE_BITS) + ties, compiled.FAR)
        if is_between is None:
            on_time = distance[origin] + weight == distance[at]
        else:
            on_time = is_between[origin] & (distance[origin] == distance[at] + weight)
        before = min(origin[on_time].tolist(), key=lambda number: enumeration_order(graph.state(number)))
        move = move_between(graph.state(before), graph.state(at))
        assert move is not None, "every edge is a move"
        found.append(move)
        at = before
    return found[::-1]


_Edges = tuple[Ints, npt.NDArray[np.int32], npt.NDArray[np.int32]]
_kept: Kept[tuple[LayoutGraph, StepTimes, bool, int], Ints] = Kept(1 << 26)
_looked_at: Kept[tuple[LayoutGraph, StepTimes], Counter[tuple[bool, int]]] = Kept(1 << 10)
"""How many layouts were looked at for paths to a state, or from there. Each counter counts as a byte."""


def _distances(graph: LayoutGraph, steps: StepTimes, time_ns: Ints, first: int, last: int) -> tuple[Ints, Mask | None]:
    """Return distances, int64[states], by which the cheapest paths from ``first`` to ``last`` can be read off.

    They are those from ``first``, with None; or those to ``last``, with the states on the cheapest paths, bool[states].
    """
    from . import compiled

    looked_at = _looked_at.get((graph, steps))
    if looked_at is None:
        looked_at = Counter()
        _looked_at.put((graph, steps), looked_at, 1)
    of_first, of_last = _kept.get((graph, steps, False, first)), _kept.get((graph, steps, True, last))
    costs = time_ns, _communicates(graph)
    if of_first is None and of_last is None:
        if looked_at[True, last] >= max(len(graph.key), looked_at[False, first]):
            of_last = compiled.distances(*_inward(graph), *costs, last)
            _kept.put((graph, steps, True, last), of_last, of_last.nbytes)
        elif looked_at[False, first] >= len(graph.key):
            of_first = compiled.distances(*_outward(graph), *costs, first)
            _kept.put((graph, steps, False, first), of_first, of_first.nbytes)
    if of_first is not None:
        return of_first, None
    if of_last is not None:
        return of_last, compiled.between(*_outward(graph), *costs, of_last, first)
    left, is_between, n_settled = compiled.settle(graph.start, graph.source, *costs, first, last)
    looked_at.update({(False, first): n_settled, (True, last): n_settled})
    return left, is_between


@lru_cache(maxsize=16)
def _communicates(graph: LayoutGraph) -> Mask:
    """Return whether each edge is a collective, bool[edges]."""
    return graph.kind < len(COMMUNICATING)


@lru_cache(maxsize=16)
def _inward(graph: LayoutGraph) -> _Edges:
    """Return the edges by their targets: where those of each state begin, their sources, and their numbers."""
    return graph.start, graph.source, np.arange(len(graph.source), dtype=np.int32)


@lru_cache(maxsize=16)
def _outward(graph: LayoutGraph) -> _Edges:
    """Return the edges by their sources: where those of each state begin, their targets, and their numbers."""
    by_source = np.argsort(graph.source, kind="stable").astype(np.int32)
    start = np.searchsorted(graph.source[by_source], np.arange(len(graph.start)))
    targets = np.repeat(np.arange(len(graph.key), dtype=np.int32), np.diff(graph.start))
    return start, targets[by_source], by_source
