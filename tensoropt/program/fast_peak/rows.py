"""Compute the rows that the kernels read: what a strategy's choices around an operator, an operand or a copy mean there.

A row depends on few choices: an operator's config; a resharding's ends, and what is shared, regathered and rematerialized
around it. So each is made once, whatever the strategies that have it, and once for all layers that are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...costs.config_costs import costs_of_config
from ...costs.operator_costs import OperatorCosting
from ...costs.resharding_costs import shard_bytes
from ...ir.body import COMPOSITES, VALUE_SHAPED
from ...ir.graph import SOURCES, VARIABLE, Operator, Tensor
from ...reschedule.path import Path
from ...rules.registry import rule_of
from ...rules.rule import Config, OperandSharding
from ...sharding.consumers import LOSS
from ...sharding.resharding import PathFinder, halo_resharding
from ...sharding.strategy import Copy, StrategyView
from ..memory.buffers import WHICH_CLASS, TaskBuffers
from ..memory.instructions import groups_of, moved_bytes, nccl_workspace, views_operand, workspaces
from ..tasks import OPERAND, OPERATOR, RESULT, SHARED, Site
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
        entry = self._of_object.get(id(value))
        if entry is None:
            entry = self._of_value.setdefault(value, len(self._of_value)), value
            self._of_object[id(value)] = entry
        return entry[0]

    @property
    def values(self) -> list[Any]:
        """The values by their numbers."""
        return list(self._of_value)

    def __len__(self) -> int:
        return len(self._of_value)


@dataclass(frozen=True)
class Columns:
    """The choices of many strategies as columns of numbers, int32[strategies] each.

    Attributes:
        configs: the number of each operator's config, by the operator's name.
        shared: the number of each shared copy's operand sharding, by the tensor's name; 0 where there is none.
        regathered: 1 where a copy is regathered, by the copy.
        rematerialized: 1 where an operator is rematerialized, by its name.
    """

    n: int
    configs: Mapping[str, np.ndarray]
    shared: Mapping[str, np.ndarray]
    regathered: Mapping[Copy, np.ndarray]
    rematerialized: Mapping[str, np.ndarray]


@dataclass
class Rows:
    """The rows of a graph's step under the strategies that were asked for."""

    outline: Outline
    costing: OperatorCosting
    path_finder: PathFinder
    _rows: list[list[int]] = field(default_factory=lambda: [[0] * c.N_COLUMNS])
    _known: list[dict[Any, int]] = field(default_factory=list)
    _configs: Numbers = field(default_factory=Numbers)
    _shardings: Numbers = field(default_factory=Numbers)
    _paths: Numbers = field(default_factory=Numbers)
    _buckets: Numbers = field(default_factory=Numbers)
    _groups: Numbers = field(default_factory=Numbers)
    _of_words: dict[tuple[int, ...], int] = field(default_factory=dict)
    _table: np.ndarray | None = None

    def __post_init__(self) -> None:
        outline, n = self.outline, len(self.outline.tensors)
        first = outline.first_operator
        self._known = self._tables_of_rows()
        # The operator whose config counts: for a write to a variable, or a read after it, the variable.
        self._owners = [op.updates or op.name for op in outline.operators]
        producer = {tensor.name: outline.producers[i] for i, tensor in enumerate(outline.tensors)}
        owner = {name: self._owners[i] for name, i in producer.items()}
        self._operators = [(first + i, self._owners[i], op.name) for i, op in enumerate(outline.operators)]
        self._shared = [(n + i, tensor.name, owner[tensor.name]) for i, tensor in enumerate(outline.tensors)]
        self._operands = [
            (
                2 * n + entry, self._owners[i], outline.operators[i].name, tensor.name, owner[tensor.name],
                outline.operators[producer[tensor.name]].name, Copy(tensor.name, outline.operators[i].name),
                Copy(tensor.name),
            )
            for entry, (i, _, tensor) in enumerate(outline.operands)
        ]
        self._loss = first - 1, outline.loss[1].name, owner[outline.loss[1].name]
        self._lookups = [(first + len(outline.operators) + i, op.name) for i, op in enumerate(outline.lookups)]
        self._results = [(first + i, out, k) for i, outs in enumerate(outline.outputs) for k, out in enumerate(outs, 1)]

    def _tables_of_rows(self) -> list[dict[Any, int]]:
        """Return, for each site, the rows that are known by choices: one table for all sites at which choices mean the same.

        They do at the sites of operators whose costs are equal, as those of equal layers are.
        """
        outline = self.outline
        n, first = len(outline.tensors), outline.first_operator
        kinds: list[object] = list(range(outline.n_sites))  # sites that aren't named below have tables of their own
        numbers: dict[object, int] = {}
        signatures = [
            i if op.updates or op.type in (*COMPOSITES, VALUE_SHAPED) else self.costing.signature(op, rule_of(op))
            for i, op in enumerate(outline.operators)
        ]
        of_operators = [numbers.setdefault(signature, len(numbers)) for signature in signatures]
        made_by = [(of_operators[i], k - outline.outputs[i].start) for k, i in enumerate(outline.producers)]
        number = {tensor.name: k for k, tensor in enumerate(outline.tensors)}
        for i, kind in enumerate(of_operators):
            kinds[first + i] = OPERATOR, kind
        for k, of_result in enumerate(made_by):
            kinds[n + k] = SHARED, of_result
        for entry, (i, position, tensor) in enumerate(outline.operands):
            if outline.operators[i].type != VARIABLE:  # whose operands are gradients that it is given
                kinds[2 * n + entry] = OPERAND, of_operators[i], position, made_by[number[tensor.name]]
        tables: dict[object, dict[Any, int]] = {}
        return [tables.setdefault(kind, {}) for kind in kinds]

    @property
    def n_buckets(self) -> int:
        return len(self._buckets)

    @property
    def table(self) -> np.ndarray:
        """All rows so far: int64[rows, columns]."""
        if self._table is None or len(self._table) != len(self._rows):
            self._table = np.array(self._rows, np.int64)
        return self._table

    def nccl_bytes(self, words: tuple[int, ...]) -> int:
        """Return the bytes that NCCL's communicators of groups take, of which words have a bit each; found once."""
        if words not in self._of_words:
            bits = [word >> bit & 1 for word in words for bit in range(c.WORD_BITS)]
            of_groups = (axes for axes, is_there in zip(self._groups.values, bits, strict=False) if is_there)
            self._of_words[words] = nccl_workspace(of_groups, self.costing.reshardings)
        return self._of_words[words]

    def config_number(self, config: Config) -> int:
        """Return the number of a config in :class:`Columns`."""
        return self._configs.of(config)

    def sharding_number(self, sharding: OperandSharding) -> int:
        """Return the number of a shared copy's operand sharding in :class:`Columns`."""
        return self._shardings.of(sharding) + 1

    def of_columns(self, columns: Columns, view_of: Callable[[int], StrategyView]) -> np.ndarray:
        """Return the row of each site under many strategies, int32[strategies, sites].

        Neighbours mostly differ in few choices, so each run of equal choices is looked up once.

        Args:
            view_of: returns the strategy of a number, on its graph.
        """
        n, outline = columns.n, self.outline
        rows = np.zeros((outline.n_sites, n), np.int32)
        zeros = np.zeros(n, np.int32)
        changes: dict[int, np.ndarray] = {}
        makers = _Makers(self, view_of)
        for site, parts in self._keys(columns, zeros):
            differs = np.zeros(n, bool)
            differs[0] = True
            for part in parts:
                if id(part) not in changes:
                    changes[id(part)] = np.flatnonzero(part[1:] != part[:-1]) + 1
                differs[changes[id(part)]] = True
            starts = np.flatnonzero(differs)
            bounds = np.append(starts, n).tolist()
            run_rows, by_key = np.empty(len(starts), np.int32), self._known[site]
            for k, key in enumerate(zip(*(part[starts].tolist() for part in parts), strict=True)):
                row = by_key.get(key)
                run_rows[k] = self._make(site, key, makers.having(key, parts, bounds[k])) if row is None else row
            rows[site] = np.repeat(run_rows, np.diff(bounds))
        for site, output, offset in self._results:
            rows[output] = rows[site] + offset
        return np.ascontiguousarray(rows.T)

    def _keys(self, columns: Columns, zeros: np.ndarray) -> Iterator[tuple[int, tuple[np.ndarray, ...]]]:
        """Yield each site that has a row, with the choices that the row depends on: ``zeros`` for what isn't named."""
        configs, shared, regathered, again = columns.configs, columns.shared, columns.regathered, columns.rematerialized
        for site, owner, name in self._operators:
            yield site, (configs[owner], again.get(name, zeros))
        for site, tensor, owner in self._shared:
            if tensor in shared:
                yield site, (configs[owner], shared[tensor])
        for site, owner, name, tensor, of_tensor, producer, own, whole in self._operands:
            yield site, (configs[owner], configs[of_tensor], shared.get(tensor, zeros), regathered.get(whole, zeros),
                          regathered.get(own, zeros), again.get(name, zeros), again.get(producer, zeros))
        site, tensor, owner = self._loss
        yield site, (configs[owner], shared.get(tensor, zeros))
        for site, owner in self._lookups:
            yield site, (configs[owner],)

    def _make(self, site: int, key: tuple[Any, ...], maker: _Maker) -> int:
        """Make the row of a site and of choices that none has had so far; return its number."""
        outline, n = self.outline, len(self.outline.tensors)
        first = outline.first_operator
        if site >= first + len(outline.operators):
            row = maker.of_lookup(outline.lookups[site - first - len(outline.operators)])
        elif site >= first:
            row = maker.of_operator(outline.operators[site - first])
        elif site == first - 1:
            row = maker.of_resharding(Site(OPERAND, outline.loss[0], LOSS))
        elif site >= 2 * n:
            i, position, _ = outline.operands[site - 2 * n]
            row = maker.of_operand(outline.operators[i], position)
        else:
            row = maker.of_shared(outline.tensors[site - n]) if key[-1] else 0
        self._known[site][key] = row
        return row

    def add(self, row: list[int]) -> int:
        """Append a row; return its number."""
        self._rows.append(row)
        return len(self._rows) - 1


