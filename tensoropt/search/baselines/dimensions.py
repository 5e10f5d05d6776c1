"""Find a model's logical dimensions: factors of different operators that are one, since a tensor connects them.

A dimension of an operator's result is a dimension of its consumer's operand, so the factors that name it on both sides are
joined (where several are merged in it, the major ones, as in :mod:`..problem.fusion_groups`). The classes of this relation
are the model's logical dimensions: the batch, a hidden layer's width, and so on. A factor that its operator can't split is
in no class.

Complexity: O(operands), by union-find.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ...ir.graph import PLACEHOLDER, Operator
from ...reschedule.layout import Axes
from ...reschedule.mesh import Mesh
from ...rules.rule import NONE, Config, Rule, why_invalid

Member = tuple[str, str]
"""An operator's name and one of its factors."""


@dataclass(frozen=True)
class Dimension:
    """A logical dimension: its members in program order."""

    members: tuple[Member, ...]

    def degree_fits(self, degree: int, rules: Mapping[str, Rule]) -> bool:
        """Return whether every member can be split into ``degree`` blocks."""
        return all(rules[name].divides(factor, degree) for name, factor in self.members)


def logical_dimensions(operators: Iterable[Operator], rules: Mapping[str, Rule]) -> tuple[Dimension, ...]:
    """Return all logical dimensions, in order of first appearance."""
    from networkx.utils import UnionFind  # type: ignore[import-untyped,unused-ignore]  # here, since loading it takes .2 s

    operators = tuple(operators)
    members = [(op.name, factor) for op in operators for factor in rules[op.name].extents]
    dimensions = UnionFind(members)
    results = {tensor.name: (op.name, rules[op.name].results[i]) for op in operators for i, tensor in enumerate(op.outputs)}
    for op in operators:
        for position, tensor in op.operands:
            dims = rules[op.name].operands[position]
            if tensor.name not in results or dims is None:
                continue
            producer, result_dims = results[tensor.name]
            for operand_names, result_names in zip(dims, result_dims, strict=True):
                if operand_names and result_names:
                    dimensions.union((op.name, operand_names[0]), (producer, result_names[0]))
    classes: dict[Member, list[Member]] = {}
    for name, factor in members:
        if factor in rules[name].splittable:
            classes.setdefault(dimensions[name, factor], []).append((name, factor))
    return tuple(Dimension(tuple(group)) for group in classes.values())


def batch_dimension(
    operators: Iterable[Operator], rules: Mapping[str, Rule], dimensions: Iterable[Dimension]
) -> Dimension | None:
    """Return the logical dimension that is the first one of most placeholders; None if none that can be split is."""
    leading: dict[Member, int] = {}
    for op in operators:
        names = rules[op.name].results[0][:1] if op.type == PLACEHOLDER and op.outputs else ()
        if names and names[0]:
            leading[op.name, names[0][0]] = op.result.shape[0]
    extents = list(leading.values())
    if not extents:
        return None
    extent = max(extents, key=extents.count)
    seeds = {member for member, size in leading.items() if size == extent}
    batch = max(dimensions, key=lambda dimension: len(seeds.intersection(dimension.members)), default=None)
    return batch if batch and seeds.intersection(batch.members) else None


def longest_split(dimension: Dimension, mesh: Mesh, rules: Mapping[str, Rule]) -> Axes:
    """Return as many mesh axes as all members can be split over, the outer axes first."""
    axes: Axes = ()
    for axis in mesh.axes:
        if dimension.degree_fits(mesh.size_of((*axes, axis)), rules):
            axes = (*axes, axis)
    return axes


def config_of(rule: Rule, mesh: Mesh, requests: Iterable[tuple[str, Axes]]) -> Config:
    """Return a config that assigns axes to factors, one after the other.

    A factor is left out if the rule doesn't allow its axes or if one of them is assigned already.
    """
    assignment = [NONE] * len(mesh.sizes)
    for factor, axes in requests:
        if any(assignment[axis] != NONE for axis in axes):
            continue
        candidate = [factor if axis in axes else current for axis, current in enumerate(assignment)]
        if not why_invalid(rule, Config(mesh, tuple(candidate))):
            assignment = candidate
    return Config(mesh, tuple(assignment))


def by_operator(dimension: Dimension, rules: Mapping[str, Rule]) -> dict[str, str]:
    """Return the factor of each operator that belongs to a logical dimension, by the operator's name.

    An operator may have several (a product of a tensor with itself, a square weight within a recurrence). Then the first
    that is a factor of the result is returned; the others stay unsplit, as a dimension of another name would.
    """
    factors: dict[str, str] = {}
    for name, factor in dimension.members:
        results = {label for dims in rules[name].results for names in dims for label in names}
        if name not in factors or (factors[name] not in results and factor in results):
            factors[name] = factor
    return factors
