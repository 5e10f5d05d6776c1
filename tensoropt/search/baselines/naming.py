"""Enumerate Mesh-TensorFlow's layout rules (Shazeer et al., 2018): which logical dimension is split by which mesh dimension.

The device mesh is the same for all operators: the mesh's axes in their order, cut into at most MOST_GROUPS runs, which are
the dimensions of Mesh-TensorFlow's mesh. An *assignment* gives each logical dimension (:mod:`.dimensions`) one of these runs
or none; two logical dimensions of one operator never have the same run. As a user would, it gives the dimensions of equal
layers one *name*: those whose members have the same operator types, factors and extents.

With many names there are too many assignments. Then only the names whose tensors have the most bytes are split, as many as
have at most MOST_ASSIGNMENTS assignments together. The assignments of d + 1 names are those of d names, each extended by
every run for the next name that no conflicting name has.
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
from ..task import BaselineTask
from .dimensions import Dimension, by_operator, config_of, logical_dimensions

MOST_GROUPS = 3
MOST_ASSIGNMENTS = 1 << 15
Ints = np.ndarray


@dataclass(frozen=True, eq=False)
class Naming:
    """All assignments of names (groups of logical dimensions) to runs of mesh axes.

    Attributes:
        runs: the runs of axes that a name may be assigned to; the first is empty: not split.
        factors: for each operator, (column of ``assigned``, factor) for each of its names that may be split, in the order of
            the columns.
        assigned: int16[assignments, names], the index in ``runs`` of each name's run.
        n_names: the number of the model's names that can be split by some axis, also of those left out here.
    """

    runs: tuple[Axes, ...]
    factors: dict[str, tuple[tuple[int, str], ...]]
    assigned: Ints
    n_names: int

    @classmethod
    def of(cls, task: BaselineTask, max_assignments: int) -> Naming:
        """Return the assignments of a model's names on a mesh; ``max_assignments`` is how many there may be."""
        names = _names(task)
        grids = tuple(_grids(task.mesh))
        runs: tuple[Axes, ...] = ((), *dict.fromkeys(run for grid in grids for run in grid))
        carried = [by_operator(name, task.rules) for name in names]
        assignments = [np.zeros((1, 0), np.int16) for _ in grids]
        for column, name in enumerate(names):
            conflicts = [earlier for earlier in range(column) if carried[earlier].keys() & carried[column].keys()]
            fitting_runs = [index for index, run in enumerate(runs) if name.degree_fits(task.mesh.size_of(run), task.rules)]
            extensions = []
            for grid, assigned in zip(grids, assignments, strict=True):
                indices = [index for index in fitting_runs if not index or runs[index] in grid]
                extensions.append(_extended(assigned, indices, conflicts))
            if sum(map(len, extensions)) > max_assignments:
                break
            assignments = extensions
        assigned = np.unique(np.concatenate(assignments), axis=0)
        factors = {
            op.name: tuple((i, carried[i][op.name]) for i in range(assigned.shape[1]) if op.name in carried[i])
            for op in task.operators
        }
        return cls(runs, factors, assigned, len(names))

    def columns(self, operator: str) -> tuple[int, ...]:
        """Return the columns of the names on which an operator's config depends."""
        return tuple(column for column, _ in self.factors[operator])

    def config(self, task: BaselineTask, operator: str, assignment: int) -> Config:
        """Return an operator's config under an assignment."""
        run_of_name = self.assigned[assignment]
        requests = [(factor, self.runs[run_of_name[column]]) for column, factor in self.factors[operator]]
        return config_of(task.rules[operator], task.mesh, requests)


def _extended(assigned: Ints, indices: Sequence[int], conflicts: Sequence[int]) -> Ints:
    """Return the assignments extended by one more name, in each run that no conflicting name has."""
    extended = []
    for index in indices:
        is_free = np.ones(len(assigned), bool) if not index else (assigned[:, conflicts] != index).all(axis=1)
        column = np.full((int(is_free.sum()), 1), index, np.int16)
        extended.append(np.concatenate([assigned[is_free], column], axis=1))
    return np.concatenate(extended)


def _grids(mesh: Mesh) -> Iterator[tuple[Axes, ...]]:
    """Yield the mesh's axes cut into runs, in every way that makes at most MOST_GROUPS runs."""
    n_axes = len(mesh.sizes)
    for n_cuts in range(min(MOST_GROUPS, max(n_axes, 1))):
        for cuts in combinations(range(1, n_axes), n_cuts):
            ends = (0, *cuts, n_axes)
            yield tuple(mesh.axes[start:end] for start, end in pairwise(ends))


def _names(task: BaselineTask) -> list[Dimension]:
    """Return the logical dimensions of each name as one, those first whose tensors have the most bytes.

    Names that no mesh axis can split are left out.
    """
    operators = {op.name: op for op in task.operators}
    groups: dict[frozenset[tuple[str, str, int]], list[Dimension]] = {}
    for dimension in logical_dimensions(task.operators, task.rules):
        signature = {(operators[name].type, factor, task.rules[name].extents[factor]) for name, factor in dimension.members}
        groups.setdefault(frozenset(signature), []).append(dimension)
    names = [Dimension(tuple(member for dimension in group for member in dimension.members)) for group in groups.values()]
    splittable = [name for name in names if any(name.degree_fits(size, task.rules) for size in task.mesh.sizes)]
    return sorted(splittable, key=lambda name: -sum(_bytes(task, operators[op], factor) for op, factor in name.members))


def _bytes(task: BaselineTask, op: Operator, factor: str) -> int:
    """Return the bytes of the operator's results that have a factor."""
    results = zip(op.outputs, task.rules[op.name].results, strict=True)
    return sum(tensor.mem_bytes for tensor, dims in results if any(factor in names for names in dims))
