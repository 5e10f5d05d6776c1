"""The graph of layouts as flat arrays.

The nodes and edges depend only on the number of axes and the tensor's rank and are built once for each. A mesh, a shape
and costs add block counts, a mask of the layouts that fit, and a weight for each edge, all vectorised. For k axes and r
dimensions there are sum over m of C(k, m) m! C(m + r - 1, r - 1) 2^(k - m) layouts: 40 for two axes and four dimensions,
2424 for four axes. Where there are many axes, the graph has only the layouts of few *runs* of axes, see :mod:`..orders`.

A state is a row of numbers: for each dimension the number of an order of axes (in :class:`Orders`), and its partial axes
as bits. Read as the digits of one number they are its *key*. States are sorted by key, so a move finds its target by a
binary search. The graph is built in O(E log L) for E edges and L states, without a step in Python for any of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from ..layout import Axes
from ..orders import Ints, Mask, Orders, axes_of_mask, mask_of_axes, orders
from ..steps import COMMUNICATING, KINDS, SIZED_BY_RESULT, State


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class LayoutGraph:
    """All states by ascending key, and all moves between them by ascending target."""

    orders: Orders
    dims: Ints  # [states, rank]: the number of the order of axes that splits each dimension
    partial: Ints  # [states]: partial axes, as bits
    key: Ints  # [states]
    start: Ints  # [states + 1]: state t is reached by edges start[t] to start[t + 1]
    source: npt.NDArray[np.int32]  # [edges]
    target: npt.NDArray[np.int32]  # [edges]
    kind: npt.NDArray[np.int8]  # [edges], index into KINDS
    communicates: Mask  # [edges], whether the step is a collective
    mask: npt.NDArray[np.int16]  # [edges], the axes of the step, as bits
    sized_by: npt.NDArray[np.int32]  # [edges]: the state whose largest shard gives the bytes of the step's cost
    copied: npt.NDArray[np.int32]  # [edges], the dimensions along which a collective cuts or joins shards, as bits
    by_splits: Ints  # the states in ascending order of the number of axes that split them
    # Edges of one class have equal weights for every tensor: their steps are alike but for the order of axes in dimensions.
    class_of: npt.NDArray[np.int32]  # [edges]
    first_of_class: Ints  # [classes], an edge of each

    def state(self, number: int) -> State:
        axes = self.orders.axes
        return State(tuple(axes[order] for order in self.dims[number]), axes_of_mask(int(self.partial[number])))

    def number_of(self, states: Sequence[State]) -> Ints:
        """Return the numbers of states that are in the graph."""
        number, shape = self.orders.number, (len(states), self.dims.shape[1])
        dims = np.array([[number[axes] for axes in state.splits] for state in states], np.int64).reshape(shape)
        partial = np.array([mask_of_axes(state.partial) for state in states], np.int64)
        numbers: Ints = np.searchsorted(self.key, _keys(self.orders, dims, partial))
        return numbers

    def sizes(self, axis_sizes: Axes, extents: Axes) -> tuple[Mask, Ints]:
        """Return for each state whether it fits a tensor of these extents, and the elements of its largest shard."""
        of_subset = np.ones(1 << len(axis_sizes), np.int64)
        for axis, size in enumerate(axis_sizes):
            of_subset[1 << axis : 2 << axis] = of_subset[: 1 << axis] * size
        counts = of_subset[self.orders.mask][self.dims]
        row = np.array(extents, np.int64).reshape(1, -1)
        fits = ((counts == 1) | (counts <= row)).all(axis=1)
        elements: Ints = (-(-row // counts)).prod(axis=1)
        return fits, elements


def _keys(table: Orders, dims: Ints, partial: Ints) -> Ints:
    key: Ints = partial.copy()
    for column in dims.T:
        key = key * len(table.axes) + column
    return key


@cache
def layout_graph(n_axes: int, rank: int, may_be_partial: bool, runs: int | None = None) -> LayoutGraph:
    """Build the graph for tensors of ``rank`` dimensions on meshes with ``n_axes`` axes.

    Args:
        may_be_partial: whether the graph has layouts with partial axes.
        runs: the most runs of axes that a dimension, or the set of partial axes, may be made of; None for any number.
    """
    table = orders(n_axes, runs)
    dims, partials = _states(table, rank, may_be_partial)
    key = _keys(table, dims, partials)
    by_key = np.argsort(key)
    dims, partials, key = dims[by_key], partials[by_key], key[by_key]
    edges = []
    for kind, source, to_dims, to_partial, mask in _moves(table, dims, partials):
        if not may_be_partial and to_partial.any():
            continue
        is_state = (to_dims >= 0).all(axis=1) & table.can_be_partial[to_partial]
        target = np.searchsorted(key, _keys(table, to_dims[is_state], to_partial[is_state]))
        edges.append((np.full(len(target), KINDS.index(kind)), source[is_state], target, mask[is_state]))
    kinds, source, target, mask = (np.concatenate(column) for column in zip(*edges, strict=True))
    by_target = np.argsort(target, kind="stable")
    kinds, source, target, mask = kinds[by_target], source[by_target], target[by_target], mask[by_target]
    by_result = np.array([name in SIZED_BY_RESULT for name in KINDS])
    changed = dims[source] != dims[target]
    cuts = (kinds < len(COMMUNICATING)) & ((kinds != KINDS.index("all_to_all")) | (changed.sum(axis=1) > 1))
    copied = np.where(cuts, changed @ (1 << np.arange(rank)), 0)
    class_of, first_of_class = _classes(table, dims, np.stack([kinds, mask, copied]), source, target)
    return LayoutGraph(
        orders=table,
        dims=dims,
        partial=partials,
        key=key,
        start=np.searchsorted(target, np.arange(len(key) + 1)),
        source=source.astype(np.int32),
        target=target.astype(np.int32),
        kind=kinds.astype(np.int8),
        communicates=kinds < len(COMMUNICATING),
        mask=mask.astype(np.int16),
        sized_by=np.where(by_result[kinds], target, source).astype(np.int32),
        copied=copied.astype(np.int32),
        by_splits=np.argsort(table.length[dims].sum(axis=1), kind="stable"),
        class_of=class_of.astype(np.int32),
        first_of_class=first_of_class,
    )


def _classes(table: Orders, dims: Ints, step: Ints, source: Ints, target: Ints) -> tuple[Ints, Ints]:
    """Return the class of each edge and an edge of each class: equal steps between states whose dimensions have equal axes.

    Args:
        step: int64[3, edges], the kind of each edge's step, its axes, and the dimensions that it copies along.
    """
    n_masks = 1 << table.n_axes
    split = np.zeros(len(dims), np.int64)
    for column in table.mask[dims].T:
        split = split * n_masks + column
    _, split = np.unique(split, return_inverse=True)
    code = np.zeros(len(source), np.int64)
    for number in (split.reshape(-1)[source], split.reshape(-1)[target], *step):
        code = code * (int(number.max(initial=0)) + 1) + number
    _, first, class_of = np.unique(code, return_index=True, return_inverse=True)
    return class_of.reshape(-1), first


def _states(table: Orders, rank: int, may_be_partial: bool) -> tuple[Ints, Ints]:
    dims, used = np.zeros((1, 0), np.int64), np.zeros(1, np.int64)
    for _ in range(rank):
        row, order = np.nonzero(used[:, None] & table.mask[None, :] == 0)
        dims, used = np.hstack([dims[row], order[:, None]]), used[row] | table.mask[order]
    if not may_be_partial:
        return dims, np.zeros_like(used)
    sums = np.flatnonzero(table.can_be_partial)
    row, column = np.nonzero(used[:, None] & sums[None, :] == 0)
    return dims[row], sums[column]


_Moves = tuple[str, Ints, Ints, Ints, Ints]  # kind, source state, the target's dims, the target's partial axes, moved axes


def _moves(table: Orders, dims: Ints, partial: Ints) -> Iterator[_Moves]:
    """Yield all moves from all states, also to targets outside of the graph.

    Comments give the transition in :mod:`..steps`.
    """
    used = np.bitwise_or.reduce(table.mask[dims], axis=1) | partial
    idle = ~used & ((1 << table.n_axes) - 1)
    for dim in range(dims.shape[1]):
        for n in range(1, table.n_axes + 1):
            state = np.flatnonzero(table.length[dims[:, dim]] >= n)
            axes = table.suffix[dims[state, dim], n]
            rest = _with_dim(dims[state], dim, table.prefix[dims[state, dim], n])
            yield "all_gather", state, rest, partial[state], table.mask[axes]  # 1
            yield "pad", state, rest, partial[state] | table.mask[axes], table.mask[axes]  # 7
            positions, order = table.exactly.items_of(table.mask[axes])
            for to_dim in range(dims.shape[1]):  # 3
                # If the first axis stays first within its dimension, fewer axes move: a smaller n yields that move.
                is_moved = np.ones(len(positions), bool)
                if to_dim == dim:
                    is_moved = table.prefix[order, n - 1] != table.prefix[axes[positions], n - 1]
                rows, minor = positions[is_moved], order[is_moved]
                to_dims = _with_dim(rest[rows], to_dim, table.joined(rest[rows, to_dim], minor))
                yield "all_to_all", state[rows], to_dims, partial[state[rows]], table.mask[minor]
        for kind, available in (("reduce_scatter", partial), ("slice", idle)):  # 2, 5
            state, minor = table.within.items_of(available)
            to_dims = _with_dim(dims[state], dim, table.joined(dims[state, dim], minor))
            yield kind, state, to_dims, partial[state] & ~table.mask[minor], table.mask[minor]
    for kind, available in (("all_reduce", partial), ("keep", idle)):  # 4, 6
        state, axes = table.subsets.items_of(available)
        yield kind, state, dims[state], partial[state] ^ axes, axes


def _with_dim(dims: Ints, dim: int, order: Ints) -> Ints:
    changed: Ints = dims.copy()
    changed[:, dim] = order
    return changed
