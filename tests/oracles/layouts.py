"""All layouts of tensors on a mesh, one by one, and the table of times between them with the paths that have these times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations

import numpy as np

from tensoropt.reschedule import path
from tensoropt.reschedule.layout import Layout, Shape
from tensoropt.reschedule.mesh import Mesh
from tensoropt.reschedule.path import StepCosts
from tensoropt.reschedule.steps import State


def all_states(n_axes: int, rank: int, partial: bool) -> Iterator[State]:
    """Yield every state once: fewest used axes first, those without partial axes before all others."""
    for n_partial in range(n_axes + 1 if partial else 1):
        for partial_axes in combinations(range(n_axes), n_partial):
            free = [axis for axis in range(n_axes) if axis not in partial_axes]
            for n_split in range(len(free) + 1 if rank else 1):
                for ordered in permutations(free, n_split):
                    for cuts in _cuts(n_split, rank):
                        yield State(tuple(ordered[start:end] for start, end in cuts), partial_axes)


def _cuts(n_items: int, n_parts: int) -> Iterator[tuple[tuple[int, int], ...]]:
    """Yield all ways to cut a sequence into ``n_parts`` parts, empty ones included, as (start, end) of each part."""
    if n_parts == 0:
        yield ()
        return
    for borders in combinations(range(n_items + n_parts - 1), n_parts - 1):
        starts = (0, *(border - position for position, border in enumerate(borders)))
        yield tuple(zip(starts, (*starts[1:], n_items), strict=True))


def all_layouts(mesh: Mesh, shape: Shape, partial: bool = True) -> tuple[Layout, ...]:
    """Return all layouts that fit a tensor of ``shape``, in a fixed order; with ``partial``, those of partial sums, too."""
    layouts = (Layout(mesh, *state) for state in all_states(len(mesh.sizes), len(shape), partial))
    return tuple(layout for layout in layouts if layout.fits(shape))


@dataclass(frozen=True)
class AllPairs:
    """The times of the cheapest paths from ``layouts[i]`` to ``layouts[j]``."""

    layouts: tuple[Layout, ...]
    time_ns: np.ndarray
    shape: Shape
    itemsize: int
    costs: StepCosts

    def path(self, i: int, j: int) -> path.Path:
        """Return the path whose time is ``time_ns[i, j]``, by a search of its own."""
        return path.cheapest_path(self.layouts[i], self.layouts[j], self.shape, self.itemsize, self.costs)


def all_pairs(
    mesh: Mesh, shape: Shape, itemsize: int, costs: StepCosts, layouts: Sequence[Layout] | None = None
) -> AllPairs:
    """Return the table of the different ones of some layouts; of all that fit by default."""
    chosen = tuple(dict.fromkeys(all_layouts(mesh, shape) if layouts is None else layouts))
    return AllPairs(chosen, path.all_pairs(mesh, shape, itemsize, costs, chosen), shape, itemsize, costs)
