"""Save and load a frontier with all its plans, so that later questions need neither a search nor the model.

A plan of one stage consists of *parts*: one for each operator, and one for the reshardings of each operator's results.
Points have most of their rows in common. So each part is stored once, with the few choices that occur, and a column says
which choice each point has. Equal columns are stored once, in runs: ``0x12 1 0x3`` are twelve points with choice 0, one with
choice 1, three with choice 0. Where some plans have several stages, each point has its
plan, with numbers for rows, which are stored once.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from ..common.errors import InputError, cut
from ..common.files import DAMAGE, read_json_of, reading_value, write_atomically
from ..common.formats import FRONTIER
from ..common.progress import Progress
from ..costs.objectives import Objectives, StrategyCosts, parse_objectives
from ..ft.frontier import Frontier
from ..ft.lower_bound import LowerBound
from ..program.liveness import PEAK_KEYS
from ..report.checksum import check_signed, signed
from ..report.frontier_rows import FrontierRows
from ..report.plan_page import report_of
from ..report.plan_rows import device_bytes_of
from ..reschedule.mesh import Mesh, mesh_of
from .frontier import PlanFrontier
from .plan import Plan
from .points import FrontierPoint, Passes
from .stage_plan import levels_json

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
        chosen: int[P], the choice of each point.
    """

    pool: tuple[Entry, ...]
    choices: tuple[tuple[int, ...], ...]
    chosen: np.ndarray


@dataclass(frozen=True, eq=False, repr=False)
class SavedFrontier(PlanFrontier):
    """A frontier as it is saved, which builds plans from what its file has.

    Attributes:
        value: its JSON value, without the checksum.
    """

    value: Mapping[str, Any]

    @cached_property
    def _rows(self) -> FrontierRows:
        return FrontierRows(self.value)

    @cached_property
    def objectives(self) -> Objectives:  # type: ignore[override]
        """The two costs that were searched."""
        return parse_objectives(",".join(self.value["objectives"]))

    @cached_property
    def found(self) -> Frontier:  # type: ignore[override]
        """The points; their strategies are not in its ``strategies`` (int32[P, 0]) but in the plans."""
        value, bound = self.value, self.value["bound"]
        return Frontier(
            *self.costs.pair(self.objectives),
            np.zeros((len(value["points"]), 0), np.int32),
            value["eliminations"],
            value["algorithm"],
            bound and LowerBound(_ints(bound["mem_bytes"]), _ints(bound["time_ns"]), bound["source"]),
        )

    @cached_property
    def costs(self) -> StrategyCosts:
        rows = self.value["points"]
        times = (_nanoseconds(row[key] for row in rows) for key in ("time_us", "compute_time_us", "overlap_time_us"))
        return StrategyCosts(_ints(row[self._memory] for row in rows), *times)

    @property
    def _memory(self) -> str:
        """The memory by which points are in order: that of Equation (1), or the peak where they have stages."""
        return "peak_bytes" if "rows" in self.value else "sum_bytes"

    @cached_property
    def points(self) -> tuple[FrontierPoint, ...]:
        """The costs of the points, by ascending first objective."""
        return tuple(FrontierPoint(**{key: row[key] for key in COSTS}) for row in self.value["points"])

    @cached_property
    def gaps(self) -> np.ndarray | None:
        rows = self.value["points"]
        return np.array([row["gap"] for row in rows], np.float64) if "gap" in rows[0] else None

    def passes(self, point: int) -> Passes:
        row = self.value["points"][point]
        return Passes(row["stages"], row["micro_batches"], row["idle_share"])

    @property
    def mesh(self) -> Mesh:
        return mesh_of(self.value["mesh"])

    @property
    def hardware_name(self) -> str:
        return str(self.value["hardware"])

    def summary(self) -> str:
        """Return one line on the search, as it was told; see :class:`PlanFrontier`."""
        return str(self.value["summary"])

    @cached_property
    def peaks(self) -> np.ndarray:
        """The peaks of all points in bytes, int64[P]."""
        return _ints(row["peak_bytes"] for row in self.value["points"])

    def peak_json(self, point: int) -> Mapping[str, Any] | None:
        """Return the instant of a point's peak as a JSON value; None if its step wasn't stored."""
        peak = self._rows.peak(self.check_point(point))
        return None if peak is None else {key: peak[key] for key in PEAK_KEYS}

    def plan(self, point: int, option: str = "point") -> Plan:
        """Return the plan of a point, the same as before the frontier was saved; see :class:`PlanFrontier`."""
        number = self.check_point(point)
        try:
            value = self._rows.plan(number, option).value
            stages = [{key: stage[key] for key in stage if key != "peak"} for stage in value["stages"]]
            made = Plan.from_json({**value, "exact": self._is_exact(value), "stages": stages})
        except DAMAGE as error:
            raise InputError(
                f"point {number} of the frontier is damaged ({type(error).__name__}: {cut(error)}); save the frontier again"
            ) from error
        return replace(made, frontier=self, point=number, frontier_text=self.table(number))

    def _is_exact(self, plan: Mapping[str, Any]) -> bool:
        return self.found.exact and len(plan["stages"]) == 1

    def save(self, file: str | os.PathLike[str], progress: Progress | None = None, chosen: int | None = None) -> None:
        """Write the frontier to a file; see :class:`PlanFrontier`."""
        text = signed(_text(self.value))
        write_atomically(file, lambda partial: Path(partial).write_text(text, encoding="utf-8"), "frontier")

    def report_value(self, title: str, chosen: int | None = None, model: str = "") -> dict[str, Any]:
        """Return the data of the frontier's report, of all that its file has; see :class:`PlanFrontier`."""
        rows = FrontierRows(json.loads(json.dumps(self.value)))  # tuples are lists there, and keys are text
        return report_of(rows, title, chosen)

    @classmethod
    def load(cls, file: str | os.PathLike[str]) -> SavedFrontier:
        """Read a frontier from a file.

        Raises:
            InputError: the file can't be read, is cut off, isn't a frontier, has another version, or was changed.
        """
        checks = {"frontier": partial(check_signed, "frontier", file)}
        _, value = read_json_of(file, {"frontier": FRONTIER}, checks)
        with reading_value("frontier", file):
            loaded = cls({key: each for key, each in value.items() if key != "checksum"})
            loaded.check()
            return loaded

    def check(self) -> None:
        """Read all but the plans of parts, which raises whatever error damage leads to."""
        value = self.value
        device_bytes_of(value["assumed"])
        _ = self.found, self.mesh, self.points, self.peaks, [self.passes(point) for point in range(len(self))]
        if "rows" in value:
            _ = [self._rows.plan(point) for point in range(len(self))], self.plan(0)
            return
        columns = self._rows.columns
        for part in value["operators"]:
            _check_part(columns, part, len(part["choices"]))
        for part in value["reshardings"]:
            _check_part(columns, part, len(part["choices"]))
            for choice in part["choices"]:
                wrong = [i for i in choice if not 0 <= i < len(part["pool"])]
                if wrong:
                    raise ValueError(f"a choice names row {wrong[0]} of {len(part['pool'])}")


