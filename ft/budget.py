"""Limit what a search may take."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Budget:
    """The limits of a search.

    Within these limits the result is exact. A limit that is reached makes the result inexact, but never silently: the result
    then carries a certificate.

    Attributes:
        max_points: frontiers of partial problems with more points than this are thinned to this many, whatever error that
            causes.
        max_table_cells: the most cells of a table that exact elimination may make.
        max_work: the sums of points that the first attempt at an exact solution may look at.
        seconds: while the result isn't exact and less than this has passed, there are further rounds, and what they find and
            prove adds up. A round is expected to take four times as long as the one before; it isn't begun if that is more
            than the time left, and it counts for nothing if it isn't ready in time. The first result always counts. So with
            0, or where the first result is exact, the result does not depend on the machine.
        gap: the search stops once the worst gap of the frontier is at most this.

    Raises:
        ValueError: a limit is out of range.
    """

    max_points: int = 10_000
    max_table_cells: int = 1 << 12
    max_work: float = 1e8
    seconds: float = 5.0
    gap: float = 0.0

    def __post_init__(self) -> None:
        if self.max_points < 2:
            raise ValueError(f"max_points must be at least 2, a frontier's two ends, got {self.max_points}")
        if self.max_table_cells < 1:
            raise ValueError(f"max_table_cells must be at least 1, got {self.max_table_cells}")
        if not self.max_work >= 0:
            raise ValueError(f"max_work must not be negative, got {self.max_work}")
        if not self.seconds >= 0 or not self.gap >= 0:
            raise ValueError(f"seconds and gap must not be negative, got {self.seconds} and {self.gap}")


BY_DEFAULT = Budget(seconds=2.0, gap=0.01)
"""How hard a user's search tries where nothing is said: a small problem exactly, a large one to a gap of 1 % or for 2 s."""
