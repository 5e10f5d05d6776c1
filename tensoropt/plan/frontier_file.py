"""Save and load a frontier with all its plans, so that later questions need neither a search nor the model.

A plan consists of *parts*: one for each operator, and one for the reshardings of each operator's results. Points have most
of their rows in common. So each part is stored once, with the few choices that occur, and a column says which choice each
point has. Equal columns are stored once, in runs: ``0x12 1 0x3`` are twelve points with choice 0, one with choice 1, three
with choice 0.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, overload

import numpy as np

from ..common.errors import InputError, cut
from ..common.files import DAMAGE, read_json_of, reading_value, write_atomically
from ..common.formats import FRONTIER
from ..common.progress import Progress
from ..ft.frontier import Frontier
from ..ft.lower_bound import LowerBound
from ..program.liveness import PEAK_KEYS
from ..program.schedule import PLAIN
from ..report.checksum import check_signed, signed
from ..report.frontier_rows import FrontierRows, column_of
from ..report.page_data import report_data
from ..report.plan_rows import device_bytes_of
from ..reschedule.mesh import Mesh, mesh_of
from ..search.problem.objectives import Objectives, StrategyCosts, parse_objectives
from .frontier import PlanFrontier
from .plan import Plan
from .points import Passes
from .stage_plan import levels_json

FORMAT, VERSION = FRONTIER
Entry = dict[str, Any]
"""The row of an operator or a resharding, as in a plan's file."""


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

    def rows(self, point: int) -> list[Entry]:
        """Return the rows that a point's plan has."""
        return [self.pool[i] for i in self.choices[self.chosen[point]]]


@dataclass(frozen=True, slots=True)
class Searched:
    """The facts about a search that a frontier's plans record.

    Attributes:
        summary: one line on the search.
    """

    mesh: Mesh
    hardware_name: str
    model_digest: str
    assumed: Mapping[str, Any]
    summary: str
    micro_batches: int = 1


