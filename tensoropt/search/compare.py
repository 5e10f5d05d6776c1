"""Compare a model's frontier with the plans that baselines choose, on the same hardware and under the same costs.

A point's distance *above* the frontier is how much slower it is than the frontier's fastest point that needs no more memory:
at the peak, as limits do, where all peaks are counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np
from tabulate import tabulate

from ..common.memory_units import memory_text
from ..common.process.progress import Progress, under
from ..ft import InfeasibleError
from ..plan.plan import Plan
from .algorithms import BASELINES
from .algorithms import SPACES as BASELINE_SPACES
from .candidates.plan_points import frontier_of_whole
from .frontiers.find_frontier import find_baseline
from .frontiers.model_frontier import ModelFrontier
from .problem.config_space import FULL, described

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ..ft import Frontier

FORMAT, VERSION = "tensoropt/compare", 2
# The picture spans this many times the frontier's memory and time. Points beyond are named in the legend instead, so that
# the others can be told apart.
FARTHEST = 2.5
# Per baseline, in order and from the first again: a marker, its size, and a colour.
MARKERS = (
    ("s", 11, "tab:orange"),
    ("D", 8, "tab:purple"),
    ("*", 14, "tab:brown"),
    ("v", 9, "tab:pink"),
    ("+", 8, "tab:olive"),
)


@dataclass(frozen=True)
class Comparison:
    """A model's frontier and the results of baselines.

    Attributes:
        baselines: the points that each baseline found, by its name.
        limit_bytes: the memory limit per device; None without a limit.
        failed: why others found nothing, by name.
        in_stages: by their names in the table, the fastest plan in the stages in which the model places its operators, and
            the one that a search takes unasked.
    """

    frontier: ModelFrontier
    baselines: dict[str, ModelFrontier]
    limit_bytes: int | None = None
    failed: Mapping[str, str] = field(default_factory=dict)
    in_stages: Mapping[str, Plan] = field(default_factory=dict)

    def all(self) -> dict[str, ModelFrontier]:
        """Return the frontier and all baselines by the name of their algorithm, the frontier first."""
        return {self.frontier.found.algorithm: self.frontier, **self.baselines}

    def table(self) -> str:
        """Return a table as text with one row per point.

        An algorithm with several points has rows for the least memory, the turning point and the fastest; the frontier also
        for the fastest that fits.
        """
        rows = []
        for name, frontier in self.all().items():
            seconds = f"{sum(frontier.seconds_by_phase.values()):.2f}"
            for point, mark in self._shown(frontier):
                costs = frontier.points[point]
                simulated = self.simulated_us(frontier, point)
                simulated_text = "" if simulated is None else f"{simulated:,.1f}"
                times = [f"{value:,.1f}" for value in (costs.time_us, costs.compute_time_us, costs.network_time_us)]
                times.insert(1, simulated_text)
                is_within = self.limit_bytes is None or frontier.peak_bytes(point) <= self.limit_bytes
                excess_text = "" if frontier is self.frontier else self._above_text(frontier, point)
                marks = ", ".join([*([mark] if mark else []), *([] if is_within else ["does not fit"])])
                memory = memory_text(costs.sum_bytes), memory_text(frontier.peak_bytes(point))
                rows.append([name, *memory, *times, excess_text, seconds, marks])
                name = seconds = ""
        rows += [self._plan_row(name, plan) for name, plan in self.in_stages.items()]
        times = [f"{kind} (us)" for kind in ("time", "simulated", "compute", "network")]
        headers = ["algorithm", "paper's sum", "memory per device", *times, "above", "seconds", ""]
        align = ("left", *("right",) * 8, "left")
        return tabulate(rows, headers, tablefmt="simple", disable_numparse=True, colalign=align)

    def _plan_row(self, name: str, plan: Plan) -> list[str]:
        """Return the table's row of a plan in stages."""
        is_within = self.limit_bytes is None or plan.needed_bytes <= self.limit_bytes
        excess = self._above_frontier(plan)
        text = "less memory" if excess is None else f"{excess:+.2%}"
        devices = "+".join(str(len(submesh)) for submesh in plan.submeshes)
        marks = f"{len(plan.stages)} stages on {devices} devices{'' if is_within else ', does not fit'}"
        return [name, "", memory_text(plan.needed_bytes), f"{plan.time_us:,.1f}", "", "", "", text, "", marks]

    def _above_frontier(self, plan: Plan) -> float | None:
        """Return the fraction by which a plan is slower than the frontier; see :meth:`above`."""
        points = self.points_of(self.frontier)
        index = points.at(plan.needed_bytes)
        return None if index is None else plan.time_us * 1e3 / int(points.time_ns[index]) - 1.0

    def simulated_us(self, frontier: ModelFrontier, point: int) -> float | None:
        """Return the simulated time of a point that the table shows; None for others, and where it can't be simulated."""
        if point not in {number for number, _ in self._shown(frontier)} or frontier.model.graph.is_sequential:
            return None
        return frontier.simulated_ns(point) / 1e3

    def _above_text(self, frontier: ModelFrontier, point: int) -> str:
        """Return how far a point is above the frontier, as text."""
        excess = self.above(frontier)[point]
        if excess is None:
            return "less memory"
        if excess == 0:
            mem, points = int(self.points_of(frontier).mem_bytes[point]), self.points_of(self.frontier)
            excess_bytes = mem / int(points.mem_bytes[points.at(mem)]) - 1
            return f"{excess_bytes:+.2%} memory" if excess_bytes else "on it"
        return f"{excess:+.2%}" if abs(excess) < 10 else f"{excess + 1:,.0f} times"

    def notes(self) -> list[str]:
        """Return notes on the rows, a sentence each: a baseline's own note, or why its points are below the frontier."""
        notes = [f"{name}: {frontier.note}" for name, frontier in self.baselines.items() if frontier.note]
        return [*(f"{name}: {reason}" for name, reason in self.failed.items()), *notes, *self.notes_below()]

    def notes_below(self) -> list[str]:
        """Return why points of baselines are below the frontier, a sentence for each baseline that has such points."""
        beaten = ((name, frontier) for name, frontier in self.baselines.items() if self.is_below(frontier).any())
        return [f"{name}: {self._why_below(frontier)}" for name, frontier in beaten]

    def above(self, frontier: ModelFrontier) -> list[float | None]:
        """Return for each point the fraction by which it is slower than the frontier's fastest point of no more memory.

        Negative where it is faster; None where the frontier has no point of so little memory.
        """
        reference, compared = self.points_of(self.frontier), self.points_of(frontier)
        points = [reference.at(mem) for mem in compared.mem_bytes.tolist()]
        return [
            None if index is None else time_ns / int(reference.time_ns[index]) - 1.0
            for index, time_ns in zip(points, compared.time_ns.tolist(), strict=True)
        ]

    def points_of(self, frontier: ModelFrontier) -> Frontier:
        """Return the points of the frontier or of a baseline by peak memory, or by memory where that isn't their order.

        What is proven of them is that of the search, which goes by memory.
        """
        peaks = frontier.all_peaks if self._goes_by_peak else None
        return frontier.found if peaks is None else replace(frontier.found, mem_bytes=peaks)

    @property
    def _goes_by_peak(self) -> bool:
        """Return whether all points, of the baselines too, are in order by peak."""
        return all(frontier.all_peaks is not None for frontier in self.all().values())

    def is_below(self, frontier: ModelFrontier) -> np.ndarray:
        """Return for each point whether no point of the frontier is as good in both costs: bool[P]."""
        return np.array([excess is None or excess < 0 for excess in self.above(frontier)], bool)

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as a JSON value, of the format ``FORMAT`` in version ``VERSION``."""
        points, proven = self.points_of(self.frontier), self.frontier.certified
        return {
            "format": FORMAT,
            "version": VERSION,
            "cluster": self.frontier.hardware.name,
            "devices": self.frontier.mesh.n_devices,
            "memory_limit_bytes": self.limit_bytes,
            "exact": proven.exact,
            "gap": {"median": proven.median_gap, "worst": proven.worst_gap},
            "turning_point": points.turning_point(),
            "algorithms": [self._algorithm_json(name, frontier) for name, frontier in self.all().items()],
            "notes": self.notes(),
        } | {
            name: {
                "stages": [{"devices": list(stage.devices), "last_operator": stage.last_operator} for stage in plan.stages],
                "peak_bytes": plan.needed_bytes,
                "time_us": plan.time_us,
                "above": self._above_frontier(plan),
                "fits": self.limit_bytes is None or plan.needed_bytes <= self.limit_bytes,
            }
            for name, plan in self.in_stages.items()
        }

    def _algorithm_json(self, name: str, frontier: ModelFrontier) -> dict[str, Any]:
        """Return the JSON value of the frontier or a baseline, with all its points."""
        space = frontier.built.space
        points = [
            {
                "sum_bytes": point.sum_bytes,
                "peak_bytes": frontier.peak_bytes(number),
                "time_us": point.time_us,
                "simulated_us": self.simulated_us(frontier, number),
                "compute_time_us": point.compute_time_us,
                "network_time_us": point.network_time_us,
                "above": excess,
                "fits": self.limit_bytes is None or frontier.peak_bytes(number) <= self.limit_bytes,
            }
            for number, (point, excess) in enumerate(zip(frontier.points, self.above(frontier), strict=True))
        ]
        return {
            "algorithm": name,
            "space": BASELINE_SPACES.get(space) or described(space),
            "seconds": sum(frontier.seconds_by_phase.values()),
            "points": points,
        }

    def _shown(self, frontier: ModelFrontier) -> list[tuple[int, str]]:
        """Return the points that the table shows, with a mark for each."""
        points = self.points_of(frontier)
        if len(points) == 1:
            return [(0, "")]
        marks = {points.smallest(): "least memory", points.fastest(): "fastest"}
        marks.setdefault(points.turning_point(), "turning point")
        if frontier is self.frontier and self.limit_bytes is not None:
            fastest_that_fits = points.at(self.limit_bytes)
            if fastest_that_fits is not None:
                marks.setdefault(fastest_that_fits, "fastest that fits")
        return sorted(marks.items())

    def _why_below(self, frontier: ModelFrontier) -> str:
        n_below, certified = int(self.is_below(frontier).sum()), self.frontier.certified
        share = "its point is" if len(frontier) == 1 else f"{n_below} of its {len(frontier)} points are"
        has_all = frontier.built.space == self.frontier.built.space or self.frontier.built.space == FULL
        if self._goes_by_peak and has_all:
            return f"{share} below the frontier, whose points are in one order by memory and by peak"
        if frontier.built.space == self.frontier.built.space:
            return f"{share} below the frontier, which is {certified.certificate}"
        if self.frontier.built.space == FULL:
            return f"{share} below the frontier, which has all of its strategies and is {certified.certificate}"
        inexact = "" if certified.exact else f", or because that is {certified.certificate}"
        return (
            f"{share} below the frontier, since the space that was searched, {self.frontier.built.space}, doesn't have all "
            f"of its strategies (the full one does){inexact}"
        )

    def plot(self, axes: Axes) -> Axes:
        """Draw a picture like the paper's Figure 6.

        It shows the frontier, its compute and network time as dotted lines, and the points or frontiers of the baselines.
        """
        frontier = self.points_of(self.frontier)
        slowest = int(frontier.time_ns[0])
        scale, unit = next(((ns, unit) for ns, unit in ((1e9, "s"), (1e6, "ms")) if slowest >= ns), (1e3, "us"))
        self._plot_frontier(axes, scale)
        width, height = FARTHEST * int(frontier.mem_bytes[-1]), FARTHEST * int(frontier.time_ns[0])
        for (name, baseline), (marker, size, color) in zip(self.baselines.items(), cycle(MARKERS), strict=False):
            points = self.points_of(baseline)
            memory, times = points.mem_bytes / 1e9, points.time_ns / scale
            mask = (points.mem_bytes <= width) & (points.time_ns <= height)
            label = name if mask.any() else f"{name}: beyond, at {memory[0]:,.3g} GB, {times[0]:,.4g} {unit}"
            label += f", on to {memory[-1]:,.3g} GB" if mask.any() and not mask.all() else ""
            line = "--" if len(baseline) > 1 else "none"
            (curve,) = axes.plot(memory[mask], times[mask], marker, linestyle=line, drawstyle="steps-post", color=color)
            # Hollow markers, so that points on top of each other are both seen.
            curve.set(label=label, markersize=size, fillstyle="none", markeredgewidth=2, zorder=4)
        if self.limit_bytes is not None:
            axes.axvline(self.limit_bytes / 1e9, color="gray", linestyle="-.", linewidth=1, label="memory limit")
        axes.set_xlabel("memory per device (GB)")
        axes.set_ylabel(f"time per step ({unit})")
        axes.set_ylim(bottom=0)
        axes.set_title(f"{self.frontier.mesh.n_devices} devices of {self.frontier.hardware.name}")
        axes.grid(alpha=0.25)
        axes.legend(fontsize="small")
        return axes

    def _plot_frontier(self, axes: Axes, scale: float) -> None:
        """Draw the frontier, its compute and its network time; ``scale`` is the nanoseconds per unit of time."""
        points = self.points_of(self.frontier)
        memory, times, compute = points.mem_bytes / 1e9, points.time_ns / scale, self.frontier.costs.compute_ns / scale
        axes.plot(memory, times, color="tab:blue", drawstyle="steps-post", linewidth=2, label="TensorOpt", zorder=3)
        axes.plot(memory, compute, ":", color="tab:red", drawstyle="steps-post", label="its compute")
        axes.plot(memory, times - compute, ":", color="tab:green", drawstyle="steps-post", label="its network")
        point = points.turning_point()
        axes.plot(memory[point], times[point], "ko", fillstyle="none", markersize=10, label="turning point", zorder=5)


def compare(
    frontier: ModelFrontier,
    algorithms: Sequence[str] = BASELINES,
    limit_bytes: int | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Compare a frontier with what baselines choose for its model, on its hardware and under its costs.

    Args:
        limit_bytes: the memory limit per device; None without a limit.
        progress: called with ("algorithm, phase", done, total) now and then.
    """
    baselines, errors = {}, {}
    for name in algorithms:
        report = None if progress is None else under(progress, name)
        try:
            baseline = find_baseline(frontier, name, report)
        except InfeasibleError as error:
            errors[name] = str(error)
            continue
        baselines[name] = baseline.of_least_peaks(report)
    return Comparison(frontier.joined(baselines.values(), progress), baselines, limit_bytes, errors)


def beside_baselines(
    plan: Plan, algorithms: Sequence[str], limit_bytes: int | None, progress: Progress | None = None
) -> tuple[Plan, Comparison]:
    """Compare a plan's frontier with baselines, and return the plan that is chosen where the points that beat others count.

    That is the plan itself where no baseline beats a point of the frontier; else the fastest plan of the joined frontier
    that fits.

    Args:
        plan: the fastest plan of its frontier that fits, or an unsplit one beside its frontier.
        algorithms, limit_bytes, progress: as in :func:`compare`.
    """
    (frontier,) = plan.frontier.without_stages
    comparison = compare(frontier, algorithms, limit_bytes, progress)
    if np.array_equal(comparison.frontier.found.strategies, frontier.found.strategies):
        return plan, replace(comparison, frontier=frontier)
    joint = frontier_of_whole(comparison.frontier, plan.frontier.assumed)
    joint = replace(joint, seconds_by_phase=plan.frontier.seconds_by_phase)
    if plan.point is None:
        return replace(plan, frontier=joint), comparison
    point = joint.fastest_within(limit_bytes)
    assert point is not None, "for each point there is one of no larger peak"
    return joint.plan(point, plan.option), comparison
