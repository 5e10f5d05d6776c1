"""Tables of text, and what their cells say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tabulate import tabulate

from ..common.memory_units import memory_text
from ..common.words import listed
from .plan_rows import Row

COSTS_HEADERS = ("paper's\nsum", "memory\nper device", "time\n(us)", "compute\n(us)", "network\n(us)")
"""Headers of the columns of points' costs: two lines each, so that a table fits a terminal."""


def table(rows: Sequence[Sequence[Any]], headers: Sequence[str], n_left: int = 1) -> str:
    """Return a table whose first ``n_left`` columns are aligned to the left, and the others to the right."""
    alignment = (*("left",) * n_left, *("right",) * (len(headers) - n_left))
    text: str = tabulate(rows, headers, disable_numparse=True, colalign=alignment)
    return text


def stages_table(plans: Mapping[str, Sequence[Row]]) -> str:
    """Return a table with a row for each stage of plans, given their names and stages as JSON; nothing where none is cut."""
    if all(len(stages) == 1 for stages in plans.values()):
        return ""
    rows = [
        [
            f"{plan} {number}".strip(),
            listed(stage["devices"]),
            stage["last_operator"] or "(the end)",
            stage["in_flight"],
            stage["deferred"],
            memory_or_blank(stage["peak_bytes"]),
            f"{stage['time_us']:,.1f}",
            f"{stage['idle_share']:.0%}",
        ]
        for plan, stages in plans.items()
        for number, stage in enumerate(stages)
    ]
    headers = ("stage", "devices", "ends with", "in flight", "deferred", "memory per device", "time (us)", "waits")
    return table(rows, headers, 3)


def by_stage(stages: str, texts: Sequence[str]) -> list[str]:
    """Return the text of each stage, under its number and after the table of stages where there is one."""
    return [stages, *(f"stage {number}\n{text}" for number, text in enumerate(texts))] if stages else list(texts)


def with_rest(rows: Sequence[Row], most: int, keys: Sequence[str], others: str = "others") -> list[list[Any]]:
    """Return the name and some amounts of the first rows, and the sums of all others."""
    first, rest = [[row["name"], *(row[key] for key in keys)] for row in rows[:most]], rows[most:]
    return [*first, *([[f"{len(rest)} {others}", *(sum(row[key] for row in rest) for key in keys)]] if rest else [])]


def memory_or_blank(n_bytes: int | None) -> str:
    return "" if n_bytes is None else memory_text(n_bytes)


def signed(change: float | None) -> str:
    """Return a change as a signed percentage; nothing if it isn't known."""
    return "" if change is None else f"{change:+.1%}"
