"""Build the candidates of many arcs, and keep each target's frontier.

A *candidate* is the sum of a point of the one frontier and a point of the other. Most candidates are far from the target's
frontier and need never be built. The product of a run of points of the one frontier and a run of the other lies above and to
the right of its *corner* (least memory of both, least time of both). Cut into runs of ``TILE`` points, a product falls into
tiles. One true candidate of each tile makes a first, coarse frontier of the target, and a tile whose corner is strictly
dominated by it is dropped completely. What is left is built and reduced in blocks of at most ``BLOCK`` candidates, so that
temporary memory is bounded whatever the frontiers are. Exact: what is dropped is strictly dominated by a candidate, and ties
are untouched.

Complexity: O(N / TILE^2 log N) for N candidates to find the tiles, O(M log M) for the M candidates in tiles that stay.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np

from ..pareto import reduce_cells_sorted_by_cell
from ..problem import INFEASIBLE, Ints
from .table import Table, expand_ranges, offsets_of

BLOCK = 1 << 20
"""Candidates, or tiles, that are looked at together: about 100 bytes of temporary memory each."""
TILE = 16
"""Points of either frontier in a tile."""
_WORTH_TILING = 32
"""Candidates per arc, on average, from which tiling saves more than it costs."""
_WORTH_LOADING = 1e6
"""Candidates in one call from which it pays to load compiled code."""
_WORTH_CALLING = 1e2
_KEY_BITS = 62


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

    def tiled(self, a_size: Ints, b_size: Ints) -> Arcs:
        """Return the same products cut into tiles of at most ``a_size`` by ``b_size`` points (given for each arc)."""
        a_tiles, b_tiles = -(-self.a_count // a_size), -(-self.b_count // b_size)
        n_tiles = a_tiles * b_tiles
        if (n_tiles == 1).all():
            return self
        arc = np.repeat(np.arange(len(n_tiles)), n_tiles)
        a_tile, b_tile = np.divmod(expand_ranges(np.zeros_like(n_tiles), n_tiles), b_tiles[arc])
        a_begin, b_begin = a_tile * a_size[arc], b_tile * b_size[arc]
        return Arcs(
            self.target[arc],
            self.a_start[arc] + a_begin,
            np.minimum(a_size[arc], self.a_count[arc] - a_begin),
            self.b_start[arc] + b_begin,
            np.minimum(b_size[arc], self.b_count[arc] - b_begin),
        )


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
    """Return the frontier of each target's candidates, by ascending target, then memory.

    Large problems go to compiled code where there is Numba; small ones must not wait for a compiler.
    """
    if len(arcs.target) and is_for_compiled_code(float((arcs.a_count * arcs.b_count).sum())):
        return merge_compiled(a, b, arcs)
    return merge_in_numpy(a, b, arcs)


def merge_compiled(a: Table, b: Table, arcs: Arcs) -> Points:
    """Do what ``merge`` does, by :mod:`.numba_kernels`. Of equal points it may keep others than ``merge_in_numpy``.

    Raises:
        ImportError: Numba is not installed.
    """
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
    if is_loaded():
        return n_candidates > _WORTH_CALLING
    return n_candidates > _WORTH_LOADING and find_spec("numba") is not None


def merge_in_numpy(a: Table, b: Table, arcs: Arcs) -> Points:
    """Do what ``merge`` does, in NumPy alone: for small problems, without Numba, and as the oracle of compiled code."""
    done: list[Points] = []
    held: list[Points] = []  # points of the last target so far, which may have more arcs in the next block
    for block in _blocks(a, b, arcs):
        points = Points.concatenate([*held, _candidates(a, b, block)]).reduced()
        cut = int(np.searchsorted(points.target, points.target[-1])) if len(points.target) else 0
        done.append(points.take(slice(0, cut)))
        held = [points.take(slice(cut, None))]
    return Points.concatenate([*done, *held]) if held else _candidates(a, b, arcs)


def _blocks(a: Table, b: Table, arcs: Arcs) -> Iterator[Arcs]:
    """Yield arcs with at most BLOCK candidates together, without the tiles that are dominated."""
    whole = np.maximum(BLOCK // arcs.b_count, 1)
    arcs = arcs.tiled(whole, np.full_like(whole, BLOCK))
    candidates = arcs.a_count * arcs.b_count
    if candidates.sum() < _WORTH_TILING * len(candidates):
        yield from _chunks(arcs, candidates)
        return
    tiles = -(-arcs.a_count // TILE) * -(-arcs.b_count // TILE)
    for some in _chunks(arcs, tiles):
        size = np.full(len(some.target), TILE, np.int64)
        near = _without_dominated(a, b, some.tiled(size, size))
        yield from _chunks(near, near.a_count * near.b_count)


def _chunks(arcs: Arcs, weight: Ints) -> Iterator[Arcs]:
    """Yield the arcs in order, with at most BLOCK weight at a time, or one arc."""
    before = offsets_of(weight)
    start = 0
    while start < len(weight):
        stop = max(int(np.searchsorted(before, before[start] + BLOCK, side="right")) - 1, start + 1)
        yield arcs.take(slice(start, stop))
        start = stop


def _without_dominated(a: Table, b: Table, tiles: Arcs) -> Arcs:
    """Return the tiles without those whose corner is strictly dominated by a candidate for the same target."""
    a_last, b_last = tiles.a_start + tiles.a_count - 1, tiles.b_start + tiles.b_count - 1
    mem = a.mem[tiles.a_start] + b.mem[tiles.b_start]
    time = a.time[a_last] + b.time[b_last]
    shift = int(mem.max()).bit_length()
    if int(tiles.target[-1]).bit_length() + shift > _KEY_BITS:
        return tiles
    first_time = a.time[tiles.a_start] + b.time[tiles.b_start]
    allowed = np.flatnonzero((mem < INFEASIBLE) & (first_time < INFEASIBLE))
    if len(allowed) == 0:
        return tiles
    key = (tiles.target << shift) + mem
    coarse = allowed[reduce_cells_sorted_by_cell(tiles.target[allowed], mem[allowed], first_time[allowed])]
    nearest = coarse[np.maximum(np.searchsorted(key[coarse], key, side="right") - 1, 0)]
    is_dominated = (tiles.target[nearest] == tiles.target) & (mem[nearest] <= mem) & (first_time[nearest] < time)
    return tiles.take(np.flatnonzero(~is_dominated))


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
