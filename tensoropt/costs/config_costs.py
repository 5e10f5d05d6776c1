"""Compute an operator's costs in many configs together, in arrays: what :class:`.OperatorCosting` computes for one config.

| of one config | of all |
|---|---|
| :meth:`.OperatorCosting.mem_bytes` | :func:`_mem_bytes` |
| :meth:`.OperatorCosting.saved_result_bytes` | :func:`saved_result_bytes` |
| :meth:`.OperatorCosting.both_times_ns` | :func:`_times_ns` |
| :meth:`.OperatorCosting.inner_times_ns` | :func:`_inside`, :func:`_updating_ns` |

Where configs differ in what a cost doesn't depend on, the single-config function is asked once for all of them: for each
different amount of work, each layout of a variable that differs in its shards, and each different resharding inside.
``tests/search/problem/test_config_costs.py`` holds the one against the other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..ir.body import COMPOSITES, VALUE_SHAPED
from ..ir.graph import CONSTANT, PLACEHOLDER, VARIABLE, Operator, Tensor
from ..ir.views import ALIASES
from ..reschedule.orders import Ints, Mask
from ..rules.config_arrays import ConfigArrays, Interfaces
from ..rules.shardings import first_seen
from ..sharding.resharding import Resharding, differentiated_operands, inner_reshardings, statistics_of
from .operator_costs import OperatorCosting


@dataclass(frozen=True, eq=False)
class ConfigCosts:
    """The costs of an operator in K configs, int64[K] each.

    Attributes:
        within_ns: the time of the collectives inside of the operator.
        updating_ns: the time of collectives that only updates of variables wait for.
    """

    interfaces: Interfaces
    mem_bytes: Ints
    compute_ns: Ints
    backward_ns: Ints
    within_ns: Ints
    updating_ns: Ints


def costs_of_configs(costing: OperatorCosting, op: Operator, arrays: ConfigArrays) -> ConfigCosts:
    """Return the costs of an operator in its configs."""
    interfaces = Interfaces(arrays, costing.reshardings.numbers)
    within_ns, windows_bytes = _inside(costing, op, arrays)
    if _is_of_kinds(op):
        mem_bytes, compute_ns, backward_ns = _of_kinds(costing, op, arrays, interfaces)
    else:
        mem_bytes = _mem_bytes(costing, op, arrays, interfaces) + windows_bytes
        compute_ns, backward_ns = _times_ns(costing, op, arrays, interfaces)
    updating_ns = _updating_ns(costing, op, arrays)
    return ConfigCosts(interfaces, mem_bytes, compute_ns, backward_ns, within_ns, updating_ns)


def times_of_configs(costing: OperatorCosting, op: Operator, arrays: ConfigArrays) -> tuple[Ints, Ints]:
    """Return the compute time of an operator in its configs, and the part of it that is the backward pass."""
    interfaces = Interfaces(arrays, costing.reshardings.numbers)
    if _is_of_kinds(op):
        _, compute_ns, backward_ns = _of_kinds(costing, op, arrays, interfaces)
    else:
        compute_ns, backward_ns = _times_ns(costing, op, arrays, interfaces)
    return compute_ns, backward_ns


def saved_result_bytes(costing: OperatorCosting, op: Operator, interfaces: Interfaces) -> Ints:
    """Return the part of the memory that is the operator's results, which aren't saved where it is rematerialized."""
    total = np.zeros(len(interfaces), np.int64)
    for tensor, layouts in zip(op.outputs, interfaces.results, strict=True):
        if tensor.name in costing.charged:
            total += _shards(tensor, layouts, interfaces)
    return total


def communicates_inside(op: Operator, arrays: ConfigArrays) -> Mask:
    """Return whether there are reshardings inside of the operator (:func:`.inner_reshardings`), bool[K]."""
    found = arrays.are_exchanged()
    return found | arrays.splits_any(arrays.rule.inner) if arrays.rule.inner and statistics_of(op, arrays.rule) else found


def _is_of_kinds(op: Operator) -> bool:
    return op.type == VARIABLE or op.type in COMPOSITES or op.type == VALUE_SHAPED


def _of_kinds(costing: OperatorCosting, op: Operator, arrays: ConfigArrays, interfaces: Interfaces) -> list[Ints]:
    """Return memory, compute time and its backward part from the single-config functions.

    For a variable they are the same where its shards are equally large, and its layouts replicated or not.
    """
    first, kind = np.arange(len(arrays)), np.arange(len(arrays))
    if op.type == VARIABLE:
        is_split = interfaces.numbers.used_axes(interfaces.results[0]) != 0
        first, kind = first_seen(2 * _shards(op.result, interfaces.results[0], interfaces) + is_split)
    rule, costs = arrays.rule, []
    for i in first.tolist():
        each = arrays.configs[i], interfaces[i]
        costs.append((costing.mem_bytes(op, rule, *each), *costing.both_times_ns(op, rule, *each)))
    return list(np.array(costs, np.int64)[kind].T)


def _mem_bytes(costing: OperatorCosting, op: Operator, arrays: ConfigArrays, interfaces: Interfaces) -> Ints:
    """Return :meth:`.OperatorCosting.mem_bytes` without the windows that are exchanged."""
    graph, total = costing.graph, np.zeros(len(arrays), np.int64)
    for tensor, layouts in zip(op.outputs, interfaces.results, strict=True):
        if op.type == CONSTANT or tensor.name in costing.charged:
            n_runs = graph.n_runs(tensor.name) if op.type == PLACEHOLDER else 1
            total += _shards(tensor, layouts, interfaces) * n_runs
    return total + costing.looked_up_bytes(op)


def _times_ns(costing: OperatorCosting, op: Operator, arrays: ConfigArrays, interfaces: Interfaces) -> list[Ints]:
    """Return the compute time and the part of it that is the backward pass: once for each different amount of work."""
    nothing = np.zeros(len(arrays), np.int64)
    if not costing.has_work(op):
        return [nothing, nothing]
    operands = [(tensor, sharding.layouts) for _, tensor, sharding in interfaces.of_operands(op)]
    results = list(zip(op.outputs, interfaces.results, strict=True))
    shards = [_shards(tensor, layouts, interfaces) for tensor, layouts in (*results, *operands)]
    moved = moved_back = nothing
    if op.type not in ALIASES:
        table = shards[len(results)] if operands else nothing
        moved, moved_back = costing.moved(op, sum(shards, nothing), sum(shards[: len(results)], nothing), table)
    flops = np.rint(arrays.rule.flops_per_point * arrays.local_points()).astype(np.int64)
    columns = [flops, moved, moved_back]
    if costing.compute.needs_keys:
        # A key tells the largest shards of the operands, whether windows are exchanged, and which factors inside are split.
        columns += [arrays.are_exchanged(), *(arrays.degree(name) for name in arrays.rule.inner)]
        columns += [blocks for tensor, layouts in operands for blocks in interfaces.numbers.blocks(layouts, tensor.shape).T]
    accumulates = bool(costing.accumulated(op))
    if accumulates:
        columns += shards[len(results) :]
    _, first, kind = np.unique(np.stack(columns, axis=1), axis=0, return_index=True, return_inverse=True)
    costs = []
    for i in first.tolist():
        if costing.compute.needs_keys:
            costs.append(costing.both_times_ns(op, arrays.rule, arrays.configs[i], interfaces[i]))
            continue
        both_ns = costing.times_of_amounts_ns(op, (int(flops[i]), int(moved[i]), int(moved_back[i])))
        added_ns = costing.accumulating_ns(op, interfaces[i]) if accumulates else 0
        costs.append(tuple(time_ns + added_ns for time_ns in both_ns))
    return list(np.array(costs, np.int64)[kind.reshape(-1)].T)


def _inside(costing: OperatorCosting, op: Operator, arrays: ConfigArrays) -> tuple[Ints, Ints]:
    """Return the time of the collectives inside of the operator, and the bytes of exchanged windows that are saved.

    Both are the same for configs that split the factors of what is reduced, or of the first operand's windows, equally.
    """
    rule, costs = arrays.rule, np.zeros((2, len(arrays)), np.int64)
    is_inside = communicates_inside(op, arrays)
    if not is_inside.any():
        return costs[0], costs[1]
    differentiated = differentiated_operands(op, costing.backward.gradients)
    is_saved = (op.name, 0) in costing.backward.residual_operands
    first, kind = arrays.distinct_in(_names_inside(op, arrays))
    found: dict[int, tuple[Resharding, ...]] = {}
    for number, i in enumerate(first):
        if is_inside[i]:
            found[number] = inner_reshardings(op, rule, arrays.configs[i], differentiated)
            for resharding in found[number]:
                costing.reshardings.expect_resharding(resharding)
    n_runs = costing.graph.n_runs(op.result.name)
    of_kind = np.zeros((2, len(first)), np.int64)
    for number, reshardings in found.items():
        of_kind[0, number] = n_runs * sum(costing.reshardings.time_ns(resharding) for resharding in reshardings)
        for resharding in reshardings if is_saved else ():
            if resharding.halo is not None:
                windows = resharding.halo.largest_local_shape(resharding.shape)
                of_kind[1, number] = math.prod(windows) * resharding.item_bytes
    costs = of_kind[:, kind]
    return costs[0], costs[1]


def _names_inside(op: Operator, arrays: ConfigArrays) -> set[str]:
    """Return the factors and linear groups on which the reshardings inside of an operator depend."""
    rule, names = arrays.rule, set(arrays.rule.inner)
    if rule.halos:
        names.update(name for dim in rule.operands[0] or () for name in dim)
        names.update(f"+{group}" for group, positions in enumerate(rule.linear) if 0 in positions)
    if rule.inner:
        names.update(name for statistic in statistics_of(op, rule) for name in statistic.kept if name is not None)
    return names


def _updating_ns(costing: OperatorCosting, op: Operator, arrays: ConfigArrays) -> Ints:
    """Return the time of the collectives of the updates of a variable, or of a table that is looked up."""
    updates = costing.graph.updates.get(op.name, ())
    if op.name not in costing.graph.lookup_operators and not any(update.sums or update.is_global for update in updates):
        return np.zeros(len(arrays), np.int64)
    return np.array([updating_ns for _, updating_ns in costing.inner_times_ns(op, arrays.rule, arrays.configs)], np.int64)


def _shards(tensor: Tensor, layouts: Ints, interfaces: Interfaces) -> Ints:
    """Return the bytes of the largest shard of a tensor in each layout, int64[K]."""
    return interfaces.numbers.largest_elements(layouts, tensor.shape) * tensor.item_bytes
