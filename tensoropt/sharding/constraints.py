"""Read ``force``: the degrees of operators' factors that a user insists on, and the devices that operators are placed on."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..common.errors import InputError, cut, short
from ..common.words import counted
from ..ir.graph import Graph, Operator
from ..reschedule.mesh import Mesh
from ..rules.rule import Config, Rule, why_unsearched

Force = Mapping[str, Mapping[str, int]]
DEVICES = "devices"
"""The key of an operator's devices in ``force``, beside its factors' degrees."""

Placed = Mapping[str, tuple[int, ...]]
"""The devices by the name of an operator."""


def allowed(force: Force, op: Operator, rule: Rule, mesh: Mesh, configs: tuple[Config, ...]) -> tuple[Config, ...]:
    """Return those of an operator's configs that have the forced degrees.

    Raises:
        InputError: none has; says why.
    """
    degrees = force.get(op.name, {})
    result = tuple(config for config in configs if all(config.degree(name) == n for name, n in degrees.items()))
    if result:
        return result
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
    by_type = {op.name: force[op.type] for op in graph.operators.values() if op.type in force}
    return by_type | {name: degrees for name, degrees in force.items() if name in graph.operators}


def checked_devices(value: object, argument: str) -> tuple[int, ...]:
    """Return the devices that a user placed operators on, ascending.

    Args:
        argument: where they were given, for the message.

    Raises:
        InputError: they aren't consecutive whole numbers from 0 up.
    """
    numbers = tuple(value) if isinstance(value, (list, tuple, range)) else ()
    if not numbers or any(isinstance(n, bool) or not isinstance(n, (int, np.integer)) or n < 0 for n in numbers):
        raise InputError(f"{argument} takes a list of numbers of devices, such as [0, 1], got {short(value)}")
    devices = tuple(sorted(map(int, numbers)))
    if devices != tuple(range(devices[0], devices[0] + len(devices))):
        raise InputError(f"{argument} takes consecutive devices, such as [0, 1], got {short(value)}; a stage has no others")
    return devices


def by_operator(graph: Graph, placements: Placed) -> Placed:
    """Return the devices by name of an operator, where a type means all operators of it.

    Raises:
        InputError: a name is neither an operator's nor a type in the model.
    """
    groups = sorted(set(placements.values()))
    numbers = {name: {DEVICES: groups.index(devices)} for name, devices in placements.items()}
    return {name: groups[degrees[DEVICES]] for name, degrees in force_by_name(graph, numbers).items()}


def split_force(force: object) -> tuple[object, dict[str, tuple[int, ...]]]:
    """Return ``force`` without its placements, and these.

    Raises:
        InputError: a placement isn't one.
    """
    if not isinstance(force, Mapping) or not all(isinstance(pinned, Mapping) for pinned in force.values()):
        return force, {}
    degrees = {name: {k: v for k, v in pinned.items() if k != DEVICES} for name, pinned in force.items()}
    placements = {
        str(name): checked_devices(pinned[DEVICES], f"force={{{cut(repr(name))}: {{'{DEVICES}': ...}}}}")
        for name, pinned in force.items()
        if DEVICES in pinned
    }
    return {name: factors for name, factors in degrees.items() if factors or name not in placements}, placements
