"""Bound from below the memory per device, whatever the plan."""

from __future__ import annotations

from collections.abc import Container

from ..ir.graph import PLACEHOLDER, VARIABLE, Graph
from ..sharding.model import Model
from .operator_costs import OperatorCosting


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
        uses = [(op, i) for op in consumers for i, operand in op.operands if operand.name == tensor.name]
        if any(
            op.outputs
            and graph.n_runs(op.result.name) > 1
            and (op.name, i) in model.backward.gradients
            and (op.name, i) not in micro_batching.once
            for op, i in uses
        ):
            total += -(-tensor.mem_bytes // n_devices)
    return total


def least_kept_bytes(costing: OperatorCosting, n_devices: int, rematerialized: Container[str] = ()) -> int:
    """Return the bytes per device of results that no plan can do with less than when the last backward pass begins.

    They are one device's share of each result that the backward pass reads, be it kept in shards or in copies; 0 for a model
    of several backward passes, which has no such instant. What :func:`least_held_bytes` counts isn't counted, nor what is
    made of variables and constants alone, nor what is computed once, after all micro-batches.

    Args:
        costing: that of a model, or of one of several micro-batches.
        rematerialized: the names of the operators that a plan may rematerialize, whose results don't count.
    """
    graph = costing.graph
    if len(graph.train_steps) != 1 or graph.late:
        return 0
    total = 0
    for name in costing.saved - graph.made_of_variables:
        op = graph.producers[name]
        is_kept = op.type != PLACEHOLDER and op.name not in rematerialized and graph.n_runs(name) == graph.n_micro_batches
        total += next(tensor.mem_bytes for tensor in op.outputs if tensor.name == name) if is_kept else 0
    return total // n_devices
