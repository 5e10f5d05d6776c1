"""Build the candidates of many arcs, and keep each target's frontier.

A *candidate* is the sum of a point of the one frontier and a point of the other. Compiled code (:mod:`.numba_kernels`)
merges them row by row. Few are built and reduced in NumPy, since loading compiled code takes about half a second.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np

from ..pareto import reduce_cells_sorted_by_cell
from ..problem import INFEASIBLE, Ints
from .table import Table, expand_ranges

_WORTH_LOADING = 2e5
"""Candidates in one call from which it pays to load compiled code: 0.6 s, where NumPy takes 10 ms for each 1e5."""
_WORTH_CALLING = 1e2


@dataclass(frozen=True, slots=True)
class Arcs:
    """Products of a run of points of the one table and a run of points of the other, by ascending target."""

    target: Ints
    a_start: Ints
    a_count: Ints
    b_start: Ints
    b_count: Ints

    def take(self, which: Ints | slice) -> Arcs:
        """Return some of the arcs."""
        return Arcs(*(getattr(self, name)[which] for name in self.__slots__))


@dataclass(frozen=True, slots=True)
class Points:
    """Candidates or survivors: their target, their costs, and the points of the two tables that they are the sum of."""

    target: Ints
    mem: Ints
    time: Ints
    a_point: Ints
    b_point: Ints

    def take(self, which: Ints | slice) -> Points:
        """Return some of the points."""
        return Points(*(getattr(self, name)[which] for name in self.__slots__))

    @staticmethod
    def concatenate(parts: list[Points]) -> Points:
        """Return all points, part after part."""
        if len(parts) == 1:
            return parts[0]
        return Points(*(np.concatenate([getattr(part, name) for part in parts]) for name in Points.__slots__))

    def reduced(self) -> Points:
        """Return each target's frontier, by ascending target, then memory."""
        return self.take(reduce_cells_sorted_by_cell(self.target, self.mem, self.time))


def merge(a: Table, b: Table, arcs: Arcs) -> Points:
    """Return the frontier of each target's candidates, by ascending target, then memory."""
    if not (len(arcs.target) and is_for_compiled_code(float((arcs.a_count * arcs.b_count).sum()))):
        return _candidates(a, b, arcs).reduced()
    from .numba_kernels import merge_runs

    begins = np.flatnonzero(np.diff(arcs.target, prepend=-1))
    bounds = np.append(begins, len(arcs.target))
    runs = np.stack([arcs.a_start, arcs.a_count, arcs.b_start, arcs.b_count])
    counts, points = merge_runs(bounds, runs, a.mem, a.time, b.mem, b.time, INFEASIBLE)
    return Points(np.repeat(arcs.target[begins], counts), *points)


def is_loaded() -> bool:
    """Return whether compiled code is loaded."""
    return f"{__package__}.numba_kernels" in sys.modules


def is_for_compiled_code(n_candidates: float) -> bool:
    """Return whether compiled code pays; once it is loaded, it pays much earlier."""
    return n_candidates > (_WORTH_CALLING if is_loaded() else _WORTH_LOADING)


def _candidates(a: Table, b: Table, arcs: Arcs) -> Points:
    """Return all allowed candidates of the arcs."""
    a_count, b_count = arcs.a_count, arcs.b_count
    count = a_count * b_count
    target = np.repeat(arcs.target, count)
    if (b_count == 1).all():
        a_point = expand_ranges(arcs.a_start, count)
        b_point = np.repeat(arcs.b_start, count)
    elif (a_count == 1).all():
        a_point = np.repeat(arcs.a_start, count)
        b_point = expand_ranges(arcs.b_start, count)
    else:
        row = expand_ranges(arcs.a_start, a_count)
        row_count = np.repeat(b_count, a_count)
        a_point = np.repeat(row, row_count)
        b_point = expand_ranges(np.repeat(arcs.b_start, a_count), row_count)
    mem, time = a.mem[a_point] + b.mem[b_point], a.time[a_point] + b.time[b_point]
    points = Points(target, mem, time, a_point, b_point)
    allowed = (mem < INFEASIBLE) & (time < INFEASIBLE)
    return points if allowed.all() else points.take(np.flatnonzero(allowed))
