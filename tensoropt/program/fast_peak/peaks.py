"""Count the peaks of strategies of one model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from ...common.pickling import ByArguments
from ...costs.operator_costs import OperatorCosting
from ...sharding.model import Model
from ...sharding.resharding import PathFinder
from ...sharding.strategy import StrategyView
from ..memory.pass_memory import PassMemory
from ..stage_ends import NOTHING_CROSSES, StageEnds
from . import array_layout as ix
from . import columns as c
from .outline import Outline, arena_of, can_outline, outline_of
from .rows import Columns, Rows


@dataclass(eq=False)
class Peaks(ByArguments):
    """The peaks of strategies of one model, each counted by what the strategies before it have in common with it."""

    model: Model
    costing: OperatorCosting
    path_finder: PathFinder
    _arena: np.ndarray | None = None
    _of_groups: int = 0
    _outlines: dict[StageEnds, np.ndarray] = field(default_factory=dict)

    @cached_property
    def is_quick(self) -> bool:
        """Return whether the kernels can count: a step with one backward pass; see :func:`.can_outline`."""
        return can_outline(self.model.graph)

    @cached_property
    def rows(self) -> Rows:
        """The rows of the model's sites."""
        return Rows(self._outline(NOTHING_CROSSES), self.costing, self.path_finder)

    def _outline(self, ends: StageEnds) -> Outline:
        return outline_of(self.model.graph, self.model.backward, ends)

    def of_columns(self, columns: Columns, view_of: Callable[[int], StrategyView]) -> np.ndarray:
        """Return the most bytes alive at once under strategies, int64[strategies]: those of :func:`..memory.peak.peak_of`.

        See :meth:`.rows.Rows.of_columns`.
        """
        rows = self.rows.of_columns(columns, view_of)
        return np.array([self._count(of_one, NOTHING_CROSSES) for of_one in rows], np.int64)

    def passes_of_columns(self, columns: Columns, view_of: Callable[[int], StrategyView], ends: StageEnds) -> PassMemory:
        """Return the bytes that are alive in a stage's passes under strategies: those of :func:`.pass_memory`."""
        alive, most = list[np.ndarray](), list[np.ndarray]()
        for of_one in self.rows.of_columns(columns, view_of):
            peak = self._count(of_one, ends)
            arena = self._arena
            assert arena is not None
            n = int(arena[ix.N_PASSES])
            alive.append(arena[arena[ix.ALIVE] :][:n] + self._of_groups)
            most.append(arena[arena[ix.MOST] :][: n + 1] + self._of_groups if n else np.array([peak], np.int64))
        return PassMemory.of(np.transpose(alive), np.transpose(most))

    def _count(self, rows: np.ndarray, ends: StageEnds) -> int:
        """Return the most bytes that are alive at once, given the row of each site; the arena then has those of passes."""
        from .alive import count_peak  # here, since loading compiled code takes half a second

        if ends not in self._outlines:
            self._outlines[ends] = self._outline(ends).numbers
        site_rows, n_buckets = self.rows, self.rows.n_buckets
        if self._arena is None or self._arena[ix.N_BUCKETS] != n_buckets:
            self._arena = arena_of(site_rows.outline, n_buckets)
        arena = self._arena
        arena[: ix.N_BUCKETS] = 0
        arena[ix.N_BUCKETS + 1 : ix.RECORDS] = 0
        overlaps = int(self.costing.reshardings.overlaps)
        peak = int(count_peak(self._outlines[ends], site_rows.table, rows, arena, overlaps))
        if self.costing.reshardings.nccl_bytes_per_s is not None:
            self._of_groups = site_rows.nccl_bytes(tuple(arena[arena[ix.GROUPS] :][: c.N_WORDS].tolist()))
        return peak + self._of_groups
