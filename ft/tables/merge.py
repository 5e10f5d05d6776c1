"""Build the candidates of many arcs, and keep each target's frontier.

A *candidate* is the sum of a point of the one frontier and a point of the other. Compiled code (:mod:`.numba_kernels`)
merges them row by row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..problem import INFEASIBLE, Ints
from .table import Table


@dataclass(frozen=True, slots=True)
class Arcs:
    """Products of a run of points of the one table and a run of points of the other, by ascending target."""

    target: Ints
    a_start: Ints
    a_count: Ints
    b_start: Ints
    b_count: Ints


@dataclass(frozen=True, slots=True)
class Points:
    """Candidates or survivors: their target, their costs, and the points of the two tables that they are the sum of."""

    target: Ints
    mem: Ints
    time: Ints
    a_point: Ints
    b_point: Ints

    @staticmethod
    def concatenate(parts: list[Points]) -> Points:
        """Return all points, part after part."""
        if len(parts) == 1:
            return parts[0]
        return Points(*(np.concatenate([getattr(part, name) for part in parts]) for name in Points.__slots__))


def merge(a: Table, b: Table, arcs: Arcs) -> Points:
    """Return the frontier of each target's candidates, by ascending target, then memory."""
    from .numba_kernels import merge_runs  # here, since loading compiled code takes half a second

    starts = np.flatnonzero(np.diff(arcs.target, prepend=-1))
    bounds = np.append(starts, len(arcs.target))
    runs = np.stack([arcs.a_start, arcs.a_count, arcs.b_start, arcs.b_count])
    counts, points = merge_runs(bounds, runs, a.mem, a.time, b.mem, b.time, INFEASIBLE)
    return Points(np.repeat(arcs.target[starts], counts), *points)
