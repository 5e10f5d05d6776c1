"""The file of points with their plans, in stages or not, with which later questions need neither a search nor the model.

A stage's plan consists of *parts*: one for each operator, and one for the reshardings of each operator's results. Plans of
one search have most of their rows in common. So each part is stored once, with the few choices that occur, and a column says
which choice each plan has. Equal columns are stored once, in runs: ``0x12 1 0x3`` are twelve plans with choice 0, one with
choice 1, three with choice 0. A point says which plan of which search each of its stages has, and what else it has that a
plan without stages doesn't.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..common.errors import InputError, cut
from ..common.files import DAMAGE, FRONTIER
from ..program.memory.liveness import PEAK_KEYS
from ..report.frontier_rows import FrontierRows
from .plan import Plan
from .points import FrontierPoint, Passes, Point

FORMAT, VERSION = FRONTIER
Entry = dict[str, Any]
"""The row of an operator or a resharding, as in a plan's file."""
COSTS = ("sum_bytes", "time_us", "compute_time_us", "network_time_us", "overlap_time_us", "exact")


@dataclass(frozen=True, slots=True, eq=False)
class StoredPart:
    """The rows that each plan has for one operator, or for the reshardings of its results.

    Attributes:
        pool: all rows that occur.
        choices: the sets of rows that occur together, as indices into the pool.
        chosen: int[P], the choice of each plan.
    """

    pool: tuple[Entry, ...]
    choices: tuple[tuple[int, ...], ...]
    chosen: np.ndarray


@dataclass(frozen=True, slots=True)
class SavedPoint(Point):
    """A point of a frontier as its file has it."""

    rows: FrontierRows
    number: int

    @property
    def costs(self) -> FrontierPoint:
        row = self.rows.points[self.number]
        return FrontierPoint(**{key: row[key] for key in COSTS})

    @property
    def peak_bytes(self) -> int:
        return self.rows.needed_bytes(self.number)

    @property
    def passes(self) -> Passes:
        row = self.rows.points[self.number]
        return Passes(row["stages"], row["micro_batches"], row["idle_share"])

    @property
    def gap(self) -> float:
        return float(self.rows.points[self.number]["gap"])

    @property
    def peak(self) -> Mapping[str, Any] | None:
        peak = self.rows.peak(self.number)
        return None if peak is None else {key: peak[key] for key in PEAK_KEYS}

    def plan(self, option: str, assumed: Mapping[str, Any]) -> Plan:
        """Return the point's plan, the same as before the frontier was saved; its file has what it assumes."""
        try:
            value = self.rows.plan(self.number, option).value
            stages = [{key: stage[key] for key in stage if key != "peak"} for stage in value["stages"]]
            return Plan.from_json({**value, "exact": self.rows.value["bound"] is None, "stages": stages})
        except DAMAGE as error:
            cause = f"{type(error).__name__}: {cut(error)}"
            raise InputError(f"point {self.number} of the frontier is damaged ({cause}); save the frontier again") from error


def check_rows(rows: FrontierRows) -> None:
    """Read all but the rows of plans, which raises whatever error damage leads to."""
    for value, columns in zip(rows.value["searches"], rows.columns, strict=True):
        for part in (*value["operators"], *value["reshardings"]):
            if not 0 <= part["column"] < len(columns):
                raise ValueError(f"there is no column {part['column']}")
            choice, n_choices = columns[part["column"]].max(), len(part["choices"])
            if choice >= n_choices:
                raise ValueError(f"a point takes choice {choice} of {n_choices}")
        for part in value["reshardings"]:
            missing_rows = [i for choice in part["choices"] for i in choice if not 0 <= i < len(part["pool"])]
            if missing_rows:
                raise ValueError(f"a choice names row {missing_rows[0]} of {len(part['pool'])}")


def entry_of(plan: Mapping[str, Any], whole: Mapping[str, Any]) -> Entry:
    """Return what a point tells of its plan: what the plan of a model that isn't cut doesn't have by itself.

    Args:
        whole: that plan, see :func:`..report.frontier_rows.plan_of_whole`.
    """
    beside = ("format", "version", "exact", "frontier", "stages", "operators", "reshardings")

    def other(value: Mapping[str, Any], usual: Mapping[str, Any]) -> Entry:
        return {key: value[key] for key in value if key not in beside and value[key] != usual.get(key)}

    (usual,) = whole["stages"]
    stages = [other(stage, usual) for stage in plan["stages"]]
    entry = {**other(plan, whole), **({"stages": stages} if stages != [{}] else {})}
    return {"plan": entry} if entry else {}


def parts_value(operators: Sequence[StoredPart], reshardings: Sequence[StoredPart]) -> Entry:
    """Return the parts of plans, in program order and in order of execution, as a frontier's file has them."""
    columns: dict[str, int] = {}

    def column(part: StoredPart) -> int:
        return columns.setdefault(_runs(part.chosen), len(columns))

    identity = "name", "type"  # once for all choices
    operator_parts = [
        {
            **{key: part.pool[0][key] for key in identity},
            "column": column(part),
            "choices": [{key: row[key] for key in row if key not in identity} for row in part.pool],
        }
        for part in operators
    ]
    resharding_parts = [
        {"column": column(part), "choices": list(map(list, part.choices)), "pool": list(part.pool)} for part in reshardings
    ]
    return {"columns": list(columns), "operators": operator_parts, "reshardings": resharding_parts}


def _runs(column: np.ndarray) -> str:
    """Return a column as the text of its runs, see the module docstring; the inverse of ``column_of``."""
    starts = np.flatnonzero(np.diff(column, prepend=-1))
    counts = np.diff(starts, append=len(column))
    pairs = zip(column[starts].tolist(), counts.tolist(), strict=True)
    return " ".join(str(choice) if count == 1 else f"{choice}x{count}" for choice, count in pairs)


def ints(values: Iterable[int]) -> np.ndarray:
    """Return bytes or nanoseconds as an array, int64[P]; raises ValueError where they aren't integers."""
    array = np.array(list(values))
    if array.dtype != np.int64:
        raise ValueError("bytes and nanoseconds must be integers")
    return array


def text_of(value: Mapping[str, Any]) -> str:
    """Return a value as JSON text with one line per key and one per element of a list."""
    lines = []
    for key, element in value.items():
        text = json.dumps(element)
        if isinstance(element, list):
            text = "[\n" + ",\n".join(json.dumps(row) for row in element) + "\n]"
        lines.append(f"{json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(lines) + "\n}\n"
