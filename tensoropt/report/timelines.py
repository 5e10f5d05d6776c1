"""Read timelines from files: which devices do what when, in a step that was predicted or measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_NUMBERS_OF_A_TASK = 6


def checked_timeline(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return the timeline of a JSON value, whose tasks are all of devices, operators and kinds that it names.

    Raises:
        LookupError, TypeError, ValueError: it is damaged.
    """
    timeline = {key: value[key] for key in ("makespan_ns", "devices", "operators", "kinds", "tasks")}
    for text in filter(None, timeline["tasks"].split(";")):
        numbers = [int(number) for number in text.split(",")]
        if len(numbers) != _NUMBERS_OF_A_TASK:
            raise ValueError(f"a task has {len(numbers)} numbers, expected {_NUMBERS_OF_A_TASK}")
        for column, key in ((0, "devices"), (4, "operators"), (5, "kinds")):
            _ = timeline[key][numbers[column]]
    return timeline
