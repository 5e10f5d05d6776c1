"""Ordered choices of axes, numbered, and which of them layouts on a path may be made of.

A layout is made of one :class:`Orders` a dimension and a set of partial axes. All of them are too many where there are many
axes: 6 axes and 4 dimensions make 210,000 layouts. So beyond ``MOST_LAYOUTS`` a path may only go through layouts in which
each dimension, and the set of partial axes, is made of at most two *runs*, axes that follow each other in the mesh, or of
one where two are still too many. Its two ends may be any. That goes with the configs on so many devices, which give each
factor a contiguous group of axes. :func:`runs_on_paths` says what holds where: it depends on nothing but the numbers of axes
and dimensions, so a table of times and the search for one path see the same layouts.
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
"""Up to so many layouts, paths may go through all of them."""
_MOST_IN_RUNS = 20_000


def mask_of_axes(axes: Axes) -> int:
    return sum(1 << axis for axis in axes)


def axes_of_mask(mask: int) -> Axes:
    """The axes of a bit mask, ascending."""
    return tuple(axis for axis in range(mask.bit_length()) if mask >> axis & 1)


@dataclass(frozen=True, slots=True, eq=False)
class Lists:
    """Lists of numbers, one after the other: list i is ``items[start[i] : start[i + 1]]``."""

    start: Ints
    items: Ints

    @classmethod
    def of(cls, lists: list[list[int]]) -> Lists:
        items = np.array([item for each in lists for item in each], np.int64)
        return cls(np.cumsum([0, *map(len, lists)]), items)

    def at(self, which: int) -> list[int]:
        found: list[int] = self.items[self.start[which] : self.start[which + 1]].tolist()
        return found

    def each(self, which: Ints) -> tuple[Ints, Ints]:
        """For all items of the lists ``which``, one after the other: the position in ``which``, and the item."""
        counts = self.start[which + 1] - self.start[which]
        position = np.repeat(np.arange(len(which)), counts)
        within = np.arange(len(position)) - np.repeat(np.cumsum(counts) - counts, counts)
        return position, self.items[self.start[which][position] + within]


@dataclass(frozen=True, slots=True, eq=False)
class Orders:
    """Ordered choices of axes, shortest first: what a dimension can be split over. Number 0 is none.

    With ``runs`` None these are all, else those of at most so many runs of axes that follow each other in the mesh; the
    same holds for sets of partial axes.
    """

    n_axes: int
    runs: int | None
    axes: tuple[Axes, ...]
    number: dict[Axes, int]
    mask: Ints  # [orders]
    length: Ints  # [orders]
    prefix: Ints  # [orders, n]: without the n minor-most
    suffix: Ints  # [orders, n]: the n minor-most
    place: Ints  # [orders, axes]: where in the order the axis is; -1 for nowhere
    can_be_partial: Mask  # by mask
    within: Lists  # by mask: the orders, not empty, of some of these axes
    exactly: Lists  # by mask: the orders of all these axes
    subsets: Lists  # by mask: the masks, not empty, of some of these axes
    _code: Ints  # [orders]: the axes, counted from 1, as digits of a number in base n_axes + 1
    _by_code: Ints  # the orders by ascending code

    def joined(self, major: Ints, minor: Ints) -> Ints:
        """The orders ``major`` followed by ``minor``, disjoint ones; -1 where that is none of these."""
        shift = np.array([(self.n_axes + 1) ** n for n in range(self.n_axes + 1)])
        code = self._code[major] * shift[self.length[minor]] + self._code[minor]
        place = np.searchsorted(self._code, code, sorter=self._by_code)
        found = self._by_code[np.minimum(place, len(self.axes) - 1)]
        return np.where(self._code[found] == code, found, -1)

    def has(self, splits: tuple[Axes, ...], partial: Axes) -> bool:
        """Whether a layout is made of these."""
        return bool(self.can_be_partial[mask_of_axes(partial)]) and all(axes in self.number for axes in splits)

    def renamed(self, names: Ints) -> tuple[Ints, Ints]:
        """What becomes of each order, and of each mask, if axis i is called ``names[i]``; all orders must be there."""
        code = np.zeros(len(self.axes), np.int64)
        for axis, name in enumerate(names.tolist()):
            place = self.place[:, axis]
            code += np.where(place >= 0, (name + 1) * (self.n_axes + 1) ** (self.length - 1 - place).clip(0), 0)
        mask = np.zeros(1 << self.n_axes, np.int64)
        for axis, name in enumerate(names.tolist()):
            mask |= (np.arange(len(mask)) >> axis & 1) << name
        return self._by_code[np.searchsorted(self._code, code, sorter=self._by_code)], mask


def _orders_in_runs(n_axes: int, runs: int) -> list[Axes]:
    found: dict[Axes, None] = {(): None}
    for _ in range(runs):
        for order in list(found):
            for first in range(n_axes):
                for last in range(first + 1, n_axes + 1):
                    if not set(order) & set(range(first, last)):
                        found[order + tuple(range(first, last))] = None
    return sorted(found, key=lambda order: (len(order), order))


@cache
def orders(n_axes: int, runs: int | None) -> Orders:
    counts = range(n_axes + 1)
    if runs is None:
        axes = [order for n in counts for order in permutations(range(n_axes), n)]
    else:
        axes = _orders_in_runs(n_axes, runs)
    number = {order: position for position, order in enumerate(axes)}
    mask = [mask_of_axes(order) for order in axes]
    everything = range(1 << n_axes)
    can_be_partial = [runs is None or bin(whole & ~(whole << 1)).count("1") <= runs for whole in everything]
    within: list[list[int]] = [[] for _ in everything]
    exactly: list[list[int]] = [[] for _ in everything]
    for position, chosen in enumerate(mask):
        exactly[chosen].append(position)
    parts = [[part for part in range(1, whole + 1) if part & whole == part] for whole in everything]
    for whole in everything:
        within[whole] = [position for part in parts[whole] for position in exactly[part]]
    code = np.array([sum((axis + 1) * (n_axes + 1) ** place for place, axis in enumerate(reversed(o))) for o in axes])
    return Orders(
        n_axes,
        runs,
        tuple(axes),
        number,
        np.array(mask, np.int64),
        np.array([len(order) for order in axes], np.int64),
        np.array([[number[order[: max(len(order) - n, 0)]] for n in counts] for order in axes], np.int64),
        np.array([[number[order[max(len(order) - n, 0) :]] for n in counts] for order in axes], np.int64),
        np.array([[o.index(a) if a in o else -1 for a in range(n_axes)] for o in axes], np.int64).reshape(len(axes), -1),
        np.array(can_be_partial, bool),
        Lists.of(within),
        Lists.of(exactly),
        Lists.of(parts),
        code,
        np.argsort(code),
    )


@cache
def n_layouts(n_axes: int, rank: int, runs: int | None = None) -> int:
    """The number of layouts of tensors of ``rank`` dimensions on meshes with ``n_axes`` axes, partial ones included."""
    if runs is None:
        return sum(perm(n_axes, m) * comb(max(m + rank - 1, 0), m) << (n_axes - m) for m in range(n_axes + 1))
    known = orders(n_axes, runs)
    masks = np.arange(1 << n_axes)
    n_exactly = np.diff(known.exactly.start)
    ways = (masks == 0).astype(np.int64)  # to split some dimensions over exactly these axes
    for _ in range(rank):
        before, ways = ways, np.zeros_like(ways)
        for part in np.flatnonzero(n_exactly):
            wholes = masks[masks & part == part]
            ways[wholes] += before[wholes ^ part] * n_exactly[part]
    sums = masks[known.can_be_partial]
    return int(sum(ways[masks & part == 0].sum() for part in sums))


@cache
def runs_on_paths(n_axes: int, rank: int) -> int | None:
    """Of how many runs of axes a dimension may be made on the way; None for any."""
    if n_layouts(n_axes, rank) <= MOST_LAYOUTS:
        return None
    return 2 if n_layouts(n_axes, rank, 2) <= _MOST_IN_RUNS else 1
