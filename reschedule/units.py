"""Units: bundles of axes that are searched as if each were one axis.

Up to ``MOST_AXES`` axes every axis is a unit. Where there are more, a level's axes of one size are bundled by 1, 2, 3,
..., so that some units together have any number of them: 64 machines of 8 devices, ``(2, 2, 2, 2, 2, 2 | 2, 2, 2)``,
have the units ``a``, ``bc``, ``def`` and ``g``, ``hi``. A layout is *of units* if each dimension, and the set of partial
axes, consists of entire units. These may come in any order, but each has its own axes in ascending order.

Between two layouts of units a path goes through layouts of units: those of 9 axes are then as few as those of 5. The
axes of a unit are always next to each other, so a unit's move is a move of all its axes at once, at the same cost.
Whether a layout is of units follows from the layout and its mesh alone, so tables of times and single searches agree.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import count, groupby

from .layout import Axes, Layout
from .mesh import Mesh
from .steps import Move, State

MOST_AXES = 4
"""Up to this many axes, each axis is a unit."""


@cache
def units(mesh: Mesh) -> tuple[Axes, ...]:
    """Return the units of a mesh, in ascending order of their axes; each axis is in one unit."""
    if len(mesh.sizes) <= MOST_AXES:
        return tuple((axis,) for axis in mesh.axes)
    groups = groupby(mesh.axes, key=lambda axis: (mesh.level_of_axis[axis], mesh.sizes[axis]))
    return tuple(bundle for _, axes in groups for bundle in _bundles(tuple(axes)))


def _bundles(axes: Axes) -> Iterator[Axes]:
    """Yield bundles of 1, 2, 3, ... of the axes, and the rest."""
    for size in count(1):
        if not axes:
            return
        yield axes[:size]
        axes = axes[size:]


@dataclass(frozen=True, slots=True, eq=False)
class UnitMesh:
    """A mesh with its units as axes, numbered in the order of :func:`units`."""

    units: tuple[Axes, ...]
    sizes: Axes  # devices along each unit
    _unit_at: dict[int, int]  # each unit's number by its first axis
    _known: dict[Axes, Axes | None]  # results of in_units

    @classmethod
    @cache
    def of(cls, mesh: Mesh) -> UnitMesh:
        bundles = units(mesh)
        first = {bundle[0]: number for number, bundle in enumerate(bundles)}
        return cls(bundles, tuple(mesh.size_of(bundle) for bundle in bundles), first, {})

    def in_units(self, axes: Axes) -> Axes | None:
        """Return the units that these axes are, one after the other; None if they are not entire units."""
        if axes not in self._known:
            self._known[axes] = self._read(axes)
        return self._known[axes]

    def _read(self, axes: Axes) -> Axes | None:
        whole: list[int] = []
        index = 0
        while index < len(axes):
            unit = self._unit_at.get(axes[index])
            if unit is None or axes[index : index + len(self.units[unit])] != self.units[unit]:
                return None
            whole.append(unit)
            index += len(self.units[unit])
        return tuple(whole)

    def state(self, layout: Layout) -> State | None:
        """Return a layout's state with units as axes; None if the layout is not of units."""
        partial = self.in_units(layout.partial)
        splits = [self.in_units(axes) for axes in layout.splits]
        complete = tuple(axes for axes in splits if axes is not None)
        return None if partial is None or len(complete) < len(splits) else State(complete, partial)

    def axes(self, of_units: Axes) -> Axes:
        """Return the axes of some units, one unit after the other; ascending, if the units are."""
        return tuple(axis for unit in of_units for axis in self.units[unit])

    def move(self, move: Move) -> Move:
        """Return a move of units as a move of their axes."""
        target = State(tuple(map(self.axes, move.target.splits)), self.axes(move.target.partial))
        return move._replace(axes=self.axes(move.axes), target=target)
