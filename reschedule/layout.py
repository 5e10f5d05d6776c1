"""Layouts: where the shards of one tensor are on a mesh.

A layout names, for each dimension, the axes that split it (major to minor) and the axes over which a sum is still
*partial*. An axis that is not named holds replicas. In OneFlow's words (section 3.1) these are split, partial and
broadcast; the *tensor map* of the TensorOpt paper (section 2.1) is a view of it.

A dimension need not divide evenly: block i of n runs from ``floor(i*d/n)`` to ``floor((i+1)*d/n)``, so that blocks
differ by at most one, none is empty where d >= n, and a coarser block is exactly the union of its finer ones.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from .mesh import AXIS_NAMES, Mesh

Axes = tuple[int, ...]
Shape = tuple[int, ...]

_TEXT = re.compile(r"\[ *(?P<splits>|(-|[a-z]+)( *, *(-|[a-z]+))*) *\](?: \+(?P<partial>[a-z]+))?")


def block_bounds(extent: int, n_blocks: int, index: int) -> tuple[int, int]:
    """Return start and end of block ``index`` of a dimension of ``extent`` elements in ``n_blocks`` blocks."""
    return index * extent // n_blocks, (index + 1) * extent // n_blocks


def axes_text(axes: Axes) -> str:
    return "".join(AXIS_NAMES[axis] for axis in axes)


def parse_axes(text: str) -> Axes:
    if not set(text) <= set(AXIS_NAMES):
        raise ValueError(f"not axes: {text!r}; expected letters, such as 'ab'")
    return tuple(AXIS_NAMES.index(name) for name in text)


@dataclass(frozen=True, slots=True)
class Layout:
    """A tensor's layout: ``str`` gives ``[ab, -] +c``, which :meth:`parse` reads back.

    >>> Layout.parse(Mesh.of(4), "[a, -] +b").local_shape((8, 4), rank=3)
    (4, 4)

    Invariants: an axis occurs at most once, in one dimension or in ``partial``; ``partial`` is sorted.
    """

    mesh: Mesh
    splits: tuple[Axes, ...]
    partial: Axes = ()

    def __post_init__(self) -> None:
        if len(self.partial) > 1:
            object.__setattr__(self, "partial", tuple(sorted(self.partial)))
        axes = self.used_axes
        if len(set(axes)) != len(axes):
            raise ValueError(f"an axis occurs twice in layout {self}")
        if axes and not (min(axes) >= 0 and max(axes) < len(self.mesh.sizes)):
            raise ValueError(f"layout {self} names an axis that mesh {self.mesh} does not have")

    @classmethod
    def replicated(cls, mesh: Mesh, rank: int) -> Layout:
        """Return the layout in which every device has the global tensor, for a tensor of ``rank`` dimensions."""
        return cls(mesh, ((),) * rank)

    @classmethod
    def parse(cls, mesh: Mesh, text: str) -> Layout:
        """Read the text that ``str(layout)`` wrote.

        Raises:
            ValueError: the text is not a layout, or not one of this mesh.
        """
        match = _TEXT.fullmatch(text.strip())
        if match is None:
            raise ValueError(f"not a layout: {text!r}; expected something like '[ab, -] +c'")
        dims = [part.strip() for part in match["splits"].split(",")] if match["splits"] else []
        splits = tuple(() if dim == "-" else parse_axes(dim) for dim in dims)
        return cls(mesh, splits, parse_axes(match["partial"] or ""))

    def __hash__(self) -> int:
        # Layouts are looked up in their thousands, hardly ever those of several meshes together: the mesh isn't hashed.
        return hash((self.splits, self.partial))

    def __str__(self) -> str:
        dims = ", ".join(axes_text(axes) or "-" for axes in self.splits)
        return f"[{dims}]" + (f" +{axes_text(self.partial)}" if self.partial else "")

    @property
    def split_axes(self) -> Axes:
        """All axes that split a dimension, dimension by dimension."""
        return sum(self.splits, ())

    @property
    def used_axes(self) -> Axes:
        return self.split_axes + self.partial

    def holders(self, rank: int) -> tuple[int, ...]:
        """Return the ranks that hold replicas of this rank's shard, itself among them, in order."""
        return self.mesh.group(tuple(axis for axis in self.mesh.axes if axis not in self.split_axes), rank)

    @property
    def is_replicated(self) -> bool:
        return not self.used_axes

    def with_partial(self, partial: Axes) -> Layout:
        """Return the layout with the same splits and another set of partial axes."""
        return Layout(self.mesh, self.splits, partial)

    def fits(self, shape: Shape) -> bool:
        """Return whether every dimension is at least as long as its number of blocks, so that no block is empty."""
        sizes = self.mesh.sizes
        for extent, axes in zip(shape, self.splits, strict=True):
            if axes and math.prod([sizes[axis] for axis in axes]) > extent:
                return False
        return True

    def bounds(self, shape: Shape, rank: int) -> tuple[tuple[int, int], ...]:
        """Return for each dimension start and end of the rank's shard in the tensor."""
        return tuple(
            block_bounds(extent, self.mesh.size_of(axes), self.mesh.index_along(axes, rank))
            for extent, axes in zip(shape, self.splits, strict=True)
        )

    def local_shape(self, shape: Shape, rank: int) -> Shape:
        """Return the shape of the rank's shard."""
        return tuple(end - start for start, end in self.bounds(shape, rank))

    def largest_local_shape(self, shape: Shape) -> Shape:
        """Return the shape of the largest shard that any rank has."""
        sizes, extents = self.mesh.sizes, []
        for extent, axes in zip(shape, self.splits, strict=True):
            for axis in axes:
                extent = -(-extent // sizes[axis])
            extents.append(extent)
        return tuple(extents)

    def is_even(self, shape: Shape) -> bool:
        """Return whether all ranks have shards of the same shape."""
        return all(extent % self.mesh.size_of(axes) == 0 for extent, axes in zip(shape, self.splits, strict=True))


def needs_communication(source: Layout, target: Layout) -> bool:
    """Return whether a tensor can't get from one layout to the other by local steps (slice, keep, pad) alone."""
    if not set(source.partial) <= set(target.partial):
        return True
    for old, new in zip(source.splits, target.splits, strict=True):
        common = 0
        while common < min(len(old), len(new)) and old[common] == new[common]:
            common += 1
        if not set(old[common:]) <= set(target.partial) or set(new[common:]) & set(source.used_axes):
            return True
    return False


def is_view(source: Layout, target: Layout) -> bool:
    """Return whether a rank's shard in layout ``target`` is consecutive rows of its shard in ``source``.

    The one can then lie in the other's memory.
    """
    if source.partial != target.partial or source.splits[1:] != target.splits[1:] or not source.splits:
        return False
    old, new = source.splits[0], target.splits[0]
    return new[: len(old)] == old and source != target
