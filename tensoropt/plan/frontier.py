"""The frontier as a user asks it: all Pareto-minimal points of a model, each of which becomes a plan when it is asked for.

The questions are the same for a single search of a model (:class:`..search.frontiers.find_frontier.ModelFrontier`) and for
points of several, or of a file (:class:`.frontier_file.Frontier`), whichever two costs were searched.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from numbers import Integral
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from tabulate import tabulate

from ..common.errors import InputError, short
from ..common.memory_units import memory_text, parse_memory
from ..common.progress import Progress
from ..common.words import counted
from ..costs.objectives import Objectives, StrategyCosts
from ..report.notebook import frontier_html
from ..report.page import report_name, write_report
from .picture import draw_points, new_axes, save_picture
from .points import FrontierPoint, Passes, thinned

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ..ft import Frontier
    from ..reschedule.mesh import Mesh
    from .plan import Plan


class PlanFrontier(ABC):
    """Points by ascending first and descending second objective, numbered from 0, with a plan for each.

    Attributes:
        mesh: the mesh of devices that the plans run on.
        hardware_name: the name of the hardware that the costs are for.
        found: the points as arrays of integers, and what is proven about them. Its ``mem_bytes`` are the first objective,
            its ``time_ns`` the second, whatever the objectives are.
        objectives: the names of the two objectives, ``("memory", "time")`` by default.
        seconds_by_phase: the seconds of each phase of the search; empty of a frontier that was loaded.
        left_out: why some of what was asked for wasn't searched, one sentence each.
        why_stages: why there are stages where none were asked for; empty where they were.
    """

    mesh: Mesh
    hardware_name: str
    found: Frontier
    objectives: Objectives
    seconds_by_phase: Mapping[str, float] = MappingProxyType({})
    left_out: Sequence[str] = ()
    why_stages: str = ""

    @property
    @abstractmethod
    def costs(self) -> StrategyCosts:
        """The costs of all points in memory, time, compute and network, whatever the objectives."""

    @abstractmethod
    def summary(self) -> str:
        """Return one line on the search: its size, its exactness and its time."""

    @abstractmethod
    def plan(self, point: int, option: str = "point") -> Plan:
        """Return the plan of a point.

        Args:
            point: the point's number; negative ones count from the end.
            option: the reason for the choice, which the plan records.

        Raises:
            InputError: there is no such point.
        """

    @property
    def without_stages(self) -> Sequence[Any]:
        """The ``ModelFrontier`` s of the whole model that were searched; empty where there are none, or they were loaded."""
        return ()

    def fastest_without_stages(self, limit_bytes: int | None) -> tuple[Any, int] | None:
        """Return the fastest point of the whole model that was searched, and fits: its ``ModelFrontier``, and its number.

        None where nothing fits, or the whole model wasn't searched.
        """
        fastest = [(each, each.fastest_within(limit_bytes)) for each in self.without_stages]
        fitting = [(each, number) for each, number in fastest if number is not None]
        return min(fitting, key=lambda each: each[0].points[each[1]].time_us, default=None)

    def parts(self, point: int) -> Sequence[tuple[Any, int]]:
        """Return for each stage of a point's plan the ``ModelFrontier`` that was searched, and the number of its point.

        They are none where the frontier was loaded.
        """
        return ()

    def passes(self, point: int) -> Passes:
        """Return in how many stages and micro-batches a point's plan takes a step, and the share in which devices wait."""
        return Passes()

    def row(self, point: int) -> dict[str, Any]:
        """Return the costs of a point as a file has them."""
        gap = {} if self.gaps is None else {"gap": float(self.gaps[point])}
        return {**asdict(self.points[point]), "peak_bytes": self.peak_bytes(point), **self.passes(point)._asdict(), **gap}

    @property
    @abstractmethod
    def peaks(self) -> np.ndarray:
        """The most bytes that are alive at once on a device, of all points, int64[P]: what a limit applies to."""

    def peak_bytes(self, point: int) -> int:
        """Return the most bytes that are alive at once on a device under a point's plan."""
        return int(self.peaks[self.check_point(point)])

    def peak_json(self, point: int) -> Mapping[str, Any] | None:
        """Return the instant of a point's peak as a JSON value, see ``Peak.to_json``; None if it isn't known."""
        return None

    @abstractmethod
    def save(self, file: str | os.PathLike[str], progress: Progress | None = None, chosen: int | None = None) -> None:
        """Write all points with their plans to a file, which ``tensoropt.load_frontier`` reads.

        An existing file stays intact until the new one is complete.

        Args:
            progress: called with (phase, done, total) now and then.
            chosen: the number of the point that was chosen; None for the fastest one.

        Raises:
            InputError: the file can't be written.
        """

    def with_details(self, model: str = "", chosen: int | None = None, **given: Any) -> PlanFrontier:
        """Return the frontier with what its file and report show beside plans, as far as a search knows it.

        Args:
            model, chosen, given: see :func:`..search.frontiers.details.details_of`.
        """
        return self

    @cached_property
    def points(self) -> tuple[FrontierPoint, ...]:
        """All points, by ascending first objective."""
        costs = self.costs
        columns = (costs.mem_bytes, costs.time_ns, costs.compute_ns, costs.network_ns, costs.overlap_ns)
        rows = zip(*(each.tolist() for each in columns), self.found.exact_points.tolist(), strict=True)
        return tuple(
            FrontierPoint(mem_bytes, time_ns / 1e3, compute_ns / 1e3, network_ns / 1e3, overlap_ns / 1e3, exact)
            for mem_bytes, time_ns, compute_ns, network_ns, overlap_ns, exact in rows
        )

    @property
    def bounds_ns(self) -> np.ndarray:
        """The least time of any plan that has no more memory than each point, of those searched for it, int64[P]."""
        return self.found.least_time(self.found.mem_bytes)

    @property
    def gaps(self) -> np.ndarray | None:
        """By what share each point may be beaten in memory and time in its stages and order; None of a single search."""
        return None

    def __len__(self) -> int:
        return len(self.found)

    def __iter__(self) -> Iterator[FrontierPoint]:
        return iter(self.points)

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
            least, n_devices = self.peak_bytes(self.least_point()), self.mesh.n_devices
            raise InputError(
                f"no plan of this frontier fits {limit:,} bytes ({memory_text(limit)}) per device: the least on "
                f"{counted(n_devices, 'device')} is {least:,} bytes ({memory_text(least)}) per device; ask for "
                f"memory={least} or more, or search within the limit (find_strategy(memory={limit})), which tries "
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

    @property
    def all_peaks(self) -> np.ndarray | None:
        """The peaks of all points in bytes, int64[P], where points are in order by them; else None."""
        return self.peaks if (np.diff(self.peaks) > 0).all() else None

    @cached_property
    def turning_number(self) -> int:
        """The number of the turning point: by peak, where points are in order by it."""
        peaks = self.all_peaks if self.objectives[0] == "memory" else None
        by_peak = self.found if peaks is None else replace(self.found, mem_bytes=peaks, bound=None)
        return by_peak.turning_point()

    @overload
    def fastest_within(self, limit_bytes: None) -> int: ...

    @overload
    def fastest_within(self, limit_bytes: int | None) -> int | None: ...

    def fastest_within(self, limit_bytes: int | None) -> int | None:
        """Return the number of the fastest point that fits, of equally fast ones that of least memory; None if none fits.

        Args:
            limit_bytes: the memory limit per device; None without a limit.
        """
        fits = np.arange(len(self)) if limit_bytes is None else np.flatnonzero(self.peaks <= limit_bytes)
        costs = self.costs
        by_time = fits[np.lexsort((costs.mem_bytes[fits], costs.time_ns[fits]))]
        return int(by_time[0]) if len(by_time) else None

    def least_point(self) -> int:
        """Return the number of the point that needs the least memory."""
        return int(self.peaks.argmin())

    def check_point(self, point: int) -> int:
        """Return the number of a point counted from 0; negative ones count from the end.

        Raises:
            InputError: there is no such point.
        """
        if not isinstance(point, Integral) or not -len(self) <= point < len(self):
            raise InputError(f"the frontier has no point {short(point)}; its {len(self)} points are numbered from 0")
        return int(point) % len(self)

    def table(self, chosen: int | None = None) -> str:
        """Return the points as a table of text, numbered.

        Memory per device is the peak, the paper's sum is Equation (1).

        A long frontier is thinned; its ends, its turning point and the chosen point stay.

        Args:
            chosen: the number of a point to mark.
        """
        turning = self.turning_number
        overlaps, gaps = bool(self.costs.overlap_ns.any()), self.gaps
        is_cut = any(self.passes(number).stages > 1 for number in range(len(self)))
        rows = []
        shown = thinned(len(self), {turning, *({chosen} if chosen is not None else ())})
        for number in shown:
            point = self.points[number]
            marks = [text for at, text in ((turning, "turning point"), (chosen, "chosen")) if at == number]
            values = [point.time_us, point.compute_time_us, point.network_time_us, *([point.overlap_time_us] * overlaps)]
            times = [f"{value:,.1f}" for value in values]
            passes = self.passes(number)
            stages = [str(passes.stages), str(passes.micro_batches), f"{passes.idle_share:.0%}"] * is_cut
            gap = [] if gaps is None else [f"{gaps[number]:.1%}"]
            memory = memory_text(point.sum_bytes), memory_text(self.peak_bytes(number))
            rows.append([str(number + 1), *stages, *memory, *times, *gap, ", ".join(marks)])
        overlap, stages = ["overlap (us)"] * overlaps, ["stages", "micro-batches", "waits"] * is_cut
        times = ["time (us)", "compute (us)", "network (us)", *overlap, *([] if gaps is None else ["gap"])]
        headers = ["point", *stages, "paper's sum", "memory per device", *times, ""]
        alignment = (*("right",) * (len(headers) - 1), "left")
        text: str = tabulate(rows, headers, tablefmt="simple", disable_numparse=True, colalign=alignment)
        return text if len(shown) == len(self) else f"{text}\n{len(shown)} of {len(self)} points"

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
        axes = axes if axes is not None else new_axes(to_show=path is None)
        marks = {"turning point": self.turning_number, **({} if chosen is None else {"chosen": chosen})}
        title = f"{self.mesh.n_devices} devices of {self.hardware_name}"
        draw_points(axes, self.costs, self.all_peaks, self.objectives, marks, title)
        if path is not None:
            save_picture(axes, path)
        return axes

    @abstractmethod
    def report_value(self, title: str, chosen: int | None = None, model: str = "") -> dict[str, Any]:
        """Return the data of the frontier's report: points and plans, with steps, decisions and baselines if it has them.

        Args:
            title: the name of what is reported, for the page's title.
            chosen: the number of the point that is shown first.
            model: the model's name.
        """

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

    def _repr_html_(self) -> str:
        turning = self.turning_number
        return frontier_html(self.summary(), self.points, {"turning point": turning}, thinned(len(self), {turning}))

    def __repr__(self) -> str:
        return f"{self.summary()}\n{self.table()}"
