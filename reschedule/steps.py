"""The steps that take a tensor from one layout to another: one collective or one free local operation each.

Blocks are nested (a coarser block is exactly the union of its finer ones), but only along the *minor-most* axes of a
dimension are the blocks of a group neighbours; the shards along major axes interleave. So every step that adds axes to a
dimension or takes them away acts on its minor-most end. The axes of a step name one group of devices, those that differ
in these axes. So several axes go at once, through one communicator.

The graph of layouts depends only on the number of axes and the tensor's rank: :func:`moves` is the table of transitions,
on bare tuples and cached; a :class:`Step` is a transition with its layouts. (TensorOpt, section 4.2: "an edge connects
two tensor splits if one can be transformed into another with only one communication operation".)
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

from .layout import Axes, Layout, Shape, axes_text
from .orders import Orders, axes_of_mask, mask_of_axes, orders

COMMUNICATING = ("all_gather", "reduce_scatter", "all_to_all", "all_reduce")
LOCAL = ("slice", "keep", "pad")
KINDS = COMMUNICATING + LOCAL

# The kinds whose cost depends on the bytes of the result; that of the others depends on the bytes of the input.
SIZED_BY_RESULT = frozenset({"all_gather", *LOCAL})


class State(NamedTuple):
    """A layout without its mesh: a node of the graph of layouts."""

    splits: tuple[Axes, ...]
    partial: Axes

    @classmethod
    def of(cls, layout: Layout) -> State:
        return cls(layout.splits, layout.partial)


class Move(NamedTuple):
    """A transition between states; ``axes`` are ordered as in the dimension that loses them, or else gains them."""

    kind: str
    axes: Axes
    dim: int | None
    to_dim: int | None
    target: State


@dataclass(frozen=True, slots=True)
class Step:
    """One collective (``kind`` in :data:`COMMUNICATING`) or one local step (in :data:`LOCAL`), from layout to layout.

    ``dim`` is the dimension that loses or gains ``axes``; for an all-to-all, ``dim`` loses and ``to_dim`` gains them.
    """

    kind: str
    axes: Axes
    dim: int | None = None
    to_dim: int | None = None
    source: Layout = field(kw_only=True)
    target: Layout = field(kw_only=True)

    @property
    def communicates(self) -> bool:
        return self.kind in COMMUNICATING

    @property
    def group_axes(self) -> Axes:
        """The step's axes in mesh order: they name the communicator, and its members are ordered by rank."""
        return tuple(sorted(self.axes))

    def n_bytes(self, shape: Shape, itemsize: int) -> int:
        """Return the bytes that a cost model is asked for, on the rank with the largest shard of a tensor of ``shape``.

        They are the bytes of the result for all-gather and local steps, of the input for reduce-scatter, all-reduce and
        all-to-all.
        """
        layout = self.target if self.kind in SIZED_BY_RESULT else self.source
        return math.prod(layout.largest_local_shape(shape)) * itemsize

    def n_copies(self, shape: Shape) -> int:
        """Return how often the bytes of :meth:`n_bytes` are copied in memory besides, see :func:`n_copies`."""
        return n_copies(self.kind, self.dim, self.to_dim, shape)

    def charged(self, shape: Shape, itemsize: int) -> tuple[tuple[str, Axes, int], ...]:
        """Return the collective and its copies, or the local step, each as (kind, axes, bytes) of a cost model."""
        n_bytes, kind = self.n_bytes(shape, itemsize), self.kind if self.communicates else "local"
        copies = [("local", self.group_axes, n_bytes)] * self.n_copies(shape)
        return (kind, self.group_axes, n_bytes), *copies

    def __str__(self) -> str:
        dims = "" if self.dim is None else f" {self.dim}" if self.to_dim is None else f" {self.dim}>{self.to_dim}"
        return f"{self.kind}({axes_text(self.axes)}{dims})"


def n_copies(kind: str, dim: int | None, to_dim: int | None, shape: Shape) -> int:
    """Return how often a collective's bytes are copied in memory, apart from the collective itself.

    The parts that members send each other follow each other in memory only along the leading dimension (the first with
    more than one element). Parts along another dimension are packed before they are sent, and unpacked after they
    arrived. An all-to-all within a dimension sends entire shards. Blocks whose order isn't the ranks' are copied as
    well; that isn't counted.
    """
    if kind not in COMMUNICATING or dim == to_dim:
        return 0
    return sum(d > leading_dim(shape) for d in (dim, to_dim) if d is not None)


def leading_dim(shape: Shape) -> int:
    """Return the first dimension with more than one element; 0 if there is none."""
    return next((dim for dim, extent in enumerate(shape) if extent > 1), 0)


def make_step(source: Layout, move: Move) -> Step:
    target = Layout(source.mesh, *move.target)
    return Step(move.kind, move.axes, move.dim, move.to_dim, source=source, target=target)


# The transitions. "Minor-most" is the end of a dimension's tuple of axes; n axes at once for every n.
#
#      from                          to                                 step
#   1. n minor-most axes of a dim    replicated                         all_gather
#   2. partial axes                  minor-most of a dim, any order     reduce_scatter
#   3. n minor-most axes of a dim    minor-most of a dim, any order     all_to_all
#   4. partial axes                  replicated                         all_reduce
#   5. replicated axes               minor-most of a dim, any order     slice
#   6. replicated axes               partial                            keep
#   7. n minor-most axes of a dim    partial                            pad
#
# In 3 the dimension may be the same one: that puts its minor-most axes in another order.