@dataclass(frozen=True, eq=False, repr=False)
class SavedFrontier(PlanFrontier[Plan]):
    """A frontier as it is saved, which builds plans from its parts.

    Attributes:
        found: the points. Their strategies are not in its ``strategies`` (int32[P, 0]) but in the parts.
        objectives: the two costs that were searched.
        of_points: the costs of the points, whatever the objectives.
        searched: facts about the search.
        operators: the part of each operator, in program order.
        reshardings: the parts of the reshardings, in order of execution.
        of_peaks: the peak in bytes by point, of the points whose peak was computed before saving.
        details: what its report shows beside the plans, see :mod:`.details`; empty if it wasn't computed.
    """

    found: Frontier
    objectives: Objectives
    of_points: StrategyCosts
    searched: Searched
    operators: tuple[StoredPart, ...]
    reshardings: tuple[StoredPart, ...]
    of_peaks: Mapping[int, int]
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def mesh(self) -> Mesh:
        return self.searched.mesh

    @property
    def hardware_name(self) -> str:
        return self.searched.hardware_name

    @property
    def costs(self) -> StrategyCosts:
        return self.of_points

    def summary(self) -> str:
        return self.searched.summary

    def passes(self, point: int) -> Passes:
        return Passes(micro_batches=self.searched.micro_batches)

    def peak_bytes(self, point: int) -> int | None:
        """Return the peak of a point in bytes; None if it wasn't computed before saving."""
        return self.of_peaks.get(self.check_point(point))

    def peak_json(self, point: int) -> Mapping[str, Any] | None:
        """Return the instant of a point's peak as a JSON value; None if its step wasn't stored."""
        view = self.details.get("views", {}).get(str(self.check_point(point)))
        return None if view is None else {key: view["memory"][key] for key in PEAK_KEYS}

    @cached_property
    def all_peaks(self) -> np.ndarray | None:
        """The peaks of all points in bytes, int64[P], by which they are in order; None where not all are known."""
        peaks = np.array([self.of_peaks.get(point, 0) for point in range(len(self))], np.int64)
        return peaks if (np.diff(peaks, prepend=0) > 0).all() else None

    @property
    def known_peaks(self) -> list[int]:
        return list(self.of_peaks)

    @overload
    def fastest_within(self, limit_bytes: None, progress: Progress | None = None) -> int: ...

    @overload
    def fastest_within(self, limit_bytes: int | None, progress: Progress | None = None) -> int | None: ...

    def fastest_within(self, limit_bytes: int | None, progress: Progress | None = None) -> int | None:
        """Return the number of the fastest point that fits; see :class:`PlanFrontier`. All peaks that are stored count."""
        points = self._by_time
        if limit_bytes is None:
            return points[0]
        return next((point for point in self._comparable(points) if self.needed_bytes(point) <= limit_bytes), None)

    def least_point(self, progress: Progress | None = None) -> int:
        """Return the number of the point that needs the least memory; of equal ones, the fastest."""
        return min(self._comparable(self._by_time), key=self.needed_bytes)

    def plan(self, point: int, option: str = "point") -> Plan:
        """Return the plan of a point, the same as before the frontier was saved; see :class:`PlanFrontier`."""
        number = self.check_point(point)
        costs = {**asdict(self.points[number]), "peak_bytes": self.of_peaks.get(number)}
        del costs["exact"]
        told = {"mesh": levels_json(self.mesh), "model_digest": self.searched.model_digest, **costs}
        stage = {
            "devices": range(self.mesh.n_devices),
            "last_operator": "",
            "in_flight": 1,
            "deferred": 0,
            "idle_share": 0.0,
            **told,
            "operators": [row for part in self.operators for row in part.rows(number)],
            "reshardings": [row for part in self.reshardings for row in part.rows(number)],
        }
        value = {
            **told,
            "option": option,
            "exact": self.found.exact,
            "schedule": {"name": PLAIN, "micro_batches": self.searched.micro_batches},
            "assumed": self.searched.assumed,
            "frontier": self.table(number, with_peaks=False).splitlines(),
            "stages": [stage],
        }
        try:
            made = Plan.from_json(value)
        except DAMAGE as error:
            raise InputError(
                f"point {number} of the frontier is damaged ({type(error).__name__}: {cut(error)}); save the frontier again"
            ) from error
        return replace(made, frontier=self, point=number)

    def save(
        self, file: str | os.PathLike[str], progress: Progress | None = None, chosen: int | None = None
    ) -> None:
        """Write the frontier to a file; see :class:`PlanFrontier`."""
        text = signed(_text(frontier_json(self)))
        write_atomically(file, lambda partial: Path(partial).write_text(text, encoding="utf-8"), "frontier")

    def report_value(self, title: str, chosen: int | None = None, model: str = "") -> dict[str, Any]:
        """Return the data of the frontier's report, of all that its file has; see :class:`PlanFrontier`."""
        rows = FrontierRows(json.loads(json.dumps(frontier_json(self))))  # tuples are lists there, and keys are text
        return report_data(rows, title, chosen)

    @classmethod
    def load(cls, file: str | os.PathLike[str]) -> SavedFrontier:
        """Read a frontier from a file.

        Raises:
            InputError: the file can't be read, is cut off, isn't a frontier, has another version, or was changed.
        """
        checks = {"frontier": partial(check_signed, "frontier", file)}
        _, value = read_json_of(file, {"frontier": FRONTIER}, checks)
        with reading_value("frontier", file):
            return _from_json(value)


def frontier_json(frontier: SavedFrontier) -> dict[str, Any]:
    """Return the frontier's file as a JSON value, without its checksum."""
    found, searched = frontier.found, frontier.searched
    columns: dict[str, int] = {}

    def column(part: StoredPart) -> int:
        return columns.setdefault(_runs(part.chosen), len(columns))

    operators = [_operator_to_json(column(part), part) for part in frontier.operators]
    reshardings = [{"column": column(part), "choices": part.choices, "pool": part.pool} for part in frontier.reshardings]
    bound = None
    if found.bound is not None:
        costs = {"mem_bytes": found.bound.mem_bytes.tolist(), "time_ns": found.bound.time_ns.tolist()}
        bound = {"source": found.bound.source, **costs}
    return {
        "format": FORMAT,
        "version": VERSION,
        "hardware": searched.hardware_name,
        "mesh": levels_json(searched.mesh),
        "model_digest": searched.model_digest,
        **({"micro_batches": searched.micro_batches} if searched.micro_batches > 1 else {}),
        "assumed": dict(searched.assumed),
        "summary": searched.summary,
        "objectives": list(frontier.objectives),
        "algorithm": found.algorithm,
        "eliminations": dict(found.eliminations),
        "bound": bound,
        "points": [frontier.row(number) for number in range(len(frontier))],
        "columns": list(columns),
        "operators": operators,
        "reshardings": reshardings,
        **({"details": dict(frontier.details)} if frontier.details else {}),
    }


