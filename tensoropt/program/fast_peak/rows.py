"""Compute the rows that the kernels read: what a strategy's choices around an operator, an operand or a copy mean there.

A row depends on few choices: an operator's config; a resharding's ends, and what is shared, regathered and rematerialized
around it. So each is made once, whatever the strategies that have it.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...costs.operator_costs import OperatorCosting
from ...costs.resharding_costs import shard_bytes
from ...ir.body import COMPOSITES, VALUE_SHAPED
from ...ir.graph import SOURCES, Operator, Tensor
from ...reschedule.path import Path
from ...sharding.resharding import Resharding, Router, halo_resharding
from ...sharding.consumers import LOSS
from ...sharding.strategy import Copy, StrategyView
from ..buffers import WHICH_CLASS, TaskBuffers
from ..instructions import Instructions, is_view, moved_bytes, workspaces
from ..tasks import OPERAND, RESULT, SHARED, Place
from . import columns as c
from .outline import Outline


class Numbers:
    """A numbering: equal values get equal numbers. An object that was numbered before is looked up by its identity."""

    def __init__(self) -> None:
        self._of_value: dict[Hashable, int] = {}
        # The object itself is kept, so that no other one gets its identity.
        self._of_object: dict[int, tuple[int, object]] = {}

    def of(self, value: Hashable) -> int:
        """Return the number of a value; a new one gets the next free number."""
        known = self._of_object.get(id(value))
        if known is None:
            known = self._of_value.setdefault(value, len(self._of_value)), value
            self._of_object[id(value)] = known
        return known[0]

    def __len__(self) -> int:
        return len(self._of_value)


@dataclass
class Rows:
    """The rows of a graph's step under the strategies that were asked for."""

    outline: Outline
    costing: OperatorCosting
    router: Router
    _rows: list[list[int]] = field(default_factory=lambda: [[0] * c.N_COLUMNS])
    _known: list[dict[Any, int]] = field(default_factory=list)
    _configs: Numbers = field(default_factory=Numbers)
    _shardings: Numbers = field(default_factory=Numbers)
    _paths: Numbers = field(default_factory=Numbers)
    _buckets: Numbers = field(default_factory=Numbers)
    _table: np.ndarray | None = None

    def __post_init__(self) -> None:
        outline = self.outline
        self._known = [{} for _ in range(outline.n_places)]
        tensors = {tensor.name: i for i, tensor in enumerate(outline.tensors)}
        self._index = {op.name: i for i, op in enumerate(outline.operators)}
        producer, n = outline.producers, len(tensors)
        self._operands = []
        for entry, (i, position, tensor) in enumerate(outline.operands):
            op, number = outline.operators[i], tensors[tensor.name]
            self._operands.append((2 * n + entry, op.name, tensor.name, position, i, producer[number]))
        self._tensors, self._producer, self._outputs = tensors, producer, outline.outputs

    @property
    def n_buckets(self) -> int:
        return len(self._buckets)

    @property
    def table(self) -> np.ndarray:
        """All rows so far: int64[rows, columns]."""
        if self._table is None or len(self._table) != len(self._rows):
            self._table = np.array(self._rows, np.int64)
        return self._table

    def of(self, view: StrategyView) -> np.ndarray:
        """Return the row of each place under a strategy, int32[places]; 0 for those of shared copies that it hasn't."""
        outline, strategy, n = self.outline, view.strategy, len(self.outline.tensors)
        made = _Maker(self, view)
        of_config, first = self._configs.of, outline.first_operator
        rows = [0] * outline.n_places
        names = [op.updates or op.name for op in outline.operators]
        config = [of_config(strategy.configs[name]) for name in names]
        rematerialized, regathered = strategy.rematerialized, strategy.regathered
        again = [op.name in rematerialized for op in outline.operators]
        known = self._known
        for i, op in enumerate(outline.operators):
            key = config[i], again[i]
            row = known[first + i].get(key)
            if row is None:
                row = known[first + i][key] = made.of_operator(op)
            rows[first + i] = row
            for j, output in enumerate(self._outputs[i], 1):
                rows[output] = row + j
        shared: dict[str, int] = {}
        for name, sharding in strategy.shared.items():
            tensor = self._tensors.get(name)
            if tensor is None:
                continue
            shared[name] = self._shardings.of(sharding) + 1
            key = config[self._producer[tensor]], shared[name]
            place = n + tensor
            if key not in known[place]:
                known[place][key] = made.of_shared(outline.tensors[tensor])
            rows[place] = known[place][key]
        whole = {copy.tensor for copy in regathered if copy.consumer is None}
        own = {(copy.tensor, copy.consumer) for copy in regathered}
        for place, name, tensor_name, position, i, j in self._operands:
            of_operand = (config[i], config[j], shared.get(tensor_name, 0), tensor_name in whole,
                          (tensor_name, name) in own, again[i], again[j])
            row = known[place].get(of_operand)
            if row is None:
                row = known[place][of_operand] = made.of_operand(outline.operators[i], position)
            rows[place] = row
        loss, place = outline.loss[1], 2 * n + len(outline.operands)
        key = config[self._producer[self._tensors[loss.name]]], shared.get(loss.name, 0)
        if key not in known[place]:
            known[place][key] = made.of_resharding(Place(OPERAND, outline.loss[0], LOSS))
        rows[place] = known[place][key]
        for k, op in enumerate(outline.lookups, first + len(outline.operators)):
            number = config[self._index[op.name]]
            if number not in known[k]:
                known[k][number] = made.of_lookup(op)
            rows[k] = known[k][number]
        return np.array(rows, np.int32)

    def add(self, row: list[int]) -> int:
        """Append a row; return its number."""
        self._rows.append(row)
        return len(self._rows) - 1


