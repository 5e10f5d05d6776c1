"""The frontier as a user asks it: all Pareto-minimal points of a model, each of which becomes a plan when it is asked for.

Its points are those of one search of a model that isn't cut, the minimal ones of several, or those of a file
(:mod:`.frontier_file`), whichever two costs were searched.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic

import numpy as np
from tabulate import tabulate

from ..common.errors import InputError
from ..common.files import check_signed, read_json_of, reading_value, signed, write_atomically
from ..common.memory_units import memory_text, parse_memory
from ..common.process.garbage import older_objects_kept
from ..common.process.progress import Progress
from ..common.words import counted
from ..costs.objectives import MEMORY_TIME, Objectives, StrategyCosts, parse_objectives
from ..ft.frontier import Frontier as Found
from ..ft.lower_bound import LowerBound
from ..report.frontier_rows import FrontierRows, plan_of_whole
from ..report.pages.notebook import frontier_html
from ..report.pages.page import report_name, write_report
from ..report.pages.plan_page import report_of
from ..report.tables import COSTS_HEADERS
from ..reschedule.mesh import Mesh, mesh_of
from .frontier_file import FORMAT, VERSION, Entry, SavedPoint, check_rows, entry_of, ints, text_of
from .picture import draw_points, new_axes, save_picture
from .plan import Plan
from .points import CostedPoints, FrontierPoint, Passes, PointT, thinned
from .stage_plan import levels_json

if TYPE_CHECKING:
    from matplotlib.axes import Axes

JOINED = "stages"
"""The algorithm's name of points that are the minimal ones of several searches, in order by peak."""


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Frontier(CostedPoints, Generic[PointT]):
    """Points with a plan for each, found or read from a file; :func:`tensoropt.find_strategy` has an example.

    Attributes:
        points_of: the points.
        mesh: the mesh of devices that the plans run on.
        hardware_name: the name of the hardware that the costs are for.
        headline: what the summary says of the search, but for why there are stages, what was left out, time, and note.
        bound: costs that no plan beats; None where the points are exactly the minimal ones.
        algorithm, eliminations: see :class:`..ft.Frontier`.
        assumed: the assumptions that plans record.
        seconds_by_phase: the seconds by the clock of each phase of the search; empty of a frontier that was loaded.
        left_out: why some of what was asked for wasn't searched, one sentence each.
        why_stages: why there are stages where none were asked for; empty where they were.
        note: a sentence on how the points were found; may be empty.
        searched: the cuts that were searched, the model that isn't cut among them; none where the frontier was loaded.
        is_interrupted: whether Ctrl-C ended the search.
        plans_of: returns the plans of points that were found, and their rows by search, see
            :func:`..search.candidates.plan_points.plans_of`.
        details_of: returns what a report of a frontier that was found shows beside the plans, see
            :func:`..search.candidates.plan_points.details_of`.
        value: its JSON value, without the checksum, where it was read; None where it was found.
    """

    points_of: tuple[PointT, ...]
    mesh: Mesh
    hardware_name: str
    headline: str
    bound: LowerBound | None
    objectives: Objectives = MEMORY_TIME
    algorithm: str = JOINED
    eliminations: Mapping[str, int] = field(default_factory=dict)
    assumed: Mapping[str, Any] = field(default_factory=dict)
    seconds_by_phase: Mapping[str, float] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    why_stages: str = ""
    note: str = ""
    searched: tuple[Any, ...] = ()
    is_interrupted: bool = False
    plans_of: Callable[..., tuple[list[Entry], list[Entry]]] | None = None
    details_of: Callable[..., Mapping[str, Any]] | None = None
    value: Mapping[str, Any] | None = None

    @cached_property
    def points(self) -> tuple[FrontierPoint, ...]:
        """The costs of the points, by ascending first objective."""
        return tuple(point.costs for point in self.points_of)

    @cached_property
    def costs(self) -> StrategyCosts:
        """The costs of all points, in the memory by which they are in order: the peak, if of several searches."""
        times = ([getattr(point, key) for point in self.points] for key in ("time_us", "compute_time_us", "overlap_time_us"))
        sums = self.peaks if self.algorithm == JOINED else ints(point.sum_bytes for point in self.points)
        return StrategyCosts(sums, *(np.rint(np.array(column, np.float64) * 1e3).astype(np.int64) for column in times))

    @cached_property
    def found(self) -> Found:  # type: ignore[override]
        """The points as arrays; their strategies are not in its ``strategies`` (int32[P, 0]) but in the plans."""
        strategies = np.zeros((len(self.points_of), 0), np.int32)
        return Found(*self.costs.pair(self.objectives), strategies, self.eliminations, self.algorithm, self.bound)

    @property
    def bounds_ns(self) -> np.ndarray:
        """The least time of any plan that has no more memory than each point, of those searched for it, int64[P]."""
        bounds = [round(point.bound_us * 1e3) for point in self.points_of if point.bound_us is not None]
        return np.array(bounds, np.int64) if bounds else self.found.least_time(self.found.mem_bytes)

    @cached_property
    def gaps(self) -> np.ndarray:
        """The most by which a plan of the same stages and order may beat each point in both costs (.01: 1 %), float64[P]."""
        return np.array([point.gap for point in self.points_of], np.float64)

    @cached_property
    def peaks(self) -> np.ndarray:
        """The most bytes that are alive at once on a device, of all points, int64[P]: what a limit applies to."""
        return ints(point.peak_bytes for point in self.points_of)

    @property
    def without_stages(self) -> Sequence[Any]:
        """The ``ModelFrontier`` s of the whole model that were searched; empty where there are none, or they were loaded."""
        return [frontier for search in self.searched for frontier in search.without_stages]

    def fastest_without_stages(self, limit_bytes: int | None) -> tuple[Any, int] | None:
        """Return the fastest point without stages that was searched, and fits: its ``ModelFrontier``, and its number."""
        fastest = [(result, result.fastest_within(limit_bytes)) for result in self.without_stages]
        fitting = [(result, number) for result, number in fastest if number is not None]
        return min(fitting, key=lambda pair: pair[0].points[pair[1]].time_us, default=None)

    def parts(self, point: int) -> Sequence[tuple[Any, int]]:
        """Return for each stage of a point's plan its ``ModelFrontier`` and the number of its point; none if loaded."""
        return self.points_of[self.check_point(point)].parts

    def passes(self, point: int) -> Passes:
        """Return in how many stages and micro-batches a point's plan takes a step, and the share in which devices wait."""
        return self.points_of[self.check_point(point)].passes

    def peak_json(self, point: int) -> Mapping[str, Any] | None:
        """Return the instant of a point's peak as a JSON value, see ``Peak.to_json``; None if it isn't known."""
        return self.points_of[self.check_point(point)].peak

    def row(self, point: int) -> dict[str, Any]:
        """Return the costs of a point as a file has them."""
        costs = {**asdict(self.points[point]), "peak_bytes": self.peak_bytes(point), **self.passes(point)._asdict()}
        return {**costs, "gap": float(self.gaps[point])}

    @older_objects_kept()
    def plan(self, point: int, option: str = "point") -> Plan:
        """Return the plan of a point.

        Args:
            point: the point's number; negative ones count from the end.
            option: the reason for the choice, which the plan records.

        Raises:
            InputError: there is no such point.
        """
        number = self.check_point(point)
        plan = self.points_of[number].plan(option, self.assumed)
        reason = "" if plan.timeline is None else self.why_stages
        return replace(plan, why_stages=reason, frontier=self, point=number)

    def summary(self) -> str:
        """Return one line on the search: its size, its exactness and its time."""
        seconds = f"{sum(self.seconds_by_phase.values()):.2f} s" if self.seconds_by_phase else ""
        return "; ".join(filter(None, [self.headline, self.why_stages, *self.left_out, seconds, self.note]))

    def at(self, memory: int | float | str | None = None) -> Plan:
        """Return the plan of least time whose peak memory is within a limit; see :attr:`peaks`.

        Args:
            memory: the limit per device, such as 16_000_000_000, ``'16GB'`` or ``'15GiB'``; None is no limit.

        Raises:
            InputError: ``memory`` isn't an amount of memory, or no plan fits; the message gives the least that does.
        """
        if memory is None:
            return self.fastest()
        limit = parse_memory(memory)
        point = self.fastest_within(limit)
        if point is None:
            n_bytes, n_devices = self.peak_bytes(self.least_point()), self.mesh.n_devices
            raise InputError(
                f"no plan of this frontier fits {limit:,} bytes ({memory_text(limit)}) per device: the least on "
                f"{counted(n_devices, 'device')} is {n_bytes:,} bytes ({memory_text(n_bytes)}) per device; ask for "
                f"memory={n_bytes} or more, or search within the limit (find_strategy(memory={limit})), which tries "
                "micro-batches, too, or on more devices"
            )
        return self.plan(point, "mini_time")

    def fastest(self) -> Plan:
        """Return the plan of least time."""
        return self.plan(self.fastest_within(None), "mini_time")

    def smallest(self) -> Plan:
        """Return the plan of least memory, as the frontier counts it."""
        costs = self.costs
        return self.plan(int(np.lexsort((costs.time_ns, costs.mem_bytes))[0]), "smallest")

    def turning_point(self) -> Plan:
        """Return the plan at the frontier's turning point.

        Up to it, more of the first objective (memory) saves much of the second (time); beyond it, little.
        """
        return self.plan(self.turning_number, "turning_point")

    def table(self, chosen: int | None = None) -> str:
        """Return the points as a table of text, numbered.

        Memory per device is the peak, the paper's sum is Equation (1).

        A long frontier is thinned; its ends, its turning point and the chosen point stay.

        Args:
            chosen: the number of a point to mark.
        """
        turning_point = self.turning_number
        overlaps = bool(self.costs.overlap_ns.any())
        is_cut = any(self.passes(number).stages > 1 for number in range(len(self)))
        rows = []
        numbers = thinned(len(self), {turning_point, *({chosen} if chosen is not None else ())})
        for number in numbers:
            point = self.points[number]
            marks = [text for mark, text in ((turning_point, "turning point"), (chosen, "chosen")) if mark == number]
            values = [point.time_us, point.compute_time_us, point.network_time_us, *([point.overlap_time_us] * overlaps)]
            times = [f"{value:,.1f}" for value in values]
            passes = self.passes(number)
            stages = [str(passes.stages), str(passes.micro_batches), f"{passes.idle_share:.0%}"] * is_cut
            memory = memory_text(point.sum_bytes), memory_text(self.peak_bytes(number))
            rows.append([str(number + 1), *stages, *memory, *times, f"{self.gaps[number]:.1%}", ", ".join(marks)])
        overlap, stages = ["overlap\n(us)"] * overlaps, ["stages", "micro-\nbatches", "waits"] * is_cut
        headers = ["point", *stages, *COSTS_HEADERS, *overlap, "gap", ""]
        alignment = (*("right",) * (len(headers) - 1), "left")
        text: str = tabulate(rows, headers, tablefmt="simple", disable_numparse=True, colalign=alignment)
        return text if len(numbers) == len(self) else f"{text}\n{len(numbers)} of {len(self)} points"

    def plot(self, path: str | os.PathLike[str] | None = None, axes: Axes | None = None, chosen: int | None = None) -> Axes:
        """Draw time against peak memory, with compute and network time dotted as in the paper's Figure 6; needs Matplotlib.

        For another pair of objectives, draw only the second against the first.

        Args:
            path: the file to write the picture to; its suffix gives the format.
            axes: the axes to draw in; by default those of a new figure.
            chosen: the number of a point to mark.

        Raises:
            InputError: there is no Matplotlib, or the picture can't be written.
        """
        axes = axes if axes is not None else new_axes(is_shown=path is None)
        marks = {"turning point": self.turning_number, **({} if chosen is None else {"chosen": chosen})}
        title = f"{self.mesh.n_devices} devices of {self.hardware_name}"
        draw_points(axes, self.costs, self.all_peaks, self.objectives, marks, title)
        if path is not None:
            save_picture(axes, path)
        return axes

    def report_value(self, title: str, chosen: int | None = None, model: str = "") -> dict[str, Any]:
        """Return the data of the frontier's report: points and plans, with steps, decisions and baselines if it has them.

        Args:
            title: the name of what is reported, for the page's title.
            chosen: the number of the point that is shown first.
            model: the model's name.
        """
        if self.details_of is not None:
            return self.with_details(model, chosen).report_value(title, chosen, model)
        rows = FrontierRows(json.loads(json.dumps(self.to_json())))  # tuples are lists there, and keys are text
        return report_of(rows, title, chosen if chosen is None else self.check_point(chosen))

    def report(self, file: str | os.PathLike[str], chosen: int | None = None, model: str = "") -> None:
        """Write an HTML file on all points and their plans, which opens in a browser without a network; needs Plotly.

        Args:
            chosen: the number of the point that is shown first.
            model: the model's name.

        Raises:
            InputError: the file can't be written, or Plotly isn't installed.
        """
        name = report_name(file)
        write_report(self.report_value(name, chosen, model), file)

    def to_json(self, progress: Progress | None = None, details: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        """Return the JSON value that the frontier's file holds, without the checksum: the one that was read, if any was.

        Args:
            progress: called with (phase, done, total) now and then; the phase is ``plans``.
            details: what a report shows beside the plans, see :func:`..search.candidates.plan_points.details_of`.
        """
        if self.value is not None:
            return self.value
        assert self.plans_of is not None
        plans, searches = self.plans_of(self, progress)
        bound = None
        if self.bound is not None:
            costs = {"mem_bytes": self.bound.mem_bytes.tolist(), "time_ns": self.bound.time_ns.tolist()}
            bound = {"source": self.bound.source, **costs}
        value = {
            "format": FORMAT,
            "version": VERSION,
            "hardware": self.hardware_name,
            "mesh": levels_json(self.mesh),
            "model_digest": plans[0]["model_digest"],
            "assumed": dict(self.assumed),
            "summary": self.summary(),
            "objectives": list(self.objectives),
            "algorithm": self.algorithm,
            "eliminations": dict(self.found.eliminations),
            "bound": bound,
            "points": [self.row(number) for number in range(len(self))],
            **({"details": dict(details)} if details else {}),
            "searches": searches,
        }
        for number, (point, plan) in enumerate(zip(value["points"], plans, strict=True)):
            point.update(entry_of(plan, plan_of_whole(value, number)))
        return value

    def with_details(self, model: str = "", chosen: int | None = None, **options: Any) -> Frontier[Any]:
        """Return the frontier with what its file and report show beside plans, as far as a search knows it.

        Args:
            model, chosen, options: see :func:`..search.candidates.plan_points.details_of`.
        """
        if self.details_of is None:
            return self
        return read_frontier(self.to_json(options.get("progress"), self.details_of(self, model, chosen, **options)))

    def save(self, file: str | os.PathLike[str], progress: Progress | None = None, chosen: int | None = None) -> None:
        """Write all points with their plans to a file, which ``tensoropt.load_frontier`` reads.

        An existing file stays intact until the new one is complete. It takes seconds for thousands of points.

        Args:
            progress: called with (phase, done, total) now and then.
            chosen: the number of the point that was chosen; None for the fastest one.

        Raises:
            InputError: the file can't be written.
        """
        text = signed(text_of(self.to_json(progress, {} if chosen is None else {"chosen": chosen})))
        write_atomically(file, lambda partial: Path(partial).write_text(text, encoding="utf-8"), "frontier")

    @classmethod
    def load(cls, file: str | os.PathLike[str]) -> Frontier[SavedPoint]:
        """Read a frontier from a file.

        Raises:
            InputError: the file can't be read, is cut off, isn't a frontier, has another version, or was changed.
        """
        checks = {"frontier": partial(check_signed, "frontier", file)}
        _, value = read_json_of(file, {"frontier": (FORMAT, VERSION)}, checks)
        with reading_value("frontier", file):
            frontier = read_frontier({key: entry for key, entry in value.items() if key != "checksum"})
            # All but the rows of plans is read, which raises whatever error damage leads to.
            _ = frontier.found, frontier.peaks, frontier.gaps, [point.passes for point in frontier.points_of]
            check_rows(frontier.points_of[0].rows)
            return frontier

    def _repr_html_(self) -> str:
        number = self.turning_number
        return frontier_html(self.summary(), self.points, {"turning point": number}, thinned(len(self), {number}))

    def __repr__(self) -> str:
        return f"{self.summary()}\n{self.table()}"


def read_frontier(value: Mapping[str, Any]) -> Frontier[SavedPoint]:
    """Return the frontier of a JSON value, which builds plans from what that has."""
    rows, bound = FrontierRows(value), value["bound"]
    return Frontier(
        points_of=tuple(SavedPoint(rows, number) for number in range(len(rows))),
        mesh=mesh_of(value["mesh"]),
        hardware_name=str(value["hardware"]),
        headline=str(value["summary"]),
        bound=bound and LowerBound(ints(bound["mem_bytes"]), ints(bound["time_ns"]), bound["source"]),
        objectives=parse_objectives(",".join(value["objectives"])),
        algorithm=value["algorithm"],
        eliminations=value["eliminations"],
        value=value,
    )
