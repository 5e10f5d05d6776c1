"""Number the sites of a graph's step, and write what is the same under all strategies as arrays for the kernels.

Where a step takes its batch in micro-batches, its operators are those that run once and then those that each of these runs.
Operators that run after all micro-batches have their memory, and are left out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...ir.body import viewed_operand
from ...ir.gradient_info import Backward
from ...ir.graph import PLACEHOLDER, SOURCES, Graph, Operator, Tensor
from ..deferral import has_separate_gradients
from ..memory.buffers import OVERWRITE, PASSED_ON, PRODUCTS
from ..memory.peak import MOST_MICRO_BATCHES
from ..stage_ends import StageEnds
from . import array_layout as ix
from . import columns as c


@dataclass(frozen=True, eq=False)
class Outline:
    """A graph's step, whatever the strategy.

    Attributes:
        operators: those of the step, in order.
        operands: of each operator its index, the position and the tensor; in order.
        tensors: all results of the operators.
        loss: the name of the backward pass, and its loss.
        lookups: the operators that look up rows in variables that are updated by rows, in the order of their updates.
        producers: by tensor, the index of its operator.
        outputs: by operator, the numbers of its results.
        numbers: what the kernels read, see :mod:`.array_layout`.
    """

    operators: tuple[Operator, ...]
    operands: tuple[tuple[int, int, Tensor], ...]
    tensors: tuple[Tensor, ...]
    loss: tuple[str, Tensor]
    lookups: tuple[Operator, ...]
    producers: tuple[int, ...]
    outputs: tuple[range, ...]
    numbers: np.ndarray

    @property
    def first_operator(self) -> int:
        return 2 * len(self.tensors) + len(self.operands) + 1

    @property
    def n_sites(self) -> int:
        return self.first_operator + len(self.operators) + len(self.lookups)


def can_outline(graph: Graph) -> bool:
    """Return whether a graph's step has one backward pass, from a loss of the batch or of each micro-batch."""
    if len(graph.backward_passes) != 1 or graph.gradients or not graph.train_steps:
        return False
    if graph.micro_batching is None:
        return True
    (gradients,), after = graph.backward_passes, graph.micro_batching.after
    lookups = [graph.operators[lookup].result for name in gradients.variables for lookup in graph.lookups.get(name, ())]
    # What several operators share that all run after the micro-batches is copied then.
    consumers: dict[str, list[bool]] = {gradients.loss.name: [False]}
    for op in graph.step_operators:
        for _, tensor in op.operands:
            consumers.setdefault(tensor.name, []).append(op.name in after)
    is_copied_after = any(all(readers) for readers in consumers.values() if len(readers) > 1)
    return not is_copied_after and all(graph.n_runs(tensor.name) > 1 for tensor in (gradients.loss, *lookups))


def _operators(graph: Graph) -> tuple[list[Operator], list[Operator]]:
    """Return the operators that a step runs once, and those that it runs with each micro-batch or the batch, in order."""
    micro_batching, operators = graph.micro_batching, graph.step_operators
    if micro_batching is None:
        return [], list(operators)
    once, repeated = list[Operator](), list[Operator]()
    for op in operators:
        if op.name not in micro_batching.after:
            is_run = op.updates is None and graph.n_runs(op.result.name) > 1
            (repeated if is_run and (op.type == PLACEHOLDER or op.type not in SOURCES) else once).append(op)
    return once, repeated


