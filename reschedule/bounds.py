"""Boxes in a tensor: the start and the end in each dimension. Shards, and parts of shards, are boxes."""

from __future__ import annotations

from .layout import Shape

Bounds = tuple[tuple[int, int], ...]
Slices = tuple[slice, ...]


def intersection(first: Bounds, second: Bounds) -> Bounds:
    """Return the common part of two boxes; its extent is 0 in each dimension in which they don't overlap."""
    pairs = ((max(a, c), min(b, d)) for (a, b), (c, d) in zip(first, second, strict=True))
    return tuple((start, max(start, end)) for start, end in pairs)


def relative(bounds: Bounds, frame: Bounds) -> Slices:
    """Return the slices that select a box from an array that holds the box ``frame``."""
    return tuple(slice(start - origin, end - origin) for (start, end), (origin, _) in zip(bounds, frame, strict=True))


def extents(bounds: Bounds) -> Shape:
    return tuple(end - start for start, end in bounds)