class _Maker:
    """What makes new rows, of one strategy."""

    def __init__(self, rows: Rows, view: StrategyView) -> None:
        self.rows, self.view = rows, view
        self._buffers: TaskBuffers | None = None

    @property
    def buffers(self) -> TaskBuffers:
        if self._buffers is None:
            self._buffers = TaskBuffers(self.view, self.rows.costing, self.rows.router)
        return self._buffers

    @property
    def sizes(self) -> Instructions:
        return self.buffers.sizes

    def of_operator(self, op: Operator) -> int:
        """Add the row of an operator, and of each of its results after it."""
        row, view = [0] * c.N_COLUMNS, self.view
        row[c.INSIDE] = -1
        if op.type not in SOURCES and op.updates is None:
            rule, config = view.rules[op.name], view.strategy.configs[op.name]
            row[c.SPLITS_INNER] = int(self.sizes.splits_inner(op))
            row[c.OPERATOR_SCRATCH] = self.sizes.scratch_bytes(op)
            row[c.REMATERIALIZED] = int(op.name in view.rematerialized)
            if rule.exchanged(config):
                row[c.EXCHANGES] = 1
                resharding = halo_resharding(op, rule, config, True)
                self._forward(row, self.rows.router.route(resharding).forward, resharding.item_bytes)
            if op.type in (*COMPOSITES, VALUE_SHAPED):
                row[c.INSIDE] = self.rows.costing.saved_inside_bytes(op, config)
            elif op.type in WHICH_CLASS and self.sizes.splits_inner(op):
                position, tensor = op.operands[0]
                row[c.INSIDE] = self.sizes.operand_bytes(op, position) // tensor.item_bytes
        number = self.rows.add(row)
        for tensor in op.outputs:
            row = [0] * c.N_COLUMNS
            if op.updates is None:
                row[c.N_BYTES] = self.sizes.result_bytes(op, tensor)
            if op.type in SOURCES:
                row[c.LASTING] = self._lasting(op, row[c.N_BYTES])
            self.rows.add(row)
        return number

    def _lasting(self, op: Operator, n_bytes: int) -> int:
        """Return the bytes that are alive throughout with a source: a variable's slots."""
        updates = self.view.graph.updates.get(op.name, ())
        return sum(update.slots * (op.result.mem_bytes if update.is_global else n_bytes) for update in updates)

    def of_shared(self, tensor: Tensor) -> int:
        """Add the row of a tensor's shared copy."""
        number = self.of_resharding(Place(SHARED, tensor.name))
        self.rows._rows[number][c.EXISTS] = 1
        return number

    def of_operand(self, op: Operator, position: int) -> int:
        """Add the row of an operator's operand."""
        number = self.of_resharding(Place(OPERAND, op.name, position))
        row, view = self.rows._rows[number], self.view
        if op.updates is None:
            row[c.REGATHERED] = int(view.is_regathered(op, position))
            row[c.READS_REGATHERED] = int(view.reads_regathered(op, position))
            row[c.OPERAND_BYTES] = self.sizes.operand_bytes(op, position)
            row[c.GRADIENT_SCRATCH] = self.sizes.scratch_bytes(op, position)
        return number

    def of_lookup(self, op: Operator) -> int:
        """Add the row of what a lookup found, whose gradient is sent to every device for its update."""
        row, (_, resharding) = [0] * c.N_COLUMNS, self.buffers.resharding_at(Place(RESULT, op.result.name))
        self._back(row, self.rows.router.route(resharding).forward, resharding.item_bytes)
        return self.rows.add(row)

    def of_resharding(self, place: Place) -> int:
        """Add the row of a resharding."""
        row, (tensor, resharding) = [0] * c.N_COLUMNS, self.buffers.resharding_at(place)
        route = self.rows.router.route(resharding)
        self._forward(row, route.forward, resharding.item_bytes)
        row[c.IS_FREE], row[c.BUCKET] = int(route.is_free), -1
        if route.backward is not None:
            row[c.HAS_BACK] = 1
            self._back(row, route.backward, resharding.item_bytes)
        if route.in_bucket:
            (step,) = route.backward.steps if route.backward else ()
            row[c.BUCKET] = self.rows._buckets.of((step.group_axes, tensor.dtype))
            row[c.GRADIENT_BYTES] = shard_bytes(tensor, resharding.source)
        return self.rows.add(row)

    def _forward(self, row: list[int], path: Path, item_bytes: int) -> None:
        row[c.HAS_STEPS], row[c.COMMUNICATES], row[c.PATH] = bool(path.steps), path.communicates, self.rows._paths.of(path)
        row[c.IS_VIEW] = is_view(path)
        if not row[c.IS_VIEW]:
            row[c.N_BYTES], row[c.SCRATCH] = moved_bytes(path, item_bytes)
            self._workspaces(row, c.WORK, path, item_bytes)

    def _back(self, row: list[int], path: Path, item_bytes: int) -> None:
        row[c.BACK_COMMUNICATES], row[c.BACK_IS_VIEW] = path.communicates, is_view(path)
        if not row[c.BACK_IS_VIEW]:
            row[c.BACK_BYTES], row[c.BACK_SCRATCH] = moved_bytes(path, item_bytes)
            self._workspaces(row, c.BACK_WORK, path, item_bytes)

    def _workspaces(self, row: list[int], first: int, path: Path, item_bytes: int) -> None:
        for name, n_bytes in workspaces(path, item_bytes).items():
            row[first + c.WORKSPACES.index(name)] = n_bytes