def _check_part(columns: Sequence[np.ndarray], part: Mapping[str, Any], n_choices: int) -> None:
    """Check that the column and the choices that a part names exist."""
    if not 0 <= part["column"] < len(columns):
        raise ValueError(f"there is no column {part['column']}")
    most = columns[part["column"]].max()
    if most >= n_choices:
        raise ValueError(f"a point takes choice {most} of {n_choices}")


def frontier_value(
    frontier: PlanFrontier, assumed: Mapping[str, Any], model_digest: str, points: Sequence[Entry], details: Entry
) -> Entry:
    """Return what all frontiers' files have.

    Args:
        points: the costs of each point, with its plan where the file has no parts.
        details: what a report shows beside the plans, see :mod:`..search.frontiers.details`.
    """
    found = frontier.found
    bound = None
    if found.bound is not None:
        costs = {"mem_bytes": found.bound.mem_bytes.tolist(), "time_ns": found.bound.time_ns.tolist()}
        bound = {"source": found.bound.source, **costs}
    return {
        "format": FORMAT,
        "version": VERSION,
        "hardware": frontier.hardware_name,
        "mesh": levels_json(frontier.mesh),
        "model_digest": model_digest,
        "assumed": dict(assumed),
        "summary": frontier.summary(),
        "objectives": list(frontier.objectives),
        "algorithm": found.algorithm,
        "eliminations": dict(found.eliminations),
        "bound": bound,
        "points": points,
        **({"details": details} if details else {}),
    }


def numbered(plan: Entry, rows: dict[str, int]) -> Entry:
    """Return a plan's JSON value with numbers for its rows.

    Args:
        rows: the number of each row, as JSON text; new ones are added.
    """
    kinds = ("operators", "reshardings")
    stages = [
        {**stage, **{kind: [rows.setdefault(json.dumps(row), len(rows)) for row in stage[kind]] for kind in kinds}}
        for stage in plan["stages"]
    ]
    return {**plan, "frontier": [], "stages": stages}


def parts_value(operators: Sequence[StoredPart], reshardings: Sequence[StoredPart]) -> Entry:
    """Return the parts of plans, in program order and in order of execution, as a frontier's file has them."""
    columns: dict[str, int] = {}

    def column(part: StoredPart) -> int:
        return columns.setdefault(_runs(part.chosen), len(columns))

    of_operators = [_operator_to_json(column(part), part) for part in operators]
    of_reshardings = [
        {"column": column(part), "choices": list(map(list, part.choices)), "pool": list(part.pool)} for part in reshardings
    ]
    return {"columns": list(columns), "operators": of_operators, "reshardings": of_reshardings}


def _operator_to_json(column: int, part: StoredPart) -> dict[str, Any]:
    """Return an operator's part as JSON: its name and type once, and one choice per row."""
    common = {key: part.pool[0][key] for key in ("name", "type")}
    return {
        **common,
        "column": column,
        "choices": [{key: row[key] for key in row if key not in common} for row in part.pool],
    }


def _runs(chosen: np.ndarray) -> str:
    """Return a column as the text of its runs, see the module docstring; the inverse of ``column_of``."""
    starts = np.flatnonzero(np.diff(chosen, prepend=-1))
    counts = np.diff(starts, append=len(chosen))
    pairs = zip(chosen[starts].tolist(), counts.tolist(), strict=True)
    return " ".join(str(choice) if count == 1 else f"{choice}x{count}" for choice, count in pairs)


def _ints(values: Any) -> np.ndarray:
    array = np.array(list(values))
    if array.dtype != np.int64:
        raise ValueError("bytes and nanoseconds must be integers")
    return array


def _nanoseconds(times_us: Any) -> np.ndarray:
    return np.rint(np.array(list(times_us), np.float64) * 1e3).astype(np.int64)


def _text(value: Mapping[str, Any]) -> str:
    """Return a value as JSON text with one line per key and one per element of a list."""
    lines = []
    for key, inner in value.items():
        text = json.dumps(inner)
        if isinstance(inner, list):
            text = "[\n" + ",\n".join(json.dumps(each) for each in inner) + "\n]"
        lines.append(f"{json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(lines) + "\n}\n"
