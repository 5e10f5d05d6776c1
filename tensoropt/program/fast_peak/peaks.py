"""Count the peaks of strategies of one model."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from ...common.pickling import ByArguments
from ...common.process.workers import n_workers
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

IN_A_ROW = 16
"""A thread counts so many strategies before it asks for more."""
_Passes = tuple[np.ndarray, np.ndarray]


@dataclass(eq=False)
class Peaks(ByArguments):
    """The peaks of strategies of one model, each counted by what the strategies before it have in common with it."""

    model: Model
    costing: OperatorCosting
    path_finder: PathFinder
    _arenas: list[np.ndarray] = field(default_factory=list)  # those that no thread uses
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
        return np.array([most.max() for _, most in self._of_each(columns, view_of, NOTHING_CROSSES)], np.int64)

    def passes_of_columns(self, columns: Columns, view_of: Callable[[int], StrategyView], ends: StageEnds) -> PassMemory:
        """Return the bytes that are alive in a stage's passes under strategies: those of :func:`.pass_memory`."""
        alive, most = zip(*self._of_each(columns, view_of, ends), strict=True)
        return PassMemory.of(np.transpose(alive), np.transpose(most))

    def _of_each(self, columns: Columns, view_of: Callable[[int], StrategyView], ends: StageEnds) -> list[_Passes]:
        """Return of each strategy the bytes alive where passes begin, and the most before, between and behind these places.

        As many threads count as there may be workers.
        """
        if ends not in self._outlines:
            self._outlines[ends] = self._outline(ends).numbers
        rows, outline = self.rows.of_columns(columns, view_of), self._outlines[ends]
        self._arenas = [arena for arena in self._arenas if arena[ix.N_BUCKETS] == self.rows.n_buckets]
        parts = [rows[first : first + IN_A_ROW] for first in range(0, len(rows), IN_A_ROW)]
        with ThreadPoolExecutor(min(n_workers(sys.maxsize), len(parts))) as pool:
            return [each for part in pool.map(lambda part: self._count(outline, part), parts) for each in part]

    def _count(self, outline: np.ndarray, rows: np.ndarray) -> list[_Passes]:
        """Return the same of some strategies, given the row of each site under each."""
        from .alive import count_peak  # here, since loading compiled code takes half a second

        site_rows, reshardings, counted = self.rows, self.costing.reshardings, list[_Passes]()
        try:
            arena = self._arenas.pop()
        except IndexError:
            arena = arena_of(site_rows.outline, site_rows.n_buckets)
        for of_one in rows:
            arena[: ix.N_BUCKETS] = 0
            arena[ix.N_BUCKETS + 1 : ix.RECORDS] = 0
            count_peak(outline, site_rows.table, of_one, arena, int(reshardings.overlaps))
            n, of_groups = int(arena[ix.N_PASSES]), 0
            if reshardings.nccl_bytes_per_s is not None:
                of_groups = site_rows.nccl_bytes(tuple(arena[arena[ix.GROUPS] :][: c.N_WORDS].tolist()))
            alive, most = arena[arena[ix.ALIVE] :][:n], arena[arena[ix.MOST] :][: n + 1]
            counted.append((alive + of_groups, most + of_groups))
        self._arenas.append(arena)
        return counted
