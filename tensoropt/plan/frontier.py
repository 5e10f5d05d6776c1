"""What a user keeps and asks again: all Pareto-minimal points of a model, each of which becomes a plan when it is asked for.

The questions are the same for a frontier that was just searched (:class:`.find_frontier.ModelFrontier`) and for one that a
file held (:class:`.frontier_file.SavedFrontier`), and mean the same whichever two costs were searched
(:mod:`..search.problem.objectives`).
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from typing import TYPE_CHECKING, overload

import numpy as np
from tabulate import tabulate

from ..common.errors import InputError, short
from ..common.files import write_atomically
from ..common.memory_units import memory_text, parse_memory
from ..common.progress import Progress
from ..search.problem.objectives import MEMORY_TIME, Costs, Objectives
from .first_fit import ALL_AT_ONCE, first_that_fits, least_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ..ft import Frontier
    from ..program.liveness import Peak
    from ..reschedule.mesh import Mesh
    from .plan import Plan

MAX_ROWS = 16
PICTURE_DPI = 150


@dataclass(frozen=True, slots=True)
class FrontierPoint:
    """Costs of one plan: memory per device, time of a training step; ``exact`` if no plan beats it in both objectives.

    The step takes ``compute_time_us + network_time_us - hidden_time_us``: the last is what runs at the same time.
    """

    memory_bytes: int
    time_us: float
    compute_time_us: float
    network_time_us: float
    hidden_time_us: float
    exact: bool


class PlanFrontier(ABC):
    """Points by ascending first and descending second objective, numbered from 0, with a plan for each.

    Attributes:
        found: the points as arrays of integers, and what is proven about them: its ``mem_bytes`` are the first objective,
            its ``time_ns`` the second.
        objectives: which these are, ``("memory", "time")`` by default.
    """

    found: Frontier
    objectives: Objectives

    @property
    @abstractmethod
    def mesh(self) -> Mesh:
        """The devices."""

    @property
    @abstractmethod
    def hardware_name(self) -> str:
        """What the costs are for."""

    @property
    @abstractmethod
    def costs(self) -> Costs:
        """What all points cost, whatever the objectives."""

    @abstractmethod
    def summary(self) -> str:
        """One line: how large the search was and how it went."""

    @abstractmethod
    def plan(self, point: int, option: str = "point") -> Plan:
        """The plan of a point; ``option`` is what it records of why it was chosen.

        Raises:
            InputError: there is no such point.
        """

    def peak(self, point: int) -> Peak | None:
        """The most memory that is alive at once on a device under a point's plan; None where the model isn't at hand."""
        return None

    def peak_bytes(self, point: int) -> int | None:
        """Of :meth:`peak` the amount; None where it isn't known and can't be worked out."""
        peak = self.peak(point)
        return None if peak is None else peak.n_bytes

    @property
    def known_peaks(self) -> Sequence[int]:
        """The points whose peak can be told; none where a file has none of them."""
        return range(len(self))

    @abstractmethod
    def save(self, file: str | os.PathLike[str], progress: Progress | None = None) -> None:
        """Write all points with their plans, for ``tensoropt.load_frontier``; a file that is there stays whole until then.

        Args:
            progress: is told (stage, done, total) now and then.

        Raises:
            InputError: the file can't be written.
        """

    @cached_property
    def points(self) -> tuple[FrontierPoint, ...]:
        """All points, by ascending first objective."""
        costs = self.costs
        columns = (costs.mem_bytes, costs.time_ns, costs.compute_ns, costs.network_ns, costs.hidden_ns)
        rows = zip(*(each.tolist() for each in columns), self.found.exact_points.tolist(), strict=True)
        return tuple(
            FrontierPoint(mem_bytes, time_ns / 1e3, compute_ns / 1e3, network_ns / 1e3, hidden_ns / 1e3, exact)
            for mem_bytes, time_ns, compute_ns, network_ns, hidden_ns, exact in rows
        )

    def __len__(self) -> int:
        return len(self.found)

    def __iter__(self) -> Iterator[FrontierPoint]:
        return iter(self.points)

    def at(self, memory: int | float | str | None = None) -> Plan:
        """The plan of least time within a limit per device: bytes, ``'16GB'`` or ``'15GiB'``; None is no limit.

        What must be within the limit is the peak of a step, see :meth:`needed_bytes`.

        Raises:
            InputError: that isn't an amount of memory, or nothing fits; the message gives the least that does.
        """
        if memory is None:
            return self.fastest()
        limit = parse_memory(memory)
        point = self.fastest_within(limit)
        if point is None:
            least, n_devices = self.needed_bytes(self.least_point()), self.mesh.n_devices
            raise InputError(
                f"no plan of this frontier fits {limit:,} bytes ({memory_text(limit)}) per device: the least on {n_devices} "
                f"device{'s' * (n_devices > 1)} is {least:,} bytes ({memory_text(least)}) per device; ask for "
                f"memory={least} or more, or search on more devices"
            )
        return self.plan(point, "mini_time")

    def fastest(self) -> Plan:
        """The plan of least time."""
        return self.plan(self.fastest_within(None), "mini_time")

    def smallest(self) -> Plan:
        """The plan of least memory, as the frontier counts it."""
        costs = self.costs
        return self.plan(int(np.lexsort((costs.time_ns, costs.mem_bytes))[0]), "smallest")

    def turning_point(self) -> Plan:
        """The plan up to which memory, the first objective, buys much time, the second, and beyond which it buys little."""
        return self.plan(self.found.turning_point(), "turning_point")

    def needed_bytes(self, point: int) -> int:
        """What a device needs for a point's plan, by which limits go: its peak; its memory where no peak is known."""
        peak_bytes = self.peak_bytes(point)
        return int(self.costs.mem_bytes[point]) if peak_bytes is None else peak_bytes

    @overload
    def fastest_within(self, limit_bytes: None, progress: Progress | None = None) -> int: ...

    @overload
    def fastest_within(self, limit_bytes: int | None, progress: Progress | None = None) -> int | None: ...

    def fastest_within(self, limit_bytes: int | None, progress: Progress | None = None) -> int | None:
        """The number of the point of least time that fits, of several that of least memory; None if nothing does.

        Of a long frontier not all points are looked at, see :mod:`.first_fit`.

        Args:
            limit_bytes: per device; None without a limit.
            progress: is told (``peaks``, done, total) now and then.
        """
        points = self._by_time
        if limit_bytes is None:
            return points[0]
        limit, needed_bytes = limit_bytes, self._told(progress, len(points))
        found = first_that_fits(self._comparable(points), lambda point: needed_bytes(point) <= limit)
        if found is not None:
            return found
        # Of a long frontier the least is looked for on a finer grid: a limit that a refusal names must do.
        least = self.least_point(progress)
        return least if self.needed_bytes(least) <= limit else None

    def least_point(self, progress: Progress | None = None) -> int:
        """The number of the point that needs the least, of those that were looked at (:mod:`.first_fit`).

        Args:
            progress: as of :meth:`fastest_within`.
        """
        points = self._comparable(self._by_time[::-1])
        return least_of(points, self._told(progress, len(points)))

    @property
    def least_mem_bytes(self) -> int:
        """The least memory per device of all points, as the frontier counts it."""
        return int(self.costs.mem_bytes.min())

    @cached_property
    def _by_time(self) -> list[int]:
        costs = self.costs
        ordered: list[int] = np.lexsort((costs.mem_bytes, costs.time_ns)).tolist()
        return ordered

    def _comparable(self, points: Sequence[int]) -> list[int]:
        """Those with a peak; all of them, to be compared by memory, where there is none."""
        known = set(self.known_peaks)
        return [point for point in points if point in known] or list(points)

    def _told(self, progress: Progress | None, n_points: int) -> Callable[[int], int]:
        """:meth:`needed_bytes`, of which progress is told."""
        total, done = min(n_points, ALL_AT_ONCE), 0

        def needed_bytes(point: int) -> int:
            nonlocal done
            done += 1
            if progress is not None:
                progress("peaks", min(done, total), total)
            return self.needed_bytes(point)

        return needed_bytes

    def check_point(self, point: int) -> int:
        """The number of a point, from 0; negative ones count from the end.

        Raises:
            InputError: there is no such point.
        """
        if not isinstance(point, Integral) or not -len(self) <= point < len(self):
            raise InputError(f"the frontier has no point {short(point)}; its {len(self)} points are numbered from 0")
        return int(point) % len(self)

    def table(self, chosen: int | None = None, with_peaks: bool = True) -> str:
        """The points as text, numbered, a chosen one marked; a long frontier is thinned, ends and turning point stay.

        Args:
            with_peaks: tell the peak of each row, as far as it is known, and not of the chosen one alone.
        """
        turning = self.found.turning_point()
        overlaps = bool(self.costs.hidden_ns.any())
        told = set(self.known_peaks) if with_peaks else {chosen} & set(self.known_peaks)
        rows = []
        shown = _thinned(len(self), {turning, *({chosen} if chosen is not None else ())})
        for number in shown:
            point = self.points[number]
            marks = [text for at, text in ((turning, "turning point"), (chosen, "chosen")) if at == number]
            values = [point.time_us, point.compute_time_us, point.network_time_us, *([point.hidden_time_us] * overlaps)]
            times = [f"{value:,.1f}" for value in values]
            peak_bytes = self.peak_bytes(number) if number in told else None
            peak = "" if peak_bytes is None else memory_text(peak_bytes)
            rows.append([str(number + 1), memory_text(point.memory_bytes), peak, *times, ", ".join(marks)])
        hidden = ["of it hidden (us)"] * overlaps
        headers = ["point", "memory per device", "peak", "time (us)", "compute (us)", "network (us)", *hidden, ""]
        alignment = (*("right",) * (len(headers) - 1), "left")
        text: str = tabulate(rows, headers, tablefmt="simple", disable_numparse=True, colalign=alignment)
        return text if len(shown) == len(self) else f"{text}\n{len(shown)} of {len(self)} points"

    def plot(
        self, path: str | os.PathLike[str] | None = None, axes: Axes | None = None, chosen: int | None = None
    ) -> Axes:
        """Draw time against memory, with compute and network time dotted as in the paper's Figure 6; needs Matplotlib.

        Of another pair of objectives, the second against the first and nothing else.

        Args:
            path: write the picture too; the suffix says how.
            axes: draw there; by default in a new figure.
            chosen: a point to mark.

        Raises:
            InputError: there is no Matplotlib, or the picture can't be written.
        """
        axes = axes if axes is not None else _new_axes(to_show=path is None)
        costs = self.costs
        drawn = {
            "memory": ("memory per device (MB)", costs.mem_bytes / 1e6),
            "time": ("time per step (ms)", costs.time_ns / 1e6),
            "network": ("network time per step (ms)", costs.network_ns / 1e6),
        }
        (x_label, x), (y_label, y) = (drawn[name] for name in self.objectives)
        (line,) = axes.plot(x, y, drawstyle="steps-post", label=y_label.removesuffix(" (ms)"))
        axes.plot(x, y, ".", color=line.get_color())
        if self.objectives == MEMORY_TIME:
            axes.plot(x, costs.compute_ns / 1e6, ":", color="tab:green", label="compute")
            axes.plot(x, costs.network_ns / 1e6, ":", color="tab:red", label="network")
        turning = self.found.turning_point()
        axes.plot(x[turning], y[turning], "o", color="black", fillstyle="none", label="turning point")
        if chosen is not None:
            axes.plot(x[chosen], y[chosen], "*", color="black", label="chosen")
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
        axes.set_ylim(bottom=0)
        axes.set_title(f"{self.mesh.n_devices} devices of {self.hardware_name}")
        axes.legend()
        if path is not None:
            _save_picture(axes, path)
        return axes

    def __repr__(self) -> str:
        return f"{self.summary()}\n{self.table()}"


def _new_axes(to_show: bool) -> Axes:
    """Of a new figure: pyplot's, which ``show`` shows, or one that nobody has to close."""
    try:
        if to_show:
            from matplotlib import pyplot

            return pyplot.subplots()[1]
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError("a plot needs Matplotlib; install it: pip install matplotlib") from error
    return Figure(layout="constrained").subplots()


def _save_picture(axes: Axes, path: str | os.PathLike[str]) -> None:
    try:
        write_atomically(path, lambda partial: axes.figure.canvas.print_figure(partial, dpi=PICTURE_DPI), "picture")
    except ValueError as error:
        raise InputError(f"picture '{os.fspath(path)}' can't be drawn: {error}") from error


def _thinned(n_points: int, always: set[int]) -> list[int]:
    if n_points <= 2 * MAX_ROWS:
        return list(range(n_points))
    spread = {round(i * (n_points - 1) / (MAX_ROWS - 1)) for i in range(MAX_ROWS)}
    return sorted(spread | always)
