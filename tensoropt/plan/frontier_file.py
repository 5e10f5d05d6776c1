"""Points with their plans, in stages or not, and their file, with which later questions need neither a search nor the model.

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
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Generic

import numpy as np

from ..common.errors import InputError, cut
from ..common.files import DAMAGE, read_json_of, reading_value, write_atomically
from ..common.formats import FRONTIER
from ..common.progress import Progress
from ..costs.objectives import MEMORY_TIME, Objectives, StrategyCosts, parse_objectives
from ..ft.frontier import Frontier as Found
from ..ft.lower_bound import LowerBound
from ..program.liveness import PEAK_KEYS
from ..report.checksum import check_signed, signed
from ..report.frontier_rows import FrontierRows
from ..report.plan_page import points_report, report_of
from ..report.plan_rows import PlanRows
from ..reschedule.mesh import Mesh, mesh_of
from .frontier import PlanFrontier
from .plan import Plan
from .points import AnyPoint, FrontierPoint, Passes, Point
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
    def gap(self) -> float | None:
        return self.rows.points[self.number].get("gap")

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
            why = f"{type(error).__name__}: {cut(error)}"
            raise InputError(f"point {self.number} of the frontier is damaged ({why}); save the frontier again") from error


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Frontier(PlanFrontier, Generic[AnyPoint]):
    """Points with plans in one stage or several, found or read from a file; see :class:`PlanFrontier`.

    Attributes:
        points_of: the points, by ascending first and descending second objective.
        told: what the summary says of the search, but for why there are stages, what was left out, and the time.
        bound: costs that no plan beats; None where the points are exactly the minimal ones.
        assumed: the assumptions that plans record.
        searched: the cuts that were searched, the model that isn't cut among them; none where the frontier was loaded.
        is_interrupted: whether Ctrl-C ended the search.
        value: its JSON value, without the checksum, where it was read; None where it was found.
    """

    points_of: tuple[AnyPoint, ...]
    mesh: Mesh
    hardware_name: str
    told: str
    bound: LowerBound | None
    objectives: Objectives = MEMORY_TIME
    algorithm: str = "stages"
    eliminations: Mapping[str, int] = field(default_factory=dict)
    assumed: Mapping[str, Any] = field(default_factory=dict)
    seconds_by_phase: Mapping[str, float] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    why_stages: str = ""
    searched: tuple[Any, ...] = ()
    is_interrupted: bool = False
    value: Mapping[str, Any] | None = None

    @cached_property
    def points(self) -> tuple[FrontierPoint, ...]:
        """The costs of the points, by ascending first objective."""
        return tuple(point.costs for point in self.points_of)

    @cached_property
    def costs(self) -> StrategyCosts:
        """The costs of all points, in the memory by which they are in order: the peak, if of several searches."""
        times = ([getattr(each, key) for each in self.points] for key in ("time_us", "compute_time_us", "overlap_time_us"))
        sums = self.peaks if self.gaps is not None else _ints(each.sum_bytes for each in self.points)
        return StrategyCosts(sums, *map(_nanoseconds, times))

    @cached_property
    def found(self) -> Found:  # type: ignore[override]
        """The points as arrays; their strategies are not in its ``strategies`` (int32[P, 0]) but in the plans."""
        no_states = np.zeros((len(self.points_of), 0), np.int32)
        return Found(*self.costs.pair(self.objectives), no_states, self.eliminations, self.algorithm, self.bound)

    @property
    def bounds_ns(self) -> np.ndarray:
        bounds = [round(point.bound_us * 1e3) for point in self.points_of if point.bound_us is not None]
        return np.array(bounds, np.int64) if bounds else super().bounds_ns

    @cached_property
    def gaps(self) -> np.ndarray | None:
        gaps = [point.gap for point in self.points_of]
        return None if gaps[0] is None else np.array(gaps, np.float64)

    @cached_property
    def peaks(self) -> np.ndarray:
        """The peaks of all points in bytes, int64[P]."""
        return _ints(point.peak_bytes for point in self.points_of)

    def passes(self, point: int) -> Passes:
        return self.points_of[self.check_point(point)].passes

    def peak_json(self, point: int) -> Mapping[str, Any] | None:
        """Return the instant of a point's peak as a JSON value; None if its step isn't known."""
        return self.points_of[self.check_point(point)].peak

    def parts(self, point: int) -> Sequence[tuple[Any, int]]:
        return self.points_of[self.check_point(point)].parts

    @property
    def without_stages(self) -> Sequence[Any]:
        return [frontier for each in self.searched for frontier in each.without_stages]

    def plan(self, point: int, option: str = "point") -> Plan:
        """Return the plan of a point; see :class:`PlanFrontier`."""
        number = self.check_point(point)
        plan = self.points_of[number].plan(option, self.assumed)
        why = self.why_stages if len(plan.stages) > 1 else ""
        return replace(plan, why_stages=why, frontier=self, point=number, frontier_text=self.table(number))

    def summary(self) -> str:
        """Return one line on the search, as it was told; see :class:`PlanFrontier`."""
        seconds = [f"{sum(self.seconds_by_phase.values()):.2f} s"] if self.seconds_by_phase else []
        return "; ".join([self.told, *([self.why_stages] if self.why_stages else []), *self.left_out, *seconds])

    def to_json(self, progress: Progress | None = None, chosen: int | None = None) -> Mapping[str, Any]:
        """Return the JSON value that the frontier's file holds, without the checksum: the one that was read, if any was."""
        if self.value is not None:
            return self.value
        points, rows = [], dict[str, int]()
        for number, point in enumerate(self.points_of):
            if progress is not None:
                progress("plans", number, len(self))
            points.append({**self.row(number), "plan": numbered(point.plan("point", self.assumed).to_json(), rows)})
        details, plan = {} if chosen is None else {"chosen": chosen}, points[0]["plan"]
        value = frontier_value(self, plan["assumed"], plan["model_digest"], points, details)
        return {**value, "rows": [json.loads(row) for row in rows]}

    def save(self, file: str | os.PathLike[str], progress: Progress | None = None, chosen: int | None = None) -> None:
        """Write the frontier to a file; see :class:`PlanFrontier`."""
        text = signed(_text(self.to_json(progress, chosen)))
        write_atomically(file, lambda partial: Path(partial).write_text(text, encoding="utf-8"), "frontier")

    def report_value(self, title: str, chosen: int | None = None, model: str = "") -> dict[str, Any]:
        """Return the data of the frontier's report, of all that its file has, or with the chosen point's step."""
        if self.value is not None:
            rows = FrontierRows(json.loads(json.dumps(self.value)))  # tuples are lists there, and keys are text
            return report_of(rows, title, chosen)
        chosen = self.fastest_within(None) if chosen is None else self.check_point(chosen)
        return points_report(
            [self.row(number) for number in range(len(self))],
            lambda number: PlanRows(self.plan(number).to_json()),
            self.summary(),
            title,
            chosen,
            self.points_of[chosen].details,
        )

    @classmethod
    def load(cls, file: str | os.PathLike[str]) -> Frontier[SavedPoint]:
        """Read a frontier from a file.

        Raises:
            InputError: the file can't be read, is cut off, isn't a frontier, has another version, or was changed.
        """
        checks = {"frontier": partial(check_signed, "frontier", file)}
        _, value = read_json_of(file, {"frontier": FRONTIER}, checks)
        with reading_value("frontier", file):
            loaded = read_frontier({key: each for key, each in value.items() if key != "checksum"})
            _check(loaded)
            return loaded