@cache
def moves(n_axes: int, state: State, runs: int | None = None) -> tuple[Move, ...]:
    """Return all transitions from ``state`` on a mesh with ``n_axes`` axes, in a fixed order; targets are unique.

    If ``runs`` is given, return those to layouts of at most so many runs of axes, see :mod:`.orders`.
    """
    table = orders(n_axes, runs)
    used = set(state.partial).union(*state.splits)
    replicated = tuple(axis for axis in range(n_axes) if axis not in used)
    possible = (
        *_drop_minor(state, "all_gather"),  # 1
        *_append(table, state, "reduce_scatter", state.partial),  # 2
        *_all_to_all(table, state),  # 3
        *_change_partial(table, state, "all_reduce", state.partial),  # 4
        *_append(table, state, "slice", replicated),  # 5
        *_change_partial(table, state, "keep", replicated),  # 6
        *_drop_minor(state, "pad"),  # 7
    )
    return possible if runs is None else tuple(move for move in possible if table.has(*move.target))


def _with_dim(splits: tuple[Axes, ...], dim: int, axes: Axes) -> tuple[Axes, ...]:
    return (*splits[:dim], axes, *splits[dim + 1 :])


def _minor_ends(state: State) -> Iterator[tuple[int, Axes, tuple[Axes, ...]]]:
    """Yield (dim, its n minor-most axes, the splits without them) for every dim and n."""
    for dim, axes in enumerate(state.splits):
        for start in reversed(range(len(axes))):
            yield dim, axes[start:], _with_dim(state.splits, dim, axes[:start])


def _drop_minor(state: State, kind: str) -> Iterator[Move]:
    for dim, axes, splits in _minor_ends(state):
        partial = tuple(sorted(state.partial + axes)) if kind == "pad" else state.partial
        yield Move(kind, axes, dim, None, State(splits, partial))


def _append(table: Orders, state: State, kind: str, available: Axes) -> Iterator[Move]:
    for order in table.within.at(mask_of_axes(available)):
        axes = table.axes[order]
        partial = tuple(axis for axis in state.partial if axis not in axes)
        for dim, split in enumerate(state.splits):
            yield Move(kind, axes, dim, None, State(_with_dim(state.splits, dim, split + axes), partial))


def _all_to_all(table: Orders, state: State) -> Iterator[Move]:
    for dim, axes, rest in _minor_ends(state):
        for number in table.exactly.at(mask_of_axes(axes)):
            order = table.axes[number]
            for to_dim, split in enumerate(rest):
                # If the first axis stays first within its dimension, fewer axes move: a shorter end yields that move.
                if to_dim != dim or order[0] != axes[0]:
                    target = State(_with_dim(rest, to_dim, split + order), state.partial)
                    yield Move("all_to_all", axes, dim, to_dim, target)


def _change_partial(table: Orders, state: State, kind: str, available: Axes) -> Iterator[Move]:
    for mask in table.subsets.at(mask_of_axes(available)):
        axes = axes_of_mask(mask)
        partial = set(state.partial).symmetric_difference(axes)
        yield Move(kind, axes, None, None, State(state.splits, tuple(sorted(partial))))


def move_between(state: State, target: State) -> Move | None:
    """Return the one transition from a state to another, None if one isn't enough. O(rank)."""
    if len(state.splits) != len(target.splits):
        return None
    before, after = set(state.partial), set(target.partial)
    changed = [dim for dim, axes in enumerate(state.splits) if axes != target.splits[dim]]
    if not changed:
        kind = "all_reduce" if after < before else "keep" if before < after else None
        return Move(kind, tuple(sorted(before ^ after)), None, None, target) if kind else None
    if len(changed) > 2:
        return None
    old_axes, new_axes = ([end.splits[dim] for dim in changed] for end in (state, target))
    if len(changed) == 2:
        loser = 0 if len(new_axes[0]) < len(old_axes[0]) else 1
        lost = old_axes[loser][len(new_axes[loser]) :]
        gained = new_axes[1 - loser][len(old_axes[1 - loser]) :]
        nested = old_axes[loser] == new_axes[loser] + lost and new_axes[1 - loser] == old_axes[1 - loser] + gained
        if before != after or not nested or set(lost) != set(gained):
            return None
        return Move("all_to_all", lost, changed[loser], changed[1 - loser], target)
    [dim], [old], [new] = changed, old_axes, new_axes
    common = 0
    while old[common : common + 1] == new[common : common + 1] != ():
        common += 1
    lost, gained = old[common:], new[common:]
    if lost and gained:
        return Move("all_to_all", lost, dim, dim, target) if before == after and set(lost) == set(gained) else None
    if before == after:
        return Move("all_gather" if lost else "slice", lost or gained, dim, None, target)
    if after == before | set(lost) if lost else before == after | set(gained):
        return Move("pad" if lost else "reduce_scatter", lost or gained, dim, None, target)
    return None
