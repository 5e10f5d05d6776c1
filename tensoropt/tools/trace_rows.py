"""Write the events of a trace in Chrome's format, which Perfetto (ui.perfetto.dev) and chrome://tracing open."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

STEPS_ROW, COLLECTIVES_ROW, OVERLAPPABLE_ROW, FIRST_THREAD = 1, 2, 3, 4
"""The rows of a rank: its steps, its collectives, those that only updates wait for, and the first of its threads."""


@dataclass(frozen=True, slots=True)
class TraceRows:
    """The events of one rank, which are added to a list."""

    rank: int
    start_ns: int
    events: list[dict[str, Any]]

    def named(self, subject: str, name: str, row: int) -> None:
        for kind, value in (("name", {"name": name}), ("sort_index", {"sort_index": row or self.rank})):
            self.events.append({"ph": "M", "pid": self.rank, "tid": row, "name": f"{subject}_{kind}", "args": value})

    def add(
        self, row: int, name: str, category: str, start_ns: float, duration_ns: float, details: dict[str, Any] | None = None
    ) -> None:
        event = {"ph": "X", "pid": self.rank, "tid": row, "name": name, "cat": category}
        times = {"ts": (start_ns - self.start_ns) / 1e3, "dur": duration_ns / 1e3}
        self.events.append({**event, **times, "args": details or {}})

    def count(self, name: str, time_ns: float, n_bytes: int) -> None:
        event = {"ph": "C", "pid": self.rank, "name": name, "ts": (time_ns - self.start_ns) / 1e3}
        self.events.append({**event, "args": {"bytes": n_bytes}})
