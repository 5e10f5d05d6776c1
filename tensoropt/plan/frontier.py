"""The frontier as a user asks it: all Pareto-minimal points of a model, each of which becomes a plan when it is asked for.

The questions are the same for a frontier that a search has just found (:class:`.find_frontier.ModelFrontier`) and for one
that was read from a file (:class:`.frontier_file.SavedFrontier`), whichever two costs were searched.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from numbers import Integral
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

import numpy as np
from tabulate import tabulate

from ..common.errors import InputError, short
from ..common.memory_units import memory_text, parse_memory
from ..common.progress import Progress
from ..common.words import counted
from ..report.notebook import bundle, frontier_html
from ..report.page import report_name, write_report
from ..search.problem.objectives import Objectives, StrategyCosts
from .first_fit import ALL_AT_ONCE, first_that_fits, least_of
from .picture import draw_points, new_axes, save_picture
from .points import FrontierPoint, Passes, thinned

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ..ft import Frontier
    from ..program.liveness import Peak
    from ..reschedule.mesh import Mesh

AnyPlan = TypeVar("AnyPlan")


class PlanFrontier(ABC, Generic[AnyPlan]):
    """Points by ascending first and descending second objective, numbered from 0, with a plan for each.

    Attributes:
        found: the points as arrays of integers, and what is proven about them. Its ``mem_bytes`` are the first objective,
            its ``time_ns`` the second, whatever the objectives are.
        objectives: the names of the two objectives, ``("memory", "time")`` by default.
        seconds_by_phase: the seconds of each phase of the search; empty of a frontier that was loaded.
        left_out: why some of what was asked for wasn't searched, one sentence each.
        why_stages: why there are stages where none were asked for; empty where they were.
    """

    found: Frontier
    objectives: Objectives
    seconds_by_phase: Mapping[str, float] = MappingProxyType({})
    left_out: Sequence[str] = ()
    why_stages: str = ""

    @property
    @abstractmethod
    def mesh(self) -> Mesh:
        """The mesh of devices that the plans run on."""

    @property
    @abstractmethod
    def hardware_name(self) -> str:
        """The name of the hardware that the costs are for."""

    @property
    @abstractmethod
    def costs(self) -> StrategyCosts:
        """The costs of all points in memory, time, compute and network, whatever the objectives."""

    @abstractmethod
    def summary(self) -> str:
        """Return one line on the search: its size, its exactness and its time."""

    @abstractmethod
    def plan(self, point: int, option: str = "point") -> AnyPlan:
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

    def parts(self, point: int) -> list[tuple[Any, int]]:
        """Return for each stage of a point's plan the ``ModelFrontier`` that was searched, and the number of its point.

        They are none where the frontier was loaded.
        """
        return []

    def passes(self, point: int) -> Passes:
        """Return in how many stages and micro-batches a point's plan takes a step, and the share in which devices wait."""
        return Passes()

    def row(self, point: int) -> dict[str, Any]:
        """Return the costs of a point as a file has them."""
        return {**asdict(self.points[point]), "peak_bytes": self.peak_bytes(point), **self.passes(point)._asdict()}

    def peak(self, point: int) -> Peak | None:
        """Return the most memory that is alive at once on a device under a point's plan; None without the model."""
        return None

    def peak_bytes(self, point: int) -> int | None:
        """Return the bytes of :meth:`peak`; None if they aren't known and can't be computed."""
        peak = self.peak(point)
        return None if peak is None else peak.n_bytes

    def peak_json(self, point: int) -> Mapping[str, Any] | None:
        """Return the instant of a point's peak as a JSON value, see ``Peak.to_json``; None if it isn't known."""
        peak = self.peak(point)
        return None if peak is None else peak.to_json()

    @property
    def known_peaks(self) -> Sequence[int]:
        """The numbers of the points whose peak is known or can be computed; empty if a file has no peaks."""
        return range(len(self))

    @property
    def counted_peaks(self) -> Mapping[int, int | None]:
        """The peaks in bytes by point, as far as they are known without counting more."""
        return {point: self.peak_bytes(point) for point in self.known_peaks}

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

    def at(self, memory: int | float | str | None = None) -> AnyPlan:
        """Return the plan of least time whose peak memory is within a limit; see :meth:`needed_bytes`.

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
            least, n_devices = self.needed_bytes(self.least_point()), self.mesh.n_devices
            raise InputError(
                f"no plan of this frontier fits {limit:,} bytes ({memory_text(limit)}) per device: the least on "
                f"{counted(n_devices, 'device')} is {least:,} bytes ({memory_text(least)}) per device; ask for "
                f"memory={least} or more, or search within the limit (find_strategy(memory={limit})), which tries "
                "micro-batches, too, or on more devices"
            )
        return self.plan(point, "mini_time")

    def fastest(self) -> AnyPlan:
        """Return the plan of least time."""
        return self.plan(self.fastest_within(None), "mini_time")

    def smallest(self) -> AnyPlan:
        """Return the plan of least memory, as the frontier counts it."""
        costs = self.costs
        return self.plan(int(np.lexsort((costs.time_ns, costs.mem_bytes))[0]), "smallest")

    def turning_point(self) -> AnyPlan:
        """Return the plan at the frontier's turning point.

        Up to it, more of the first objective (memory) saves much of the second (time); beyond it, little.
        """
        return self.plan(self.turning_number, "turning_point")

    @property
    def all_peaks(self) -> np.ndarray | None:
        """The peaks of all points in bytes, int64[P], by which they are in order; None where not all are known."""
        return None

    @cached_property
    def turning_number(self) -> int:
        """The number of the turning point: by peak, where all are known."""
        peaks = self.all_peaks
        by_peak = self.found if peaks is None else replace(self.found, mem_bytes=peaks, bound=None)
        return by_peak.turning_point()

    def needed_bytes(self, point: int) -> int:
        """Return the bytes that a device needs for a point's plan, to which memory limits apply.

        It is the peak; where no peak is known, the memory as the frontier counts it.
        """
        peak_bytes = self.peak_bytes(point)
        return int(self.costs.mem_bytes[point]) if peak_bytes is None else peak_bytes

    @overload
    def fastest_within(self, limit_bytes: None, progress: Progress | None = None) -> int: ...

    @overload
    def fastest_within(self, limit_bytes: int | None, progress: Progress | None = None) -> int | None: ...

    def fastest_within(self, limit_bytes: int | None, progress: Progress | None = None) -> int | None:
        """Return the number of the fastest point that fits, of equally fast ones that of least memory; None if none fits.

        Of a long frontier not all points are evaluated; see :mod:`.first_fit`.

        Args:
            limit_bytes: the memory limit per device; None without a limit.
            progress: called with (``peaks``, done, total) now and then.
        """
        points = self._by_time
        if limit_bytes is None:
            return points[0]
        limit, needed_bytes = limit_bytes, self._peaks_with_progress(progress, len(points))
        found = first_that_fits(self._comparable(points), lambda point: needed_bytes(point) <= limit)
        if found is not None:
            return found
        # Of a long frontier the least is searched on a finer grid: an error message names that limit, so it must suffice.
        least = self.least_point(progress)
        return least if self.needed_bytes(least) <= limit else None

    def least_point(self, progress: Progress | None = None) -> int:
        """Return the number of the point that needs the least memory, of those that were evaluated (:mod:`.first_fit`).

        Args:
            progress: called as by :meth:`fastest_within`.
        """
        points = self._comparable(self._by_time[::-1])
        return least_of(points, self._peaks_with_progress(progress, len(points)))

    @cached_property
    def _by_time(self) -> list[int]:
        """The numbers of all points by ascending time, of equally fast ones by ascending memory."""
        costs = self.costs
        ordered: list[int] = np.lexsort((costs.mem_bytes, costs.time_ns)).tolist()
        return ordered

    def _comparable(self, points: Sequence[int]) -> list[int]:
        """Return the points whose peak is known; if there are none, all points, which are then compared by memory."""
        known = set(self.known_peaks)
        return [point for point in points if point in known] or list(points)

    def _peaks_with_progress(self, progress: Progress | None, n_points: int) -> Callable[[int], int]:
        """Return :meth:`needed_bytes` as a function that reports each of its calls to ``progress``."""
        total, done = min(n_points, ALL_AT_ONCE), 0

        def needed_bytes(point: int) -> int:
            nonlocal done
            done += 1
            if progress is not None:
                progress("peaks", min(done, total), total)
            return self.needed_bytes(point)

        return needed_bytes

    def check_point(self, point: int) -> int:
        """Return the number of a point counted from 0; negative ones count from the end.

        Raises:
            InputError: there is no such point.
        """
        if not isinstance(point, Integral) or not -len(self) <= point < len(self):
            raise InputError(f"the frontier has no point {short(point)}; its {len(self)} points are numbered from 0")
        return int(point) % len(self)

    def table(self, chosen: int | None = None, with_peaks: bool = True) -> str:
        """Return the points as a table of text, numbered.

        Memory per device is the peak, the paper's sum is Equation (1).

        A long frontier is thinned; its ends, its turning point and the chosen point stay.

        Args:
            chosen: the number of a point to mark.
            with_peaks: show the peak of each row, as far as it is known. If False, peaks that weren't counted with the
                search are not counted for this, but for the chosen point's.
        """
        turning = self.turning_number
        overlaps, gaps = bool(self.costs.overlap_ns.any()), self.gaps
        is_cut = any(self.passes(number).stages > 1 for number in range(len(self)))
        is_known = with_peaks or self.all_peaks is not None
        with_peak = set(self.known_peaks) if is_known else {chosen} & set(self.known_peaks)
        rows = []
        shown = thinned(len(self), {turning, *({chosen} if chosen is not None else ())})
        for number in shown:
            point = self.points[number]
            marks = [text for at, text in ((turning, "turning point"), (chosen, "chosen")) if at == number]
            values = [point.time_us, point.compute_time_us, point.network_time_us, *([point.overlap_time_us] * overlaps)]
            times = [f"{value:,.1f}" for value in values]
            peak_bytes = self.peak_bytes(number) if number in with_peak else None
            peak = "" if peak_bytes is None else memory_text(peak_bytes)
            passes = self.passes(number)
            stages = [str(passes.stages), str(passes.micro_batches), f"{passes.idle_share:.0%}"] * is_cut
            gap = [] if gaps is None else [f"{gaps[number]:.1%}"]
            rows.append([str(number + 1), *stages, memory_text(point.sum_bytes), peak, *times, *gap, ", ".join(marks)])
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

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return bundle(self)

    def __repr__(self) -> str:
        return f"{self.summary()}\n{self.table()}"
