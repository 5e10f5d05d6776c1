"""Ordered choices of axes, numbered, and the choices of which the layouts on a path may be made.

A layout is made of one order of axes (:class:`Orders`) for each dimension and a set of partial axes. All layouts are too
many where there are many axes: 6 axes and 4 dimensions make 210,000. So beyond ``MOST_LAYOUTS`` a path may only go
through layouts in which each dimension, and the set of partial axes, is made of at most two *runs*, or of one where two
still make too many layouts. A run is a sequence of axes that follow each other in the mesh. The two ends of a path may
be any layouts. This suits the configs on so many devices, which give each factor a contiguous group of axes.
:func:`runs_on_paths` returns how many runs are allowed. It depends only on the numbers of axes and dimensions, so a
table of times and the search for one path see the same layouts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import permutations
from math import comb, perm

import numpy as np
import numpy.typing as npt

Axes = tuple[int, ...]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

MOST_LAYOUTS = 10_000
"""Paths may go through all layouts where there are no more than this many."""
_MOST_IN_RUNS = 20_000
"""Paths may go through all layouts of two runs where there are no more than this many."""


def mask_of_axes(axes: Axes) -> int:
    return sum(1 << axis for axis in axes)


def axes_of_mask(mask: int) -> Axes:
    """Return the axes of a bit mask, ascending."""
    return tuple(axis for axis in range(mask.bit_length()) if mask >> axis & 1)


@dataclass(frozen=True, slots=True, eq=False)
class Lists:
    """Lists of numbers, stored one after the other: list i is ``items[start[i] : start[i + 1]]``."""

    start: Ints
    items: Ints

    @classmethod
    def of(cls, lists: list[list[int]]) -> Lists:
        items = np.array([item for part in lists for item in part], np.int64)
        return cls(np.cumsum([0, *map(len, lists)]), items)

    def at(self, number: int) -> list[int]:
        """Return the list of this number."""
        numbers: list[int] = self.items[self.start[number] : self.start[number + 1]].tolist()
        return numbers

    def items_of(self, lists: Ints) -> tuple[Ints, Ints]:
        """Return, for all items of some lists, one after the other: the position in ``lists``, and the item."""
        counts = self.start[lists + 1] - self.start[lists]
        position = np.repeat(np.arange(len(lists)), counts)
        offset = np.arange(len(position)) - np.repeat(np.cumsum(counts) - counts, counts)
        return position, self.items[self.start[lists][position] + offset]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Orders:
    """All ordered choices of axes over which a dimension can be split, shortest first. Number 0 is the empty one.

    If ``runs`` is not None there are only those of at most so many runs of axes that follow each other in the mesh; the
    same holds for the sets of partial axes.
    """

    n_axes: int
    runs: int | None
    axes: tuple[Axes, ...]
    number: dict[Axes, int]
    mask: Ints  # [orders]: the order's axes as bits
    length: Ints  # [orders]: the number of axes
    prefix: Ints  # [orders, n]: the order without its n minor-most axes
    suffix: Ints  # [orders, n]: the order of its n minor-most axes
    can_be_partial: Mask  # for each mask, whether these axes may be the partial ones
    within: Lists  # for each mask, the non-empty orders of some of these axes
    exactly: Lists  # for each mask, the orders of all these axes
    subsets: Lists  # for each mask, the non-empty masks of some of these axes
    _code: Ints  # [orders]: the axes, counted from 1, as digits of a number in base n_axes + 1
    _by_code: Ints  # the numbers of the orders by ascending code

    def joined(self, major: Ints, minor: Ints) -> Ints:
        """Return the orders ``major`` followed by ``minor``, which must be disjoint; -1 where there is no such order."""
        shift = np.array([(self.n_axes + 1) ** n for n in range(self.n_axes + 1)])
        code = self._code[major] * shift[self.length[minor]] + self._code[minor]
        index = np.searchsorted(self._code, code, sorter=self._by_code)
        number = self._by_code[np.minimum(index, len(self.axes) - 1)]
        return np.where(self._code[number] == code, number, -1)

    def has(self, splits: tuple[Axes, ...], partial: Axes) -> bool:
        """Return whether a layout is made of these orders and sets of partial axes."""
        return bool(self.can_be_partial[mask_of_axes(partial)]) and all(axes in self.number for axes in splits)


def _orders_in_runs(n_axes: int, runs: int) -> list[Axes]:
    result: dict[Axes, None] = {(): None}
    for _ in range(runs):
        for order in list(result):
            for first in range(n_axes):
                for last in range(first + 1, n_axes + 1):
                    if not set(order) & set(range(first, last)):
                        result[order + tuple(range(first, last))] = None
    return sorted(result, key=lambda order: (len(order), order))


@cache
def orders(n_axes: int, runs: int | None) -> Orders:
    """Return the numbered orders of ``n_axes`` axes, of at most ``runs`` runs; None for any number."""
    counts = range(n_axes + 1)
    if runs is None:
        axes = [order for n in counts for order in permutations(range(n_axes), n)]
    else:
        axes = _orders_in_runs(n_axes, runs)
    number = {order: position for position, order in enumerate(axes)}
    mask = [mask_of_axes(order) for order in axes]
    masks = range(1 << n_axes)
    can_be_partial = [runs is None or bin(whole & ~(whole << 1)).count("1") <= runs for whole in masks]
    within: list[list[int]] = [[] for _ in masks]
    exactly: list[list[int]] = [[] for _ in masks]
    for position, bits in enumerate(mask):
        exactly[bits].append(position)
    parts = [[part for part in range(1, whole + 1) if part & whole == part] for whole in masks]
    for whole in masks:
        within[whole] = [position for part in parts[whole] for position in exactly[part]]
    code = np.array([sum((axis + 1) * (n_axes + 1) ** index for index, axis in enumerate(reversed(o))) for o in axes])
    return Orders(
        n_axes=n_axes,
        runs=runs,
        axes=tuple(axes),
        number=number,
        mask=np.array(mask, np.int64),
        length=np.array([len(order) for order in axes], np.int64),
        prefix=np.array([[number[order[: max(len(order) - n, 0)]] for n in counts] for order in axes], np.int64),
        suffix=np.array([[number[order[max(len(order) - n, 0) :]] for n in counts] for order in axes], np.int64),
        can_be_partial=np.array(can_be_partial, bool),
        within=Lists.of(within),
        exactly=Lists.of(exactly),
        subsets=Lists.of(parts),
        _code=code,
        _by_code=np.argsort(code),
    )


@cache
def n_layouts(n_axes: int, rank: int, runs: int | None = None) -> int:
    """Return the number of layouts, partial ones included, of tensors of ``rank`` dimensions on ``n_axes`` axes."""
    if runs is None:
        return sum(perm(n_axes, m) * comb(max(m + rank - 1, 0), m) << (n_axes - m) for m in range(n_axes + 1))
    table = orders(n_axes, runs)
    masks = np.arange(1 << n_axes)
    n_exactly = np.diff(table.exactly.start)
    ways = (masks == 0).astype(np.int64)  # for each mask, to split the dimensions so far over exactly these axes
    for _ in range(rank):
        before, ways = ways, np.zeros_like(ways)
        for part in np.flatnonzero(n_exactly):
            supersets = masks[masks & part == part]
            ways[supersets] += before[supersets ^ part] * n_exactly[part]
    sums = masks[table.can_be_partial]
    return int(sum(ways[masks & part == 0].sum() for part in sums))


@cache
def runs_on_paths(n_axes: int, rank: int) -> int | None:
    """Return the most runs of axes that a dimension may be made of in layouts on the way; None for any number."""
    if n_layouts(n_axes, rank) <= MOST_LAYOUTS:
        return None
    return 2 if n_layouts(n_axes, rank, 2) <= _MOST_IN_RUNS else 1
