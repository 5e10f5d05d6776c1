"""The devices as a grid of named axes.

A mesh is made of levels, outermost (between machines) to innermost (between the devices of a machine). Each level's
count is split into its prime factors, and every prime factor is one axis: 2 machines of 8 devices are ``(2 | 2, 2, 2)``.
Every subset of axes is one of the paper's *device partitions* into disjoint groups (TensorOpt, section 3.2), so that
grouping axes gives every device mesh of section 2.1, per tensor and per operator.

Axes are numbered from 0, outermost first, and written as letters: axis 0 is ``a``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from typing import Any

AXIS_NAMES = "abcdefghijklmnopqrstuvwxyz"
MOST_UNITS = 1 << 16
"""The most units in one unit of the level above: more are a slip, and all devices up to them are listed."""


@cache
def prime_factors(count: int) -> tuple[int, ...]:
    """Return the prime factors of ``count`` in ascending order; none for 1.

    Raises:
        ValueError: ``count`` is below 1.
    """
    if count < 1:
        raise ValueError(f"a count of devices must be at least 1, got {count}")
    factors = []
    divisor = 2
    while count > 1:
        while count % divisor == 0:
            factors.append(divisor)
            count //= divisor
        divisor += 1
    return tuple(factors)


@dataclass(frozen=True, slots=True)
class Level:
    """One level of the hardware, with the number of its units in one unit of the level above."""

    name: str
    count: int


@dataclass(frozen=True, slots=True)
class Mesh:
    """A grid of devices; ranks are numbered with the innermost axis fastest."""

    levels: tuple[Level, ...]
    sizes: tuple[int, ...] = field(init=False)
    level_of_axis: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        factors = [(index, size) for index, level in enumerate(self.levels) for size in prime_factors(level.count)]
        if len(factors) > len(AXIS_NAMES):
            raise ValueError(f"a mesh has at most {len(AXIS_NAMES)} axes, got {len(factors)} from {self.levels}")
        object.__setattr__(self, "sizes", tuple(size for _, size in factors))
        object.__setattr__(self, "level_of_axis", tuple(index for index, _ in factors))

    def __hash__(self) -> int:
        return hash((self.sizes, self.level_of_axis))

    @classmethod
    def of(cls, *counts: int) -> Mesh:
        """Return a mesh of unnamed levels: ``Mesh.of(2, 8)`` is 2 machines of 8 devices, ``Mesh.of(4)`` one machine of 4."""
        names = ("device",) if len(counts) == 1 else tuple(f"level{i}" for i in range(len(counts)))
        return cls(tuple(Level(name, count) for name, count in zip(names, counts, strict=True)))

    @property
    def n_devices(self) -> int:
        return math.prod(self.sizes)

    @property
    def axes(self) -> tuple[int, ...]:
        return tuple(range(len(self.sizes)))

    def size_of(self, axes: tuple[int, ...]) -> int:
        """Return the number of blocks that these axes make."""
        return math.prod(self.sizes[axis] for axis in axes)

    def coordinates(self, rank: int) -> tuple[int, ...]:
        """Return the rank's coordinate on each axis."""
        reversed_coordinates = []
        for size in reversed(self.sizes):
            rank, coordinate = divmod(rank, size)
            reversed_coordinates.append(coordinate)
        return tuple(reversed(reversed_coordinates))

    def rank(self, coordinates: tuple[int, ...]) -> int:
        """Return the rank at these coordinates: the inverse of :meth:`coordinates`."""
        rank = 0
        for size, coordinate in zip(self.sizes, coordinates, strict=True):
            rank = rank * size + coordinate
        return rank

    def index_along(self, axes: tuple[int, ...], rank: int) -> int:
        """Return the rank's mixed-radix index over ``axes``, the first of them major."""
        coordinates = self.coordinates(rank)
        index = 0
        for axis in axes:
            index = index * self.sizes[axis] + coordinates[axis]
        return index

    def group(self, axes: tuple[int, ...], rank: int) -> tuple[int, ...]:
        """Return the ranks that differ from ``rank`` in ``axes`` only, ordered by :meth:`index_along` (first axis major)."""
        base = list(self.coordinates(rank))
        members = []
        for position in product(*(range(self.sizes[axis]) for axis in axes)):
            for axis, coordinate in zip(axes, position, strict=True):
                base[axis] = coordinate
            members.append(self.rank(tuple(base)))
        return tuple(members)

    def __str__(self) -> str:
        levels: list[list[str]] = [[] for _ in self.levels]
        for size, level in zip(self.sizes, self.level_of_axis, strict=True):
            levels[level].append(str(size))
        return "(" + " | ".join(", ".join(level) or "1" for level in levels) + ")"


def mesh_of(levels: list[dict[str, Any]]) -> Mesh:
    """Return the mesh that a file describes, by the name and count of each level.

    Raises:
        TypeError: a level's name isn't text.
        ValueError: a level's number of units is out of range.
    """
    for level in levels:
        if not isinstance(level["name"], str):
            raise TypeError(f"expected the name of a level, got {level['name']!r}")
        if not isinstance(level["count"], int) or not 1 <= level["count"] <= MOST_UNITS:
            raise ValueError(f"a level of the mesh has 1 to {MOST_UNITS} units, got {level['count']}")
    return Mesh(tuple(Level(level["name"], level["count"]) for level in levels))
