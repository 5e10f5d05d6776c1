"""Number the layouts of a mesh, and tell of many of them at once, in arrays, what :mod:`..layout` tells of one.

A layout is a row of *places*, one for each axis of the mesh: the dimension that the axis splits times the number of axes,
plus the axis's position there (major first); IDLE or PARTIAL where it splits none. What holds between two layouts then
holds axis by axis.

- No communication is needed (:func:`..layout.needs_communication`) where each axis is idle in the source, or partial in the
  target, or splits the same dimension behind the same axes in both.
- The target is a view of the source (:func:`..layout.is_view`) where they differ, and each axis has the same place in both,
  or is idle in the source and splits the first dimension of the target.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ..layout import Layout, Shape
from ..mesh import Mesh
from ..orders import Ints, Mask

IDLE, PARTIAL = -1, -2


class LayoutNumbers:
    """The layouts of one mesh that have come up, numbered from 0 in the order in which they did."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self.n_axes = len(mesh.sizes)
        self._number_of_row: dict[bytes, int] = {}
        self._number_of_layout: dict[Layout, int] = {}
        self._layouts: dict[int, Layout] = {}
        self._heads: dict[tuple[int, int], int] = {}  # the number of axes 0..n of a dimension, by that of 0..n-1 and axis n
        # One row for each number: rank and places; the number of blocks of each dimension; the used axes as bits; for
        # each axis that splits a dimension the number of the axes up to it there, or -1.
        self._rows = np.zeros((0, 1 + self.n_axes), np.int16)
        self._blocks = np.ones((0, 0), np.int64)
        self._used = np.zeros(0, np.int64)
        self._head = np.zeros((0, self.n_axes), np.int32)

    def __len__(self) -> int:
        return len(self._number_of_row)

    def of_places(self, places: np.ndarray, rank: int) -> Ints:
        """Return the numbers of layouts of tensors of ``rank`` dimensions, given by their places, int[layouts, axes]."""
        rows = np.empty((len(places), 1 + self.n_axes), np.int16)
        rows[:, 0], rows[:, 1:] = rank, places
        number_of = self._number_of_row
        n_before = len(number_of)
        keys = rows.view(np.dtype((np.void, rows.itemsize * rows.shape[1]))).reshape(-1).tolist()
        numbers = np.array([number_of.setdefault(key, len(number_of)) for key in keys], np.int64)
        if len(number_of) > n_before:
            highest = np.maximum.accumulate(np.concatenate([[n_before - 1], numbers]))
            self._add(rows[numbers > highest[:-1]])
        return numbers

    def of(self, layouts: Iterable[Layout]) -> Ints:
        """Return the numbers of layouts."""
        return np.array([self._number_of(layout) for layout in layouts], np.int64)

    def layout(self, number: int) -> Layout:
        """Return the layout of a number."""
        if number not in self._layouts:
            rank, *places = self._rows[number].tolist()
            splits: list[list[int]] = [[] for _ in range(rank)]
            for place, axis in sorted((place, axis) for axis, place in enumerate(places) if place >= 0):
                splits[place // self.n_axes].append(axis)
            partial = tuple(axis for axis, place in enumerate(places) if place == PARTIAL)
            self._layouts[number] = Layout(self.mesh, tuple(map(tuple, splits)), partial)
        return self._layouts[number]

    def with_partial(self, numbers: Ints, partial: Ints) -> Ints:
        """Return layouts of the same splits that are partial over other axes, given as bits; all are of one rank."""
        if not len(numbers):
            return numbers
        rows = self._rows[numbers]
        places = np.where(rows[:, 1:] >= 0, rows[:, 1:], IDLE)
        places[partial[:, None] >> np.arange(self.n_axes) & 1 == 1] = PARTIAL
        return self.of_places(places, int(rows[0, 0]))

    def used_axes(self, numbers: Ints) -> Ints:
        """Return the axes that split each layout or over which it is partial, as bits."""
        axes: Ints = self._used[numbers]
        return axes

    def blocks(self, numbers: Ints, shape: Shape) -> Ints:
        """Return the number of blocks of each dimension, int64[layouts, dims]."""
        blocks: Ints = self._blocks[numbers, : len(shape)]
        return blocks

    def largest_elements(self, numbers: Ints, shape: Shape) -> Ints:
        """Return the number of elements of the largest shard that any rank has of a tensor, int64[layouts]."""
        elements: Ints = (-(-np.array(shape, np.int64) // self.blocks(numbers, shape))).prod(axis=1, dtype=np.int64)
        return elements

    def are_local(self, sources: Ints, targets: Ints) -> Mask:
        """Return whether no communication is needed from each source to each target, bool[sources, targets]."""
        is_possible = np.ones((len(sources), len(targets)), bool)
        for axis in range(self.n_axes):
            is_idle = self._rows[sources, 1 + axis] == IDLE
            is_partial = self._rows[targets, 1 + axis] == PARTIAL
            old, new = self._head[sources, axis], self._head[targets, axis]
            is_possible &= (is_idle[:, None] | is_partial) | ((old[:, None] == new) & (old >= 0)[:, None])
        return is_possible

    def are_views(self, sources: Ints, targets: Ints) -> Mask:
        """Return whether each target is a view of each source, bool[sources, targets]."""
        is_other: Mask = sources[:, None] != targets
        for axis in range(self.n_axes):
            old, new = self._rows[sources, 1 + axis], self._rows[targets, 1 + axis]
            is_first = (new >= 0) & (new < self.n_axes)
            is_other &= (old[:, None] == new) | ((old == IDLE)[:, None] & is_first)
        return is_other

    def _number_of(self, layout: Layout) -> int:
        if layout not in self._number_of_layout:
            places = np.full((1, self.n_axes), IDLE, np.int16)
            for dim, axes in enumerate(layout.splits):
                for position, axis in enumerate(axes):
                    places[0, axis] = dim * self.n_axes + position
            places[0, list(layout.partial)] = PARTIAL
            (number,) = self.of_places(places, len(layout.splits)).tolist()
            self._layouts[number], self._number_of_layout[layout] = layout, number
        return self._number_of_layout[layout]

    def _add(self, rows: np.ndarray) -> None:
        rank, places = int(rows[0, 0]), rows[:, 1:]
        dims = places // max(1, self.n_axes)
        blocks = np.ones((len(rows), max(rank, self._blocks.shape[1])), np.int64)
        for dim in range(rank):
            blocks[:, dim] = np.where((dims == dim) & (places >= 0), np.array(self.mesh.sizes, np.int64), 1).prod(axis=1)
        bits = 1 << np.arange(self.n_axes, dtype=np.int64)
        used = np.where(places != IDLE, bits, 0).sum(axis=1, dtype=np.int64)
        wider = np.ones((len(self._blocks), blocks.shape[1]), np.int64)
        wider[:, : self._blocks.shape[1]] = self._blocks
        self._rows = np.concatenate([self._rows, rows])
        self._blocks = np.concatenate([wider, blocks])
        self._used = np.concatenate([self._used, used])
        self._head = np.concatenate([self._head, [self._heads_of(row) for row in places.tolist()]])

    def _heads_of(self, places: list[int]) -> list[int]:
        """Return for each axis that splits a dimension the number of the axes up to it there; -1 for the others."""
        heads = [-1] * self.n_axes
        before, dim_before = -1, -1
        for place, axis in sorted((place, axis) for axis, place in enumerate(places) if place >= 0):
            dim = place // self.n_axes
            head = before if dim == dim_before else -1 - dim
            before = heads[axis] = self._heads.setdefault((head, axis), len(self._heads))
            dim_before = dim
        return heads