def _from_json(value: dict[str, Any]) -> SavedFrontier:
    """Return a frontier from its JSON value, the inverse of :func:`frontier_json`; a damaged one raises what it leads to."""
    points, bound = value["points"], value["bound"]
    device_bytes_of(value["assumed"])
    n_points = len(points)
    objectives = parse_objectives(",".join(value["objectives"]))
    costs = StrategyCosts(
        _ints(point["sum_bytes"] for point in points),
        _nanoseconds(point["time_us"] for point in points),
        _nanoseconds(point["compute_time_us"] for point in points),
        _nanoseconds(point["overlap_time_us"] for point in points),
    )
    found = Frontier(
        *costs.pair(objectives),
        np.zeros((n_points, 0), np.int32),
        value["eliminations"],
        value["algorithm"],
        bound and LowerBound(_ints(bound["mem_bytes"]), _ints(bound["time_ns"]), bound["source"]),
    )
    columns = [column_of(text, n_points) for text in value["columns"]]
    searched = Searched(
        mesh_of(value["mesh"]),
        value["hardware"],
        value["model_digest"],
        value["assumed"],
        value["summary"],
        int(value.get("micro_batches", 1)),
    )
    return SavedFrontier(
        found,
        objectives,
        costs,
        searched,
        tuple(_operator_from_json(columns, operator) for operator in value["operators"]),
        tuple(
            _checked(StoredPart(tuple(each["pool"]), tuple(map(tuple, each["choices"])), _column(columns, each)))
            for each in value["reshardings"]
        ),
        _peaks(points),
        dict(value.get("details", {})),
    )


def _peaks(points: Sequence[dict[str, Any]]) -> dict[int, int]:
    """Return the peaks in bytes by point"""
    known = {number: point["peak_bytes"] for number, point in enumerate(points) if point["peak_bytes"] is not None}
    if not all(isinstance(n_bytes, int) for n_bytes in known.values()):
        raise ValueError("peaks must be integers")
    return known


def _operator_to_json(column: int, part: StoredPart) -> dict[str, Any]:
    """Return an operator's part as JSON: its name and type once, and one choice per row."""
    common = {key: part.pool[0][key] for key in ("name", "type")}
    return {
        **common,
        "column": column,
        "choices": [{key: row[key] for key in row if key not in common} for row in part.pool],
    }


def _operator_from_json(columns: Sequence[np.ndarray], value: dict[str, Any]) -> StoredPart:
    """Return an operator's part, the inverse of :func:`_operator_to_json`."""
    pool = tuple({"name": value["name"], "type": value["type"], **row} for row in value["choices"])
    return _checked(StoredPart(pool, tuple((i,) for i in range(len(pool))), _column(columns, value)))


def _column(columns: Sequence[np.ndarray], value: dict[str, Any]) -> np.ndarray:
    """Return the choices of all points from the column that a part names."""
    number = value["column"]
    if not 0 <= number < len(columns):
        raise ValueError(f"there is no column {number}")
    return columns[number]


def _checked(part: StoredPart) -> StoredPart:
    """Return a part, after checking that the choices and rows that it names exist."""
    if part.chosen.max() >= len(part.choices):
        raise ValueError(f"a point takes choice {part.chosen.max()} of {len(part.choices)}")
    for choice in part.choices:
        wrong = [i for i in choice if not 0 <= i < len(part.pool)]
        if wrong:
            raise ValueError(f"a choice names row {wrong[0]} of {len(part.pool)}")
    return part


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
