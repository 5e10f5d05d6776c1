"""The graph of layouts as flat arrays.

The nodes and edges depend only on the number of axes and the tensor's rank and are built once for each; a mesh, a shape
and costs add block counts, a mask of the layouts that fit, and a weight for each edge, all vectorised. For k axes and
r dimensions there are sum over m of C(k, m) m! C(m + r - 1, r - 1) 2^(k - m) layouts: 40 for two axes and four
dimensions, 2424 for four axes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import combinations, permutations
from typing import Any

import numpy as np
import numpy.typing as npt

from .layout import Axes, Shape
from .mesh import Mesh
from .steps import KINDS, SIZED_BY_RESULT, State, moves

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class LayoutGraph:
    """All states and all moves between them."""

    n_axes: int
    states: tuple[State, ...]
    index: dict[State, int]
    split_masks: Ints  # [states, rank]: the axes that split a dimension, as bits
    source: Ints  # [edges], ascending
    target: Ints  # [edges]
    kind: Ints  # [edges], index into KINDS
    axes_mask: Ints  # [edges], the axes that move, as bits

    def block_counts(self, mesh: Mesh) -> Ints:
        """[states, rank]: the number of blocks of each dimension."""
        subset_sizes = np.ones(1 << self.n_axes, np.int64)
        for subset in range(1 << self.n_axes):
            subset_sizes[subset] = mesh.size_of(axes_of_mask(subset))
        counts: Ints = subset_sizes[self.split_masks]
        return counts

    def sizes(self, mesh: Mesh, shape: Shape) -> tuple[Mask, Ints]:
        """Per state, whether it fits the shape, and the elements of the largest piece."""
        counts = self.block_counts(mesh)
        extents = np.array(shape, np.int64).reshape(1, -1)
        fits = ((counts == 1) | (counts <= extents)).all(axis=1)
        return fits, (-(-extents // counts)).prod(axis=1)


def mask_of_axes(axes: Axes) -> int:
    return sum(1 << axis for axis in axes)


def axes_of_mask(mask: int) -> Axes:
    """The axes of a bit mask, ascending."""
    return tuple(axis for axis in range(mask.bit_length()) if mask >> axis & 1)


def all_states(n_axes: int, rank: int, partial: bool) -> Iterator[State]:
    """Every state once: fewest used axes first, those without partial axes before all others."""
    for n_partial in range(n_axes + 1 if partial else 1):
        for partial_axes in combinations(range(n_axes), n_partial):
            free = [axis for axis in range(n_axes) if axis not in partial_axes]
            for n_split in range(len(free) + 1 if rank else 1):
                for ordered in permutations(free, n_split):
                    for cuts in _cuts(n_split, rank):
                        yield State(tuple(ordered[start:end] for start, end in cuts), partial_axes)


def _cuts(n_items: int, n_parts: int) -> Iterator[tuple[tuple[int, int], ...]]:
    """All ways to cut a sequence into ``n_parts`` runs, empty ones included."""
    if n_parts == 0:
        yield ()
        return
    for borders in combinations(range(n_items + n_parts - 1), n_parts - 1):
        starts = (0, *(border - position for position, border in enumerate(borders)))
        yield tuple(zip(starts, (*starts[1:], n_items), strict=True))


@cache
def layout_graph(n_axes: int, rank: int, partial: bool) -> LayoutGraph:
    """The graph for tensors of ``rank`` dimensions on meshes with ``n_axes`` axes."""
    states = tuple(all_states(n_axes, rank, partial))
    index = {state: position for position, state in enumerate(states)}
    kind_number = {kind: number for number, kind in enumerate(KINDS)}
    edges = [
        (position, index[move.target], kind_number[move.kind], mask_of_axes(move.axes))
        for position, state in enumerate(states)
        for move in moves(n_axes, state)
        if partial or not move.target.partial
    ]
    columns = np.array(edges, np.int64).reshape(-1, 4).T
    return LayoutGraph(
        n_axes,
        states,
        index,
        np.array([[mask_of_axes(axes) for axes in state.splits] for state in states], np.int64).reshape(
            len(states), rank
        ),
        *(np.ascontiguousarray(column) for column in columns),
    )


def edge_bytes(graph: LayoutGraph, elements: Ints, itemsize: int) -> Ints:
    """[edges]: the bytes that a cost model is asked for (as :meth:`Step.n_bytes`)."""
    by_result = np.array([kind in SIZED_BY_RESULT for kind in KINDS])[graph.kind]
    sizes: Ints = np.where(by_result, elements[graph.target], elements[graph.source]) * itemsize
    return sizes


def unique_rows(*columns: Ints) -> tuple[npt.NDArray[Any], Ints]:
    """The distinct rows of a table given by its columns, and for each row the number of its distinct one."""
    codes = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        values, numbers = np.unique(column, return_inverse=True)
        codes = codes * len(values) + numbers
    _, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
    return np.stack([column[first] for column in columns], axis=1), inverse
