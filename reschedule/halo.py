"""Halo exchange: from each rank's block of a tensor to all elements under the windows of its block of results, and back.

Windows slide along dimensions of a tensor, as those of a convolution do. The results are split in blocks as any
dimension is, and so is the tensor. The elements under a block's windows are then not the block itself. Here 7 rows, a
window of 3 rows with stride 1, one row of filling at each end, results on 2 ranks:

    rows           0 1 2 | 3 4 5 6        blocks of the tensor
    rank 0     f   0 1 2   3              results 0 to 2: a filled row, its own three, and one from rank 1
    rank 1             2 | 3 4 5 6   f    results 3 to 6: one from rank 0, its own four, and a filled row

Elements may come from any member of the group, not only from neighbours, since blocks may be smaller than the halo.
Several dimensions are exchanged at once, corners included, since the elements that a member needs of another are one
box. The backward exchange is the transpose: gradients of elements return to their owners and are added there, a rank's
own first, then those of the members in the order of the group.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from .bounds import Bounds, Slices, extents, intersection, packed, relative
from .communicator import Communicator
from .layout import Axes, Layout, Shape, axes_text, block_bounds
from .summing import Array

HALO, HALO_SUM = "halo", "halo_sum"
ZERO, LOWEST = "zero", "lowest"


@dataclass(frozen=True, slots=True)
class Window:
    """The way windows slide along a dimension.

    Window i covers elements ``i * stride - before + j * dilation``, j < ``size``.

    Attributes:
        before: the number of filled elements before the first one of the dimension.
        extent: the number of elements of the dimension.
    """

    size: int
    stride: int
    dilation: int
    before: int
    extent: int
    count: int

    @property
    def span(self) -> int:
        """The number of elements from the first to the last one under one window."""
        return (self.size - 1) * self.dilation + 1

    def reach(self, n_windows: int) -> int:
        """Return the number of elements from the first to the last one under ``n_windows`` consecutive windows."""
        return (n_windows - 1) * self.stride + self.span

    @property
    def most_blocks(self) -> int:
        """The most blocks into which the dimension and the results can both be split so that none is empty."""
        return min(self.extent, self.count)

    def covered(self, start: int, end: int) -> tuple[int, int]:
        """Return start and end of the elements under windows ``start`` to ``end``; they may lie outside of the dimension."""
        first = start * self.stride - self.before
        return first, first + self.reach(end - start)

    def covered_inside(self, start: int, end: int) -> tuple[int, int]:
        """Return start and end of the part of :meth:`covered` that lies in the dimension."""
        first, last = self.covered(start, end)
        return min(max(first, 0), self.extent), min(max(last, 0), self.extent)

    def tiles(self, n_blocks: int) -> bool:
        """Return whether each of ``n_blocks`` blocks starts with a window and holds its own windows, nothing filled."""
        is_tiled = self.span <= self.stride and self.before == 0 and self.extent == self.count * self.stride
        return is_tiled and self.count % n_blocks == 0

    def real_counts(self) -> tuple[int, ...]:
        """Return for each window how many of its elements lie in the dimension."""
        firsts = (i * self.stride - self.before for i in range(self.count))
        return tuple(sum(0 <= first + j * self.dilation < self.extent for j in range(self.size)) for first in firsts)


Windows = tuple[Window | None, ...]
"""For each dimension of a tensor the windows that slide along it, or None."""


@dataclass(frozen=True)
class HaloStep:
    """The step from own blocks to the elements under the windows (``halo``), or back with gradients (``halo_sum``).

    ``layout`` is the tensor's layout; the results are split in the same way. Where no rank needs elements of another,
    the step is local.
    """

    kind: str
    layout: Layout
    windows: Windows
    fill: str = ZERO

    @property
    def source(self) -> Layout:
        return self.layout

    @property
    def target(self) -> Layout:
        return self.layout

    @cached_property
    def axes(self) -> Axes:
        """The axes along which elements are exchanged."""
        sliding = [
            (axes, _shares(window, self.layout.mesh.size_of(axes)))
            for axes, window in zip(self.layout.splits, self.windows, strict=True)
            if window is not None
        ]
        if any(not any(n_needed) for _, (_, n_needed, _) in sliding):
            return ()  # all windows lie in the padding
        return tuple(axis for axes, (_, n_needed, n_own) in sliding if n_needed != n_own for axis in axes)

    @property
    def group_axes(self) -> Axes:
        """The step's axes in mesh order: they name the communicator, and its members are ordered by rank."""
        return tuple(sorted(self.axes))

    @property
    def communicates(self) -> bool:
        return bool(self.axes)

    def backward(self) -> HaloStep:
        """Return the step that takes the gradients back to the owners of the elements."""
        return HaloStep(HALO_SUM, self.layout, self.windows)

    def frame(self, shape: Shape, rank: int) -> Bounds:
        """Return the box under the windows of the rank's results, filled elements included: it may begin before 0."""
        mesh = self.layout.mesh
        ranges = []
        for bounds, window, axes in zip(self.layout.bounds(shape, rank), self.windows, self.layout.splits, strict=True):
            if window is not None:
                bounds = window.covered(*block_bounds(window.count, mesh.size_of(axes), mesh.index_along(axes, rank)))
            ranges.append(bounds)
        return tuple(ranges)

    def real(self, shape: Shape, rank: int) -> Bounds:
        """Return the part of the frame that lies in the tensor."""
        whole = tuple((0, extent) for extent in shape)
        return intersection(self.frame(shape, rank), whole)

    def largest_local_shape(self, shape: Shape) -> Shape:
        """Return the shape of the largest shard that any rank has after the step."""
        own = self.layout.largest_local_shape(shape)
        if self.kind == HALO_SUM:
            return own
        return tuple(
            extent if window is None else window.reach(-(-window.count // n))
            for extent, window, n in zip(own, self.windows, self._n_blocks, strict=True)
        )

    def uniform_shape(self, shape: Shape) -> tuple[int | None, ...]:
        """Return the local shape after the step, with None in each dimension in which ranks differ.

        Ranks agree in a dimension where they have equal numbers of windows (or of rows).
        """
        divided = [e if w is None or self.kind == HALO_SUM else w.count for e, w in zip(shape, self.windows, strict=True)]
        local = zip(self.largest_local_shape(shape), divided, self._n_blocks, strict=True)
        return tuple(extent if total % n == 0 else None for extent, total, n in local)

    def moved(self, shape: Shape) -> int:
        """Return the number of elements that the busiest rank sends, or receives if that is more.

        The boxes that a rank sends are products of intervals, so their total is the product of the totals per dimension.
        """
        sent, received, own = [1], [1], [1]
        for extent, window, n in zip(shape, self.windows, self._n_blocks, strict=True):
            shares = None if window is None else _shares(window, n)
            if shares is not None and shares[1] != shares[2]:
                sent, received, own = (
                    [a * b for a in before for b in new] for before, new in zip((sent, received, own), shares, strict=True)
                )
            else:
                length = -(-extent // n) if shares is None else max(shares[2])
                sent, received, own = ([a * length for a in before] for before in (sent, received, own))
        return max(max(n_sent, n_received) - n_own for n_sent, n_received, n_own in zip(sent, received, own, strict=True))

    @property
    def _n_blocks(self) -> tuple[int, ...]:
        return tuple(self.layout.mesh.size_of(axes) for axes in self.layout.splits)

    def charged(self, shape: Shape, itemsize: int) -> tuple[tuple[str, Axes, int], ...]:
        """Return the exchange and the writing of the result, each as (kind, axes, bytes) of a cost model.

        The exchange is charged as an all-to-all in which each rank sends as much as the busiest rank of this step. Of an
        all-to-all of n bytes on each of g devices (g-1)/g leave the device.
        """
        size = math.prod(self.largest_local_shape(shape))
        local = "local", self.layout.split_axes, size * itemsize
        if not self.communicates:
            return (local,)
        members = self.layout.mesh.size_of(self.axes)
        n_bytes = -(-self.moved(shape) * itemsize * members // (members - 1))
        return ("all_to_all", self.group_axes, n_bytes), local

    def __str__(self) -> str:
        return f"{self.kind}({axes_text(self.axes)})"


Shares = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


@lru_cache(maxsize=4096)
def _shares(window: Window, n_blocks: int) -> Shares:
    """Return three numbers of elements for each block of a dimension.

    They are: the block's elements that the windows of all blocks need, once for each block that needs them; the elements
    that the block's own windows need; and those of these that the block has itself.
    """
    own = [block_bounds(window.extent, n_blocks, i) for i in range(n_blocks)]
    windows = [window.covered_inside(*block_bounds(window.count, n_blocks, i)) for i in range(n_blocks)]

    def common(i: int, j: int) -> int:
        return max(0, min(own[i][1], windows[j][1]) - max(own[i][0], windows[j][0]))

    blocks = range(n_blocks)
    sent = tuple(sum(common(i, j) for j in blocks) for i in blocks)
    return sent, tuple(end - start for start, end in windows), tuple(common(i, i) for i in blocks)


@dataclass(frozen=True, slots=True)
class HaloSide:
    """The tensor that a rank has before a halo step, its block, or after it, the frame that its windows cover.

    Attributes:
        parts: for each member of the group, the part of the block that the member needs, or of the frame that the member
            has; empty for the rank itself.
        kept: the part that is in the block and in the frame.
    """

    shape: Shape
    parts: tuple[Slices, ...]
    kept: Slices


@dataclass(frozen=True, slots=True)
class RankHalo:
    """A halo step as one rank carries it out.

    Attributes:
        margins: what is filled before parts arrive: around the tensor; on the way back all, since gradients are added.
    """

    kind: str
    axes: Axes
    fill: str
    before: HaloSide
    after: HaloSide
    margins: tuple[Slices, ...]

    def pack(self, local: Array, communicator: Communicator | None = None) -> list[Array]:
        """Return the C-contiguous arrays to send, one per member, in the communicator's scratch memory where given.

        Raises:
            ValueError: ``local`` does not have the rank's shape before the step.
        """
        if local.shape != self.before.shape:
            raise ValueError(f"{self.kind} got a shard of shape {local.shape}, expected {self.before.shape}")
        parts = [local[part] for part in self.before.parts]
        count = sum(part.size for part in parts)
        buffer = np.empty(count, local.dtype) if communicator is None else communicator.scratch("send", count, local.dtype)
        return packed(parts, buffer)

    def unpack(self, local: Array, received: Sequence[Array], out: Array | None = None) -> Array:
        """Return the rank's shard after the step, in ``out`` where given."""
        if out is None:
            out = np.empty(self.after.shape, local.dtype)
        for margin in self.margins:
            out[margin] = fill_value(self.fill, local.dtype)
        out[self.after.kept] = local[self.before.kept]
        for part, shard in zip(self.after.parts, received, strict=True):
            out[part] = shard if self.kind == HALO else out[part] + shard
        return out

    def apply_local(self, local: Array) -> Array:
        """Return the result of a step that communicates nothing."""
        return self.unpack(local, ())

    def run(self, local: Array, communicator: Communicator) -> Array:
        """Carry out the step; the result is new memory."""
        shapes = [tuple(part.stop - part.start for part in parts) for parts in self.after.parts]
        received: Sequence[Array] = ()
        if shapes:
            sends = self.pack(local, communicator)
            count = sum(map(math.prod, shapes))
            joined = communicator.scratch("send", sum(send.size for send in sends), local.dtype)
            out = communicator.scratch("receive", count, local.dtype)
            received = communicator.all_to_all(self.axes, sends, shapes, out, joined)
        return self.unpack(local, received, communicator.empty(self.after.shape, local.dtype))


def fill_value(fill: str, dtype: npt.DTypeLike) -> Any:
    """Return zero, or (for ``LOWEST``) the value that no number of the dtype is below."""
    if fill == ZERO:
        return 0
    kind = np.dtype(dtype)
    return np.iinfo(kind).min if kind.kind in "iu" else -np.inf


@lru_cache(maxsize=65536)
def rank_halo(step: HaloStep, shape: Shape, rank: int) -> RankHalo:
    """Return the step, on a tensor of global ``shape``, as ``rank`` carries it out."""
    own, frame, real = step.layout.bounds(shape, rank), step.frame(shape, rank), step.real(shape, rank)
    group = step.layout.mesh.group(step.group_axes, rank) if step.communicates else ()
    empty = tuple((start, start) for start, _ in own)
    sent = [empty if m == rank else intersection(own, step.real(shape, m)) for m in group]
    received = [empty if m == rank else intersection(step.layout.bounds(shape, m), real) for m in group]
    own_part = intersection(own, real)
    of_block, of_frame = (
        HaloSide(extents(whole), tuple(_within(box, whole) for box in parts), _within(own_part, whole))
        for whole, parts in ((own, sent), (frame, received))
    )
    if step.kind == HALO:
        margins = _margins(_within(real, frame), of_frame.shape)
        return RankHalo(step.kind, step.group_axes, step.fill, of_block, of_frame, margins)
    return RankHalo(step.kind, step.group_axes, ZERO, of_frame, of_block, ((slice(None),) * len(shape),))


def _within(box: Bounds, frame: Bounds) -> Slices:
    """Return the slices of a frame that select a box. An empty box may be selected anywhere, as long as that is inside."""
    if 0 in extents(box):
        return tuple(slice(0, 0) for _ in box)
    return relative(box, frame)


def _margins(real: Slices, frame: Shape) -> tuple[Slices, ...]:
    """Return the parts of a frame around the part that lies in the tensor; they may overlap in corners."""
    margins: list[Slices] = []
    whole = tuple(slice(0, extent) for extent in frame)
    for dim, (part, extent) in enumerate(zip(real, frame, strict=True)):
        for margin in (slice(0, part.start), slice(part.stop, extent)):
            if margin.start < margin.stop:
                margins.append((*whole[:dim], margin, *whole[dim + 1 :]))
    return tuple(margins)
