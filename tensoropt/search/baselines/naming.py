"""Mesh-TensorFlow's layout rules (Shazeer et al., 2018): which logical dimension is split over which part of one mesh.

The mesh is the same for all operators: the axes in their order, cut into at most MOST_GROUPS runs, its dimensions. Each
logical dimension (:mod:`.dimensions`) goes to one of them or to none; two that meet in one operator not to the same. As a
user would, equal layers' dimensions are given one name: those whose members have the same types, factors and extents.

With many names there are too many assignments; then only those names are split whose tensors have the most bytes, as many
as there are at most MOST_ASSIGNMENTS assignments of. The assignments of d + 1 names are those of d, extended by each place
of the next name that no conflicting name has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

import numpy as np

from ...ir.graph import Operator
from ...reschedule.layout import Axes
from ...reschedule.mesh import Mesh
from ...rules.rule import Config
from .dimensions import Dimension, by_operator, config_of, logical_dimensions
from .task import Task

MOST_GROUPS = 3
MOST_ASSIGNMENTS = 1 << 15
Ints = np.ndarray


@dataclass(frozen=True, eq=False)
class Naming:
    """All assignments.

    Attributes:
        places: where a name may go; the first is nowhere.
        factors: by operator (name, factor) for each name that may be split, in the order of the columns below.
        assigned: int16[assignments, names], the place of each name.
        n_names: of the model, whether they may be split or not.
    """

    places: tuple[Axes, ...]
    factors: dict[str, tuple[tuple[int, str], ...]]
    assigned: Ints
    n_names: int

    @classmethod
    def of(cls, task: Task, most: int) -> Naming:
        """The assignments of a model on a mesh, at most so many."""
        names = _names(task)
        grids = tuple(_grids(task.mesh))
        places: tuple[Axes, ...] = ((), *dict.fromkeys(run for grid in grids for run in grid))
        carried = [by_operator(name, task.rules) for name in names]
        of_grids = [np.zeros((1, 0), np.int16) for _ in grids]
        for column, name in enumerate(names):
            conflicts = [other for other in range(column) if carried[other].keys() & carried[column].keys()]
            fits = [place for place, run in enumerate(places) if name.degree_fits(task.mesh.size_of(run), task.rules)]
            longer = []
            for grid, assigned in zip(grids, of_grids, strict=True):
                possible = [place for place in fits if not place or places[place] in grid]
                longer.append(_extended(assigned, possible, conflicts))
            if sum(map(len, longer)) > most:
                break
            of_grids = longer
        assigned = np.unique(np.concatenate(of_grids), axis=0)
        factors = {
            op.name: tuple((i, carried[i][op.name]) for i in range(assigned.shape[1]) if op.name in carried[i])
            for op in task.operators
        }
        return cls(places, factors, assigned, len(names))

    def columns(self, operator: str) -> tuple[int, ...]:
        """The names on which an operator's config depends."""
        return tuple(column for column, _ in self.factors[operator])

    def config(self, task: Task, operator: str, assignment: int) -> Config:
        """An operator's config under an assignment."""
        of_names = self.assigned[assignment]
        given = [(factor, self.places[of_names[column]]) for column, factor in self.factors[operator]]
        return config_of(task.rules[operator], task.mesh, given)


def _extended(assigned: Ints, possible: Sequence[int], conflicts: Sequence[int]) -> Ints:
    """All assignments with one more name, in each place that is free of names that conflict."""
    extended = []
    for place in possible:
        free = np.ones(len(assigned), bool) if not place else (assigned[:, conflicts] != place).all(axis=1)
        column = np.full((int(free.sum()), 1), place, np.int16)
        extended.append(np.concatenate([assigned[free], column], axis=1))
    return np.concatenate(extended)


def _grids(mesh: Mesh) -> Iterator[tuple[Axes, ...]]:
    """The axes cut into runs, in every way that makes at most MOST_GROUPS."""
    n_axes = len(mesh.sizes)
    for n_cuts in range(min(MOST_GROUPS, max(n_axes, 1))):
        for cuts in combinations(range(1, n_axes), n_cuts):
            ends = (0, *cuts, n_axes)
            yield tuple(mesh.axes[start:end] for start, end in pairwise(ends))


def _names(task: Task) -> list[Dimension]:
    """The dimensions by name, those first whose tensors have the most bytes."""
    operators = {op.name: op for op in task.operators}
    alike: dict[frozenset[tuple[str, str, int]], list[Dimension]] = {}
    for dimension in logical_dimensions(task.operators, task.rules):
        signature = {(operators[name].type, factor, task.rules[name].extents[factor]) for name, factor in dimension.members}
        alike.setdefault(frozenset(signature), []).append(dimension)
    names = [Dimension(tuple(member for each in those for member in each.members)) for those in alike.values()]
    splittable = [name for name in names if any(name.degree_fits(size, task.rules) for size in task.mesh.sizes)]
    return sorted(splittable, key=lambda name: -sum(_bytes(task, operators[op], factor) for op, factor in name.members))


def _bytes(task: Task, op: Operator, factor: str) -> int:
    """Of the results that have a factor."""
    results = zip(op.outputs, task.rules[op.name].results, strict=True)
    return sum(tensor.mem_bytes for tensor, dims in results if any(factor in names for names in dims))