def read_frontier(value: Mapping[str, Any]) -> Frontier[SavedPoint]:
    """Return the frontier of a JSON value, which builds plans from what that has."""
    rows, bound = FrontierRows(value), value["bound"]
    return Frontier(
        points_of=tuple(SavedPoint(rows, number) for number in range(len(rows))),
        mesh=mesh_of(value["mesh"]),
        hardware_name=str(value["hardware"]),
        told=str(value["summary"]),
        bound=bound and LowerBound(_ints(bound["mem_bytes"]), _ints(bound["time_ns"]), bound["source"]),
        objectives=parse_objectives(",".join(value["objectives"])),
        algorithm=value["algorithm"],
        eliminations=value["eliminations"],
        value=value,
    )


def _check(loaded: Frontier[SavedPoint]) -> None:
    """Read all but the plans of parts, which raises whatever error damage leads to."""
    value, rows = loaded.value, loaded.points_of[0].rows
    assert value is not None
    _ = loaded.found, loaded.peaks, [loaded.passes(point) for point in range(len(loaded))]
    if "rows" in value:
        _ = [rows.plan(point) for point in range(len(loaded))], loaded.plan(0)
        return
    for part in value["operators"]:
        _check_part(rows.columns, part, len(part["choices"]))
    for part in value["reshardings"]:
        _check_part(rows.columns, part, len(part["choices"]))
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