def outline_of(graph: Graph, backward: Backward, ends: StageEnds) -> Outline:
    """Return the outline of a graph's step.

    Args:
        ends: what a stage exchanges with others; see :func:`..step.step_program`. The sites are those without.
    """
    (of_loss,) = graph.backward_passes
    run_once, run_each = _operators(graph)
    operators, first_run = (*run_once, *run_each), len(run_once)
    index = {op.name: i for i, op in enumerate(operators)}
    operands = tuple((i, position, tensor) for i, op in enumerate(operators) for position, tensor in op.operands)
    tensors = tuple(tensor for op in operators for tensor in op.outputs)
    number = {tensor.name: i for i, tensor in enumerate(tensors)}
    dense = [graph.operators[name].result.name for name in of_loss.variables if name not in graph.lookups]
    by_rows = [name for name in of_loss.variables if name in graph.lookups]
    lookups = [tuple(graph.operators[lookup] for lookup in graph.lookups[name]) for name in by_rows]
    row_names = {op.result.name for of_variable in lookups for op in of_variable}
    micro_batching = graph.micro_batching
    # Gradients go back to variables and, in micro-batches, to all that is computed once.
    received, returned = ends.received, ends.returned_of(of_loss.name)
    starts = {*row_names, *returned, *(dense if micro_batching is None else filter(graph.accumulates, graph.tensors))}
    starts_once = {*dense, *returned}
    only_once = micro_batching.once if micro_batching is not None else frozenset()
    first_use: dict[str, int] = {}
    for entry, (_, _, tensor) in enumerate(operands):
        first_use.setdefault(tensor.name, entry)
    flags = [
        c.FIRST_USE * (first_use[tensor.name] == entry)
        | c.RESIDUAL * ((operators[i].name, position) in backward.residual_operands)
        | c.WANTED * ((operators[i].name, position) in backward.gradients)
        | c.PASSED_ON * (position in PASSED_ON.get(operators[i].type, ()))
        | c.OF_VARIABLES * (tensor.name in graph.made_of_variables)
        | c.IS_FIRST * (position == 0)
        | c.ACCUMULATES * (i >= first_run and graph.accumulates(tensor.name))
        | c.ONLY_ONCE * ((operators[i].name, position) in only_once)
        for entry, (i, position, tensor) in enumerate(operands)
    ]
    arrays = (
        _ints(
            _flags(op, starts if i >= first_run else starts_once, i >= first_run > 0, received)
            | c.AWAITS * (op.name in ends.awaited)
            for i, op in enumerate(operators)
        ),
        _ends(len(op.operands) for op in operators),
        _ints([*flags, c.FIRST_USE * (of_loss.loss.name not in first_use)]),
        _ints([*(number[tensor.name] for _, _, tensor in operands), number[of_loss.loss.name]]),
        _ends(len(op.outputs) for op in operators),
        _ints(index[op.name] for op in operators for _ in op.outputs),
        _viewed(operators, operands, number),
        _ints(tensor.name in backward.residual_results for tensor in tensors),
        _ints(number[name] for name in dense),
        _ints(-1 if op.updates is None else number[graph.operators[op.updates].result.name] for op in operators),
        _ends(map(len, lookups)),
        _ints(number[op.result.name] for of_variable in lookups for op in of_variable),
        _ints(
            2 * number[graph.operators[name].result.name] + any(not update.leaves_rows for update in graph.updates[name])
            for name in by_rows
        ),
        _ints(tensor.name in graph.made_of_variables for tensor in tensors),
        _ints(number[op.result.name] for op in operators if op.type in SOURCES and op.result.name not in received),
        _ints(number[name] for name in sorted(returned)),
    )
    first_operator = 2 * len(tensors) + len(operands) + 1
    n = graph.n_micro_batches
    waits = any(update.sums for of_variable in graph.updates.values() for update in of_variable)
    counts = (
        len(operators), len(tensors), len(operands) + 1, len(dense), len(by_rows), len(arrays[-2]), first_operator,
        first_operator + len(operators), of_loss.loss.item_bytes, int(waits), min(n, MOST_MICRO_BATCHES),
        max(0, n - MOST_MICRO_BATCHES), first_run, len(returned), int(ends.counts_passes and micro_batching is not None),
        int(ends.divides),
    )
    producers = tuple(i for i, op in enumerate(operators) for _ in op.outputs)
    firsts = arrays[4].tolist()
    outputs = tuple(map(range, firsts, firsts[1:]))
    flat = tuple(op for of_variable in lookups for op in of_variable)
    begins = np.cumsum([len(counts) + len(arrays), *map(len, arrays)])
    numbers = np.concatenate([counts, begins[:-1], *arrays]).astype(np.int64)
    return Outline(operators, operands, tensors, (of_loss.name, of_loss.loss), flat, producers, outputs, numbers)


