"""The profiling curve: the least time per step for each parallelism, as a cluster scheduler or a buyer reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tabulate import tabulate

from ..common.formats import CURVE
from ..common.memory_units import memory_text
from ..report.notebook import bundle, curve_html
from .picture import new_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMAT, VERSION = CURVE


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """The answer for one parallelism.

    Attributes:
        parallelism: the number of devices.
        fits: whether any plan fits within the memory limit.
        memory_bytes: the memory that a device needs: the peak of a step, to which limits apply. If nothing fits, the least
            that would be needed.
        time_us: the least time per step; None if nothing fits.
        samples_per_s: samples per second at that time; None if nothing fits or the batch isn't known.
        exact: whether the frontier that was searched is exact.
        stages: the number of stages of the plan, 1 for none.
    """

    parallelism: int
    fits: bool
    memory_bytes: int
    time_us: float | None
    samples_per_s: float | None
    exact: bool
    stages: int = 1


@dataclass(frozen=True)
class Curve:
    """The least time per step against the number of devices.

    Attributes:
        points: one per parallelism.
        cluster: the name of the hardware.
        batch: samples per step; None if no placeholder of the model tells it.
        memory_limit_bytes: the memory limit per device; None without a limit.
        assumed: the hardware, the provenance of costs, the TensorFlow version.
    """

    points: tuple[CurvePoint, ...]
    cluster: str
    batch: int | None
    memory_limit_bytes: int | None
    assumed: Mapping[str, Any] = field(default_factory=dict)

    def table(self) -> str:
        """Return the curve as a table of text."""
        rows = [
            [
                point.parallelism,
                memory_text(point.memory_bytes),
                "does not fit" if point.time_us is None else f"{point.time_us:,.0f}",
                "" if point.samples_per_s is None else f"{point.samples_per_s:,.0f}",
                self._speedup(point),
                *([str(point.stages)] if self._has_stages else []),
            ]
            for point in self.points
        ]
        headers = ["devices", "memory per device", "time (us)", "samples/s", "speedup", *(["stages"] * self._has_stages)]
        return tabulate(rows, headers, tablefmt="simple", disable_numparse=True, colalign=("right",) * len(headers))

    @property
    def _has_stages(self) -> bool:
        return any(point.stages > 1 for point in self.points)

    def _speedup(self, point: CurvePoint) -> str:
        """Return the speedup over the first parallelism on which something fits, as text."""
        first = next((p for p in self.points if p.time_us is not None), None)
        if first is None or first.time_us is None or point.time_us is None:
            return ""
        return f"{first.time_us / point.time_us:.2f}"

    def to_json(self) -> dict[str, Any]:
        """Return the curve as a JSON value, of the format ``FORMAT`` in version ``VERSION``."""
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
                    **({"stages": point.stages} if point.stages > 1 else {}),
                }
                for point in self.points
            ],
        }

    def plot(self, axes: Axes | None = None) -> Axes:
        """Draw time per step against devices, with perfect scaling dotted; needs Matplotlib.

        Raises:
            InputError: there is no Matplotlib.
        """
        axes = axes if axes is not None else new_axes(to_show=True)
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

    def _repr_html_(self) -> str:
        return curve_html(self.cluster, self.points)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return bundle(self)

    def __repr__(self) -> str:
        return self.table()
