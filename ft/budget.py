"""How hard to search: limits within which the result is exact, and what to do beyond them."""

from __future__ import annotations

from dataclasses import dataclass

MAX_TABLE_CELLS = 1 << 12
MAX_POINTS = 10_000


@dataclass(frozen=True, slots=True)
class Budget:
    """What a search may take. A limit that is reached makes the result inexact, never silently: it is then certified.

    Attributes:
        epsilon: frontiers of partial problems may be thinned so that every strategy is within a factor 1 + epsilon of a
            point of the result, in both costs. 0 means not at all.
        max_points: longer frontiers of partial problems are thinned to this many points, whatever that costs.
        max_table_cells: exact elimination may make tables up to this many cells.
        seconds: while the result is not exact and less than this has passed, there are further rounds; what is found and
            proven adds up. One that would take longer than what is left, at four times the one before, is not begun, and
            one that isn't ready in time counts for nothing. The first result always counts, so that with 0, or where it is
            exact, the result does not depend on the machine.
        gap: a worst gap that is small enough to stop at.
        weighted: whether weighted searches may be used; without, heuristic elimination and its relaxation alone.
        threads: that compiled code may use for large unions of frontiers.

    Raises:
        ValueError: a limit out of range.
    """

    epsilon: float = 0.0
    max_points: int = MAX_POINTS
    max_table_cells: int = MAX_TABLE_CELLS
    seconds: float = 5.0
    gap: float = 0.0
    weighted: bool = True
    threads: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.epsilon < 1:
            raise ValueError(f"epsilon must be in [0, 1), got {self.epsilon}; 0.01 allows one percent")
        if self.max_points < 2:
            raise ValueError(f"max_points must be at least 2, a frontier's two ends, got {self.max_points}")
        if self.max_table_cells < 1:
            raise ValueError(f"max_table_cells must be at least 1, got {self.max_table_cells}")
        if self.threads < 1:
            raise ValueError(f"threads must be at least 1, got {self.threads}")
        if not self.seconds >= 0 or not self.gap >= 0:
            raise ValueError(f"seconds and gap must not be negative, got {self.seconds} and {self.gap}")
