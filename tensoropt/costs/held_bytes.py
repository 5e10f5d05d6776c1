"""Bound from below the memory per device, whatever the plan."""

from __future__ import annotations

from collections.abc import Container

from ..ir.graph import PLACEHOLDER, VARIABLE, Graph
from ..sharding.model import Model


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


def least_summed_bytes(model: Model, n_devices: int) -> int:
    """Return the bytes per device of sums of gradients that no plan in several micro-batches can do with less than.

    When the last micro-batch's backward pass begins, each variable's gradients of those before are added up and kept, beside
    what :func:`least_held_bytes` counts. Only variables that operators of micro-batches use themselves are counted, and none
    that is updated by rows.

    Args:
        model: that of one of several micro-batches.
    """
    graph, micro_batching, total = model.graph, model.graph.micro_batching, 0
    assert micro_batching is not None
    trained = {name for step in graph.train_steps.values() for name in step.variables} - graph.lookups.keys()
    for name in trained:
        tensor = graph.operators[name].result
        consumers = graph.consumers.get(tensor.name, ())
        uses = [(op, i) for op in consumers for i, each in op.operands if each.name == tensor.name]
        if any(
            op.outputs
            and graph.n_runs(op.result.name) > 1
            and (op.name, i) in model.backward.gradients
            and (op.name, i) not in micro_batching.once
            for op, i in uses
        ):
            total += -(-tensor.mem_bytes // n_devices)
    return total
