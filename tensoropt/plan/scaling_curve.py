"""The profiling curve: the least time per step for each parallelism, as a cluster scheduler or a buyer reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tabulate import tabulate

from ..common.errors import InputError, short
from ..common.files import CURVE
from ..common.memory_units import memory_text
from ..profiling.hardware import Hardware, HardwareError, part_of
from ..report.curve_files import unbeaten
from ..report.pages.notebook import curve_html
from .picture import new_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes


FORMAT, VERSION = CURVE


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """The answer for one parallelism on one kind of hardware, with one batch.

    Attributes:
        parallelism: the number of devices.
        fits: whether any plan fits within the memory limit.
        peak_bytes: the memory that a device needs: the peak of a step, to which limits apply. If nothing fits, the least
            that would be needed.
        time_us: the least time per step; None if nothing fits.
        samples_per_s: samples per second at that time; None if nothing fits or the batch isn't known.
        exact: whether the frontier that was searched is exact.
        stages: the number of stages of the plan, 1 for none.
        cluster: the name of the hardware.
        machines: the number of machines that the devices are in.
        batch: samples per step; None if no placeholder of the model tells it.
        limit_bytes: the memory limit per device; None without a limit.
        compute_time_us, network_time_us: the parts of the time: in which it computes, and in which it only communicates or
            waits.
        price_per_hour: what all the devices cost for an hour; None if that isn't known.
        watts: the power that all the devices take; None if that isn't known.
        ends: the peak in bytes and the time of plans, from the one of least memory to the fastest; the fastest
            with MORE memory than the limit among them.
    """

    parallelism: int
    fits: bool
    peak_bytes: int
    time_us: float | None
    samples_per_s: float | None
    exact: bool
    stages: int = 1
    cluster: str = ""
    machines: int = 1
    batch: int | None = None
    limit_bytes: int | None = None
    compute_time_us: float | None = None
    network_time_us: float | None = None
    price_per_hour: float | None = None
    watts: float | None = None
    ends: tuple[tuple[int, float], ...] = ()

    @property
    def price_per_million(self) -> float | None:
        """The price of a million samples; None if it isn't known."""
        return self._per_million(self.price_per_hour)

    @property
    def kwh_per_million(self) -> float | None:
        """The energy of a million samples in kilowatt-hours; None if it isn't known."""
        return self._per_million(self.watts and self.watts / 1e3)

    def _per_million(self, per_hour: float | None) -> float | None:
        return per_hour / 3600 * 1e6 / self.samples_per_s if per_hour is not None and self.samples_per_s else None


