"""Read the tasks of a timeline's JSON value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def tasks_of(timeline: Mapping[str, Any]) -> list[list[int]]:
    """Return the rows of a timeline's tasks, with starts since the step began."""
    start, rows = 0, []
    for text in timeline["tasks"].split(";"):
        row = [int(number) for number in text.split(",")]
        start = row[2] = start + row[2]
        rows.append(row)
    return rows
