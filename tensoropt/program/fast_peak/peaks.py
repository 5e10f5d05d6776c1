"""Count the peaks of strategies of one model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ...costs.operator_costs import OperatorCosting
from ...sharding.model import Model
from ...sharding.resharding import PathFinder
from ...sharding.strategy import StrategyView
from ..peak import peak_of
from . import array_layout as layout
from .alive import count_peak
from .outline import arena_of, can_outline, outline_of
from .rows import Columns, Rows


@dataclass(eq=False)
class Peaks:
    """The peaks of strategies of one model, each counted by what the strategies before it have in common with it."""

    model: Model
    costing: OperatorCosting
    path_finder: PathFinder
    _arena: np.ndarray | None = None

    @cached_property
    def is_quick(self) -> bool:
        """Return whether the kernels can count: a step with one backward pass; see :func:`.can_outline`."""
        return can_outline(self.model.graph)

    @cached_property
    def rows(self) -> Rows:
        """The rows of the model's sites."""
        backward = self.model.backward
        outline = outline_of(self.model.graph, backward.gradients, backward.residual_operands, backward.residual_results)
        return Rows(outline, self.costing, self.path_finder)

    def n_bytes(self, view: StrategyView) -> int:
        """Return the most bytes that are alive at once under a strategy: those of :func:`..peak.peak_of`."""
        if not self.is_quick:
            return peak_of(view, self.costing, self.path_finder).n_bytes
        return self.of_rows(self.rows.of(view))

    def of_columns(self, columns: Columns, view_of: Callable[[int], StrategyView]) -> np.ndarray:
        """Return the bytes of :meth:`n_bytes` of many strategies, int64[strategies]; see :meth:`.rows.Rows.of_columns`."""
        found = np.empty(columns.n, np.int64)
        rows = self.rows.of_columns(columns, view_of)
        for i in range(columns.n):
            found[i] = self.of_rows(rows[i])
        return found

    def of_rows(self, rows: np.ndarray) -> int:
        """Return the most bytes that are alive at once, given the row of each site."""
        known, n_buckets = self.rows, self.rows.n_buckets
        if self._arena is None or self._arena[layout.N_BUCKETS] != n_buckets:
            self._arena = arena_of(known.outline, n_buckets)
        self._arena[: layout.N_BUCKETS] = 0
        overlaps = int(self.costing.reshardings.overlaps)
        return int(count_peak(known.outline.numbers, known.table, rows, self._arena, overlaps))