class _Makers:
    """The makers of rows of many strategies. Making one takes long, so those that are there are used again."""

    def __init__(self, rows: Rows, view_of: Callable[[int], StrategyView]) -> None:
        self._rows, self._view_of = rows, view_of
        self._made: dict[int, _Maker] = {}  # by the number of the strategy

    def having(self, choices: tuple[int, ...], parts: tuple[np.ndarray, ...], first: int) -> _Maker:
        """Return a maker of a strategy with these choices, one of each part's; the strategy ``first`` has them."""
        for number, maker in self._made.items():
            if all(part[number] == choice for part, choice in zip(parts, choices, strict=True)):
                return maker
        self._made[first] = _Maker(self._rows, self._view_of(first))
        return self._made[first]


class _Maker:
    """A maker of the rows of one strategy."""

    def __init__(self, rows: Rows, view: StrategyView) -> None:
        self.rows, self.view = rows, view
        self.buffers = TaskBuffers(view, rows.costing, rows.path_finder)
        self.sizes = self.buffers.sizes

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
                self._forward(row, self.rows.path_finder.paths(resharding).forward, resharding.item_bytes)
            if op.type in (*COMPOSITES, VALUE_SHAPED):
                row[c.INSIDE] = int(costs_of_config(self.rows.costing, op, rule, config).saved_inside_bytes[0])
            elif op.type in WHICH_CLASS and self.sizes.splits_inner(op):
                position, tensor = op.operands[0]
                row[c.INSIDE] = self.sizes.operand_bytes(op, position) // tensor.item_bytes
        number = self.rows.add(row)
        for tensor in op.outputs:
            row = [0] * c.N_COLUMNS
            if op.updates is None:
                row[c.N_BYTES] = self.sizes.result_bytes(op, tensor)
            if op.type in SOURCES:
                row[c.LASTING], row[c.WHOLE] = self._lasting(op, row[c.N_BYTES]), tensor.mem_bytes
            self.rows.add(row)
        return number

    def _lasting(self, op: Operator, n_bytes: int) -> int:
        """Return the bytes that are alive throughout with a source: slots, and what other micro-batches have of it."""
        updates = self.view.graph.updates.get(op.name, ())
        others = (self.view.graph.n_runs(op.result.name) - 1) * n_bytes
        return others + sum(update.slots * (op.result.mem_bytes if update.is_global else n_bytes) for update in updates)

    def of_shared(self, tensor: Tensor) -> int:
        """Add the row of a tensor's shared copy."""
        number = self.of_resharding(Site(SHARED, tensor.name))
        self.rows._rows[number][c.EXISTS] = 1
        return number

    def of_operand(self, op: Operator, position: int) -> int:
        """Add the row of an operator's operand."""
        number = self.of_resharding(Site(OPERAND, op.name, position))
        row, view = self.rows._rows[number], self.view
        if op.updates is None:
            row[c.COPY], row[c.OF_SHARED], row[c.IS_ASKED], _ = map(int, view.residual(op, position))
            row[c.OPERAND_BYTES] = self.sizes.operand_bytes(op, position)
            row[c.GRADIENT_SCRATCH] = self.sizes.scratch_bytes(op, position)
        return number

    def of_lookup(self, op: Operator) -> int:
        """Add the row of what a lookup found, whose gradient is sent to every device for its update."""
        row, (_, resharding) = [0] * c.N_COLUMNS, self.buffers.flow.resharded(Site(RESULT, op.result.name))
        self._back(row, self.rows.path_finder.paths(resharding).forward, resharding.item_bytes)
        return self.rows.add(row)

    def of_resharding(self, site: Site) -> int:
        row, (tensor, resharding) = [0] * c.N_COLUMNS, self.buffers.flow.resharded(site)
        paths = self.rows.path_finder.paths(resharding)
        self._forward(row, paths.forward, resharding.item_bytes)
        row[c.IS_FREE], row[c.BUCKET] = int(paths.is_free), -1
        if paths.backward is not None:
            row[c.HAS_BACK] = 1
            self._back(row, paths.backward, resharding.item_bytes)
        if paths.shares_bucket:
            (step,) = paths.backward.steps if paths.backward else ()
            row[c.BUCKET] = self.rows._buckets.of((step.group_axes, tensor.dtype))
            row[c.GRADIENT_BYTES] = shard_bytes(tensor, resharding.source)
        return self.rows.add(row)

    def _forward(self, row: list[int], path: Path, item_bytes: int) -> None:
        row[c.HAS_STEPS], row[c.COMMUNICATES], row[c.PATH] = bool(path.steps), path.communicates, self.rows._paths.of(path)
        row[c.IS_VIEW] = views_operand(path)
        if not row[c.IS_VIEW]:
            row[c.N_BYTES], row[c.SCRATCH] = moved_bytes(path, item_bytes, self.rows.costing.reshardings)
            self._workspaces(row, c.WORK, c.GROUPS, path, item_bytes)

    def _back(self, row: list[int], path: Path, item_bytes: int) -> None:
        row[c.BACK_COMMUNICATES], row[c.BACK_IS_VIEW] = path.communicates, views_operand(path)
        if not row[c.BACK_IS_VIEW]:
            row[c.BACK_BYTES], row[c.BACK_SCRATCH] = moved_bytes(path, item_bytes, self.rows.costing.reshardings)
            self._workspaces(row, c.BACK_WORK, c.BACK_GROUPS, path, item_bytes)

    def _workspaces(self, row: list[int], first: int, first_word: int, path: Path, item_bytes: int) -> None:
        costing = self.rows.costing.reshardings
        for name, n_bytes in workspaces(path, item_bytes, costing).items():
            row[first + c.WORKSPACES.index(name)] = n_bytes
        if costing.nccl_bytes_per_s is not None:
            for axes in sorted(groups_of(path)):
                # Meshes of more than 64 devices may have more than fit: these are counted as one.
                word, bit = divmod(min(self.rows._groups.of(axes), c.N_WORDS * c.WORD_BITS - 1), c.WORD_BITS)
                row[first_word + word] |= 1 << bit
