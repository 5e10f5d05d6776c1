"""Bound from below the memory per device, whatever the plan."""

from __future__ import annotations

from collections.abc import Container

from ..ir.graph import PLACEHOLDER, VARIABLE, Graph


def least_held_bytes(graph: Graph, n_devices: int, of: Container[str] = (VARIABLE, PLACEHOLDER)) -> int:
    """Return the bytes per device that no plan can do with less than.

    They are one device's share of each variable with the variable's slots, and of the batch.

    Args:
        of: the types of the operators whose results count.
    """
    total = 0
    for op in graph.full_batch.step_operators:
        if op.type in of:
            copies = 1 + min((update.slots for update in graph.full_batch.updates.get(op.name, ())), default=0)
            total += copies * -(-op.result.mem_bytes // n_devices)
    return total
