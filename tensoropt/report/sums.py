"""Add up amounts over the parts of a frontier's plans, for all points at once.

A part has one of a few choices at each point, and most parts change at the same points: they have one column. Amounts are
added up by choice first and spread over the points once for each column, which is a tenth of the work of doing so for each
part.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Generic, TypeVar

import numpy as np

from .frontier_rows import FrontierRows
from .plan_rows import Row

Key = TypeVar("Key", bound=Hashable)


class Sums(Generic[Key]):
    """Sums of amounts by a key, at each point."""

    def __init__(self, frontier: FrontierRows) -> None:
        self._columns, self._n_points = frontier.columns, len(frontier)
        self._by_column: dict[Key, dict[tuple[int, int], list[float]]] = {}

    def add(self, key: Key, part: Row, amounts: Sequence[float]) -> None:
        """Add the amounts of a part, one for each of its choices."""
        column = part["column"], len(amounts)
        known = self._by_column.setdefault(key, {})
        before = known.get(column)
        known[column] = list(amounts) if before is None else [a + b for a, b in zip(before, amounts, strict=True)]

    def items(self) -> list[tuple[Key, np.ndarray]]:
        """Return the sums, number[P], of each key in the order in which keys were first added."""
        return [(key, self._of(known)) for key, known in self._by_column.items()]

    def _of(self, known: dict[tuple[int, int], list[float]]) -> np.ndarray:
        total = np.zeros(self._n_points, np.array(next(iter(known.values()))).dtype)
        for (column, _), amounts in known.items():
            total = total + np.array(amounts)[self._columns[column]]
        return total