@dataclass(frozen=True)
class Curve:
    """The least time per step against the number of devices; :func:`tensoropt.find_strategy` has an example.

    Attributes:
        points: one per parallelism, kind of hardware and batch.
        assumed: the hardware, the provenance of costs, the TensorFlow version; of the first point.
        bases: by the name of the hardware, what the times of operators rest on.
    """

    points: tuple[CurvePoint, ...]
    assumed: Mapping[str, Any] = field(default_factory=dict)
    bases: Mapping[str, str] = field(default_factory=dict)

    @property
    def cluster(self) -> str:
        """The names of the hardware, separated by commas."""
        return ",".join(dict.fromkeys(point.cluster for point in self.points if point.cluster))

    def table(self) -> str:
        """Return the curve as a table of text."""
        points = self.points
        columns: dict[str, list[Any]] = {
            "cluster": [point.cluster for point in points],
            "devices": [point.parallelism for point in points],
            "batch": [point.batch for point in points],
            "memory per device": [memory_text(point.peak_bytes) for point in points],
            "time (us)": ["does not fit" if point.time_us is None else f"{point.time_us:,.0f}" for point in points],
            "network (us)": [_number(point.network_time_us) for point in points],
            "samples/s": [_number(point.samples_per_s) for point in points],
            "speedup": [self._speedup(point) for point in points],
            "stages": [point.stages for point in points],
            "price of 10^6 samples": ["" if p.price_per_million is None else f"{p.price_per_million:.3g}" for p in points],
            "kWh of 10^6 samples": ["" if p.kwh_per_million is None else f"{p.kwh_per_million:.3g}" for p in points],
        }
        defaults: dict[str, list[Any]] = {name: columns[name][:1] for name in ("cluster", "batch")}
        defaults |= {"stages": [1], "price of 10^6 samples": [""], "kWh of 10^6 samples": [""]}
        columns_shown = {name: cells for name, cells in columns.items() if set(cells) != set(defaults.get(name, ()))}
        align = ("right",) * len(columns_shown)
        text = tabulate(columns_shown, list(columns_shown), tablefmt="simple", disable_numparse=True, colalign=align)
        if len(set(self.bases.values())) < 2:
            return text
        descriptions = "; ".join(f"{name} is {basis}" for name, basis in self.bases.items())
        return f"{text}\n\nnote: kinds whose times rest on different data are compared roughly: {descriptions}"

    def of_time_and_cost(self) -> Curve:
        """Return the points that no other beats in both the time and the price of a sample, by ascending time.

        Raises:
            InputError: the hardware of no point that fits has a price.
        """
        numbers = unbeaten(self.to_json()["curve"])
        if not numbers:
            reason = "time,cost compares prices, and no point that fits has one"
            raise InputError(f"{reason}; add price_per_hour to the hardware's file (docs/how-to/sizing.md)")
        return replace(self, points=tuple(self.points[number] for number in numbers))

    def _speedup(self, point: CurvePoint) -> str:
        """Return the speedup in samples per second over the first point at which something fits, as text."""
        first = next((p for p in self.points if p.time_us is not None), None)
        if first is None or first.time_us is None or point.time_us is None:
            return ""
        return f"{first.time_us / point.time_us * ((point.batch or 1) / (first.batch or 1)):.2f}"

    def to_json(self) -> dict[str, Any]:
        """Return the curve as a JSON value, of the format ``FORMAT`` in version ``VERSION``."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "cluster": self.cluster,
            "assumed": dict(self.assumed),
            "bases": dict(self.bases),
            "curve": [asdict(point) for point in self.points],
        }

    def plot(self, axes: Axes | None = None) -> Axes:
        """Draw time per step against devices, with perfect scaling dotted; needs Matplotlib.

        Raises:
            InputError: there is no Matplotlib.
        """
        axes = axes if axes is not None else new_axes(is_shown=True)
        lines: dict[str, list[CurvePoint]] = {}
        is_weak = len({point.batch for point in self.points}) > 1
        for point in self.points:
            if point.time_us is not None:
                per_device = f", {point.batch / point.parallelism:g} samples per device" if is_weak and point.batch else ""
                lines.setdefault(point.cluster.partition("-")[0] + per_device, []).append(point)
        for name, line in lines.items():
            counts, times_ms = [p.parallelism for p in line], [p.time_us / 1e3 for p in line if p.time_us is not None]
            axes.plot(counts, times_ms, marker="o", label=name)
            ideal = [times_ms[0] if is_weak else times_ms[0] * counts[0] / count for count in counts]
            axes.plot(counts, ideal, linestyle=":", color="gray", label="perfect scaling" if len(lines) == 1 else None)
        if lines:
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            counts = sorted({point.parallelism for line in lines.values() for point in line})
            axes.set_xticks(counts, [str(count) for count in counts])
            axes.legend()
        axes.set_xlabel("devices")
        axes.set_ylabel("time per step (ms)")
        axes.set_title(self.cluster)
        return axes

    def _repr_html_(self) -> str:
        return curve_html(self.cluster, self.points)

    def __repr__(self) -> str:
        return self.table()


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def configurations(clusters: Sequence[Hardware], parallelism: Sequence[int | str] | None) -> list[tuple[Hardware, int]]:
    """Return the hardware and the number of devices of each point of a curve.

    Args:
        parallelism: numbers of devices, or machines x devices of each such as ``'2x4'``; of several kinds of hardware, what
            one doesn't have is left out for it. None stands for all that each has.

    Raises:
        InputError: none of the hardware has so many devices, or it is no such number.
    """
    if parallelism is None:
        return [(hardware, count) for hardware in clusters for count in hardware.parallelisms()]
    options = {count: [_configuration(hardware, count) for hardware in clusters] for count in dict.fromkeys(parallelism)}
    for results in options.values():
        if all(isinstance(result, Exception) for result in results):
            raise InputError(str(results[0]))
    pairs = [result for row in zip(*options.values(), strict=True) for result in row if not isinstance(result, Exception)]
    return list({(hardware.name, hardware.price_per_hour, count): (hardware, count) for hardware, count in pairs}.values())


def _configuration(hardware: Hardware, parallelism: int | str) -> tuple[Hardware, int] | Exception:
    """Return the hardware and the number of devices that a parallelism stands for, or why it can't be had."""
    try:
        if not isinstance(parallelism, str):
            hardware.mesh(parallelism)
            return hardware, parallelism
        counts = parallelism.split("x")
        if len(counts) == 2 and all(text.isdecimal() and int(text) for text in counts):
            machines, devices = map(int, counts)
            part = part_of(hardware, machines, devices)
            is_own = machines == 1 or devices == hardware.levels[-1].count  # what was measured on all of it holds there, too
            return hardware if is_own else part, machines * devices
    except HardwareError as error:
        return error
    sizes = [int(text) for text in parallelism.split("+") if text.isdecimal()]
    hint = (
        f"; all machines have as many: nearest is {len(sizes)}x{max(1, sum(sizes) // len(sizes))}" if sizes[1:] else ""
    )
    return InputError(
        f"parallelism is a number of devices such as 8, or machines x devices such as 2x4, got {short(parallelism)}{hint}"
    )
