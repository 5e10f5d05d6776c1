"""Boxes in a tensor: the start and the end in each dimension. Shards, and parts of shards, are boxes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from .layout import Shape
from .summing import Array

Bounds = tuple[tuple[int, int], ...]
Slices = tuple[slice, ...]


def intersection(first: Bounds, second: Bounds) -> Bounds:
    """Return the common part of two boxes; its extent is 0 in each dimension in which they don't overlap."""
    pairs = ((max(a, c), min(b, d)) for (a, b), (c, d) in zip(first, second, strict=True))
    return tuple((start, max(start, end)) for start, end in pairs)


def relative(bounds: Bounds, frame: Bounds) -> Slices:
    """Return the slices that select a box from an array that holds the box ``frame``."""
    return tuple(slice(start - origin, end - origin) for (start, end), (origin, _) in zip(bounds, frame, strict=True))


def viewed(array: Array, bounds: Bounds, frame: Bounds) -> Array:
    """Return a view of a box of an array that holds the box ``frame``."""
    index: tuple[Any, ...] = (*relative(bounds, frame), ...)
    view: Array = array[index]
    return view


def packed(parts: Sequence[Array], buffer: Array) -> list[Array]:
    """Return C-contiguous copies of the parts, one after the other in a flat buffer."""
    ends = accumulate(part.size for part in parts)
    places = [buffer[end - part.size : end].reshape(part.shape) for part, end in zip(parts, ends, strict=True)]
    for place, part in zip(places, parts, strict=True):
        place[...] = part
    return places


def extents(bounds: Bounds) -> Shape:
    return tuple(end - start for start, end in bounds)
