"""Restrict configs by ``force``: the degrees of operators' factors that a user insists on."""

from __future__ import annotations

from collections.abc import Mapping

from ..common.errors import InputError
from ..common.words import counted
from ..ir.graph import Graph, Operator
from ..reschedule.mesh import Mesh
from ..rules.rule import Config, Rule, why_unsearched

Force = Mapping[str, Mapping[str, int]]


def allowed(force: Force, op: Operator, rule: Rule, mesh: Mesh, configs: tuple[Config, ...]) -> tuple[Config, ...]:
    """Return those of an operator's configs that have the forced degrees.

    Raises:
        InputError: none has; says why.
    """
    degrees = force.get(op.name, {})
    found = tuple(config for config in configs if all(config.degree(name) == n for name, n in degrees.items()))
    if found:
        return found
    raise InputError(
        f"force={{'{op.name}': {dict(degrees)}}} can't be had for {op.where()} on {counted(mesh.n_devices, 'device')} "
        f"{mesh}: {why_not(rule, mesh, degrees)}"
    )


def why_not(rule: Rule, mesh: Mesh, pinned: Mapping[str, int]) -> str:
    """Return the reason why no config has these degrees, in words."""
    for factor, degree in pinned.items():
        ways = [c for c in _single_factor_configs(factor, mesh) if c.degree(factor) == degree]
        if not ways:
            return f"degree {degree} of factor '{factor}' isn't a product of the mesh's axes {list(mesh.sizes)}"
        reasons = [why_unsearched(rule, config) for config in ways]
        if all(reasons):
            return reasons[0]
    return f"the degrees {dict(pinned)} don't fit {counted(mesh.n_devices, 'device')} together"


def _single_factor_configs(factor: str, mesh: Mesh) -> list[Config]:
    choices = range(1 << len(mesh.sizes))
    return [Config(mesh, tuple(factor if bits >> axis & 1 else "" for axis in mesh.axes)) for bits in choices]


def force_by_name(graph: Graph, force: Force) -> Force:
    """Return ``force`` by operators' names alone. A type means all its operators but those that are named themselves.

    TensorFlow names the first operator of a type like the type: such a name means all of the type.

    Raises:
        InputError: ``force`` names what is neither an operator's name nor a type in the model.
    """
    types = {op.type for op in graph.operators.values()}
    for name in force:
        if name not in types and name not in graph.operators:
            names = ", ".join(op.name for op in graph.step_operators)
            raise InputError(
                f"force names '{name}', which is neither an operator's name nor a type in this model; its operators are "
                f"{names}"
            )
    force = {name: degrees for name, degrees in force.items() if degrees}
    found = {op.name: force[op.type] for op in graph.operators.values() if op.type in force}
    return found | {name: degrees for name, degrees in force.items() if name in graph.operators}
