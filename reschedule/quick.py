"""Find one path by compiled code on the flat graph of layouts: the path that :mod:`.search` finds, some ten times as fast.

Dijkstra's algorithm goes back from the target, because edges are sorted by their targets, and ends when it has come to
the source. Then the layouts on cheapest paths are marked, from the source on. The path is read off from its end, where
ties are decided.

O(E log L) for E edges into L layouts that are nearer to the target than the source is.
"""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np

from .bulk import Weighted, is_loaded
from .graph import layout_graph
from .orders import n_layouts, orders
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
    first, at = graph.number_of([source, target]).tolist()
    communicates = graph.kind < len(COMMUNICATING)
    left, is_between = compiled.settle(graph.start, graph.source, time_ns, communicates, first, at)
    found: list[Move] = []
    while at != first:
        edges = slice(graph.start[at], graph.start[at + 1])
        origin = graph.source[edges]
        weight = (time_ns[edges] << compiled.TIE_BITS) + np.where(communicates[edges], compiled.COLLECTIVE, compiled.LOCAL)
        on_time = is_between[origin] & (time_ns[edges] < compiled.LONGEST) & (left[origin] == left[at] + weight)
        before = min(origin[on_time].tolist(), key=lambda number: enumeration_order(graph.state(number)))
        move = move_between(graph.state(before), graph.state(at))
        assert move is not None, "every edge is a move"
        found.append(move)
        at = before
    return found[::-1]
