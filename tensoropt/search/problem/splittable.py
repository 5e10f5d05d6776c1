"""Check that a model can use a number of devices: that some operator can be split over all of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

from ...common.errors import InputError
from ...common.words import counted
from ...ir.graph import SOURCES, Graph
from ...profiling.hardware import Hardware
from ...reschedule.mesh import Mesh
from ...rules.registry import rule_of

Factors = tuple[tuple[int, bool], ...]  # (extent, whether the blocks must divide it)


def check_usable(graph: Graph, hardware: Hardware, parallelism: int) -> None:
    """Raise an error if no operator can use all devices of a parallelism: some would only repeat what others compute.

    Raises:
        InputError: no operator can; names the one that can use most, and the largest parallelism that some operator can use.
        HardwareError: the hardware doesn't have this parallelism.
    """
    mesh = hardware.mesh(parallelism)
    ops = ((rule_of(op), op) for op in graph.step_operators if op.type not in SOURCES and op.updates is None)
    kinds = {tuple(sorted((rule.most_blocks(n), n in rule.even) for n in rule.splittable)): op for rule, op in ops}
    size, widest = max(((most_devices(factors, _axes(mesh)), op) for factors, op in kinds.items()), key=lambda pair: pair[0])
    if size == parallelism:
        return
    fewer = (count for count in reversed(hardware.parallelisms()) if count <= size)
    counts = (count for count in fewer if any(most_devices(f, _axes(hardware.mesh(count))) == count for f in kinds))
    raise InputError(
        f"{parallelism} devices {mesh} can't be used: no operator has dimensions that can be split so often, the most is "
        f"{counted(size, 'device')}, by {widest.where()}; use {next(counts, 1)}"
    )


def _axes(mesh: Mesh) -> tuple[int, ...]:
    return tuple(sorted(mesh.sizes, reverse=True))


@cache
def most_devices(factors: Factors, axes: Sequence[int]) -> int:
    """Return the largest product of mesh axes that can be assigned to the factors, each axis to one factor.

    O(product over factors of the number of different degrees): assignments with the same degrees are one.
    """
    combinations = {(1,) * len(factors)}
    for axis in axes:
        extensions = set()
        for degrees in combinations:
            for i, (extent, is_even) in enumerate(factors):
                degree = degrees[i] * axis
                if degree <= extent and not (is_even and extent % degree):
                    extensions.add((*degrees[:i], degree, *degrees[i + 1 :]))
        combinations |= extensions
    return max(math.prod(degrees) for degrees in combinations)