def _viewed(
    operators: Sequence[Operator], operands: Sequence[tuple[int, int, Tensor]], number: Mapping[str, int]
) -> np.ndarray:
    """Return, for each tensor, the entry of the operand that it is a view of; -1 if there is none."""
    first_entry: dict[tuple[int, str], int] = {}
    for entry, (i, _, tensor) in enumerate(operands):
        first_entry.setdefault((i, tensor.name), entry)
    viewed = np.full(len(number), -1)
    for i, op in enumerate(operators):
        for tensor in op.outputs if op.updates is None and op.type not in SOURCES else ():
            operand = viewed_operand(op, tensor.name)
            if operand is not None:
                viewed[number[tensor.name]] = first_entry[i, operand.name]
    return viewed


def _flags(op: Operator, starts: Collection[str], is_taken: bool, received: Collection[str]) -> int:
    """Return the flags of an operator; gradients end at the starts, and a batch may be taken by micro-batches."""
    if op.type in SOURCES:
        return c.SOURCE | (c.IS_RECEIVED if op.result.name in received else c.IS_TAKEN * is_taken)
    if op.updates is not None:
        return c.WRITES
    passes = not any(tensor.name in starts for tensor in op.outputs)
    kinds = c.OVERWRITES * (op.type in OVERWRITE) | c.IS_PRODUCT * (op.type in PRODUCTS) | c.PASSES * passes
    return kinds | c.IS_SEPARATE * has_separate_gradients(op)


def _ints(values: Any) -> np.ndarray:
    return np.array([int(value) for value in values], np.int64)


def _ends(counts: Any) -> np.ndarray:
    """Return where each of some runs begins, and where the last one ends."""
    return np.concatenate([[0], np.cumsum(_ints(counts))]).astype(np.int64)


def arena_of(outline: Outline, n_buckets: int) -> np.ndarray:
    """Return an arena for the steps of a graph, with room for what they have at most."""
    n_operands, n_tensors, n_operators = len(outline.operands) + 1, len(outline.tensors), len(outline.operators)
    n, n_others = outline.numbers[[ix.N_MICRO_BATCHES, ix.N_OTHERS]].tolist()
    n_lookups = len(outline.lookups)
    n_passes = n + 1 if n > 1 else 1
    width = [len(op.operands) + len(op.outputs) + 4 for op in outline.operators]
    records = 8 * n_passes * (n_operands + n_tensors + n_operators) + 64
    values, sites = 4 * n_passes * sum(width) + 64, 2 * n_tensors + n_operands
    buffers = 2 * records + 2 * n_lookups * (n_others + n)
    entries = 4 * n_passes * sum(w * w for w in width) + 4 * records + 2 * n_lookups * (n_others + n)
    sizes = (
        # of records
        c.WIDTH * records, 2 * values, sites, sites, sites, n_tensors, records, 2 * entries, 3 * sites,
        3 * max(1, n_buckets), records, n_tensors, n_operands, max(1, n * n_lookups), records, sites, records, records,
        c.WIDTH * records,
        # and of memory
        entries, entries, 2 * entries, ix.ENDS_COLUMNS * (buffers + 1), buffers, buffers, 3 * records, buffers, buffers,
        buffers, buffers, 2 * len(c.WORKSPACES), entries, records, sites, sites, records, n_operators, n_operators,
        buffers, buffers, buffers, sites + buffers, max(1, n_lookups), 3 * n + 1, 3 * n + 1, 3 * n + 2,
        c.N_WORDS,
    )
    begins = np.cumsum([ix.N_ARENA, *sizes])
    arena = np.empty(begins[-1], np.int64)
    arena[: ix.RECORDS] = 0
    arena[ix.N_BUCKETS] = n_buckets
    arena[ix.RECORDS : ix.N_ARENA] = begins[:-1]
    return arena
