"""The profiling curve: the least time per step for each parallelism, which a scheduler or a buyer reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tabulate import tabulate

from ..common.memory_units import memory_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMAT, VERSION = "tensoropt/curve", 1


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """One parallelism; ``memory_bytes`` is what a device needs, the peak of a step, by which limits go.

    Where nothing fits it is the least that would be needed, and there is no time.
    """

    parallelism: int
    fits: bool
    memory_bytes: int
    time_us: float | None
    samples_per_s: float | None
    exact: bool


@dataclass(frozen=True)
class Curve:
    """Least time against parallelism.

    Attributes:
        batch: samples per step, None where the model has no placeholder to tell.
        memory_limit_bytes: per device; None without a limit.
    """

    points: tuple[CurvePoint, ...]
    cluster: str
    batch: int | None
    memory_limit_bytes: int | None
    assumed: Mapping[str, Any] = field(default_factory=dict)

    def table(self) -> str:
        rows = [
            [
                point.parallelism,
                memory_text(point.memory_bytes),
                "does not fit" if point.time_us is None else f"{point.time_us:,.0f}",
                "" if point.samples_per_s is None else f"{point.samples_per_s:,.0f}",
                self._speedup(point),
            ]
            for point in self.points
        ]
        headers = ["devices", "memory per device", "time (us)", "samples/s", "speedup"]
        return tabulate(rows, headers, tablefmt="simple", disable_numparse=True, colalign=("right",) * 5)

    def _speedup(self, point: CurvePoint) -> str:
        first = next((p for p in self.points if p.time_us is not None), None)
        if first is None or first.time_us is None or point.time_us is None:
            return ""
        return f"{first.time_us / point.time_us:.2f}"

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "version": VERSION,
            "cluster": self.cluster,
            "batch": self.batch,
            "memory_limit_bytes": self.memory_limit_bytes,
            "assumed": dict(self.assumed),
            "curve": [
                {
                    "parallelism": point.parallelism,
                    "fits": point.fits,
                    "memory_bytes": point.memory_bytes,
                    "time_us": point.time_us,
                    "samples_per_s": point.samples_per_s,
                    "exact": point.exact,
                }
                for point in self.points
            ],
        }

    def plot(self, axes: Axes | None = None) -> Axes:
        """Draw time per step against devices, with perfect scaling dotted; needs Matplotlib."""
        import matplotlib.pyplot as plt

        if axes is None:
            _, axes = plt.subplots()
        fitting = [point for point in self.points if point.time_us is not None]
        counts = [point.parallelism for point in fitting]
        times_ms = [point.time_us / 1e3 for point in fitting if point.time_us is not None]
        if fitting:
            axes.plot(counts, times_ms, marker="o", label="least time per step")
            ideal = [times_ms[0] * counts[0] / count for count in counts]
            axes.plot(counts, ideal, linestyle=":", color="gray", label="perfect scaling")
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            axes.set_xticks(counts, [str(count) for count in counts])
            axes.legend()
        axes.set_xlabel("devices")
        axes.set_ylabel("time per step (ms)")
        axes.set_title(self.cluster)
        return axes

    def __repr__(self) -> str:
        return self.table()
