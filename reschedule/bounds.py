"""Boxes in a tensor: per dimension where they start and end. Pieces, and parts of pieces, are boxes."""

from __future__ import annotations

from .layout import Shape

Bounds = tuple[tuple[int, int], ...]
Slices = tuple[slice, ...]


def intersection(first: Bounds, second: Bounds) -> Bounds:
    """What two boxes have in common; of extent 0 in a dimension where they have nothing."""
    pairs = ((max(a, c), min(b, d)) for (a, b), (c, d) in zip(first, second, strict=True))
    return tuple((start, max(start, end)) for start, end in pairs)


def relative(bounds: Bounds, frame: Bounds) -> Slices:
    """Where a box lies in an array that holds the box ``frame``."""
    return tuple(slice(start - origin, end - origin) for (start, end), (origin, _) in zip(bounds, frame, strict=True))


def extents(bounds: Bounds) -> Shape:
    return tuple(end - start for start, end in bounds)
