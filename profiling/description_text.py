"""Print a hardware description as a short text for people."""

from __future__ import annotations

from tabulate import tabulate

from ..reschedule.layout import axes_text
from .hardware import COMMUNICATING_KINDS, Hardware
from .hardware_costs import CollectiveCosts

_SMALL, _LARGE = 1 << 10, 1 << 22


def hardware_table(hardware: Hardware) -> str:
    """Return the text: device, rates, levels, collectives, and classes of operators.

    For each collective it has the time of 1 KiB and the bytes per second at 4 MiB. For a class of operators the times of
    flops and bytes add up; a rate that no measured operator depended on is left empty.
    """
    device = hardware.device
    rates = ", ".join(f"{dtype} {rate / 1e9:,.0f}" for dtype, rate in device.flops_per_s.items())
    facts = [
        ("hardware", f"{hardware.name}: {hardware.n_devices} x {device.name}, mesh {hardware.mesh()}"),
        ("memory", f"{device.memory_bytes / 1e9:,.2f} GB per device, {device.memory_bytes_per_s / 1e9:,.1f} GB/s"),
        ("GFLOP/s", rates),
        *([("copies", f"{device.copied_bytes_per_s / 1e9:,.1f} GB/s")] if device.copied_bytes_per_s else []),
        ("per operator", f"{device.operator_overhead_us:.1f} us"),
    ]
    levels = [(lv.name, lv.count, lv.latency_us, lv.bytes_per_s / 1e9) for lv in hardware.levels]
    parts = [
        tabulate(facts, tablefmt="plain"),
        tabulate(levels, headers=("level", "count", "latency us", "GB/s"), floatfmt=",.2f"),
    ]
    if hardware.n_devices > 1:
        parts.append(_collectives_table(hardware))
    if hardware.operators:
        parts.append(_operators_table(hardware))
    return "\n\n".join(parts)


def _operators_table(hardware: Hardware) -> str:
    rows = [
        (name, dtype, way, rate.overhead_us, _per_second(rate.us_per_gflop), _per_second(rate.us_per_gb),
         f"{rate.spread:.0%}", rate.samples)
        for name, dtypes in hardware.operators.items()
        for dtype, ways in dtypes.items()
        for way, rate in ways.items()
    ]
    headers = ("operators", "dtype", "way", "overhead us", "GFLOP/s", "GB/s", "error", "measured")
    return tabulate(rows, headers=headers, floatfmt=",.1f")


def _per_second(us_per_giga: float) -> float | None:
    return 1e6 / us_per_giga if us_per_giga else None


def _collectives_table(hardware: Hardware) -> str:
    mesh = hardware.mesh()
    costs = CollectiveCosts(hardware, mesh)
    rows = []
    for first in range(len(mesh.axes)):
        axes = mesh.axes[first:]
        for kind in COMMUNICATING_KINDS:
            small, large = (costs.time_ns(kind, mesh, axes, n_bytes) for n_bytes in (_SMALL, _LARGE))
            origin = costs.source(kind, axes).partition(":")[0]
            rows.append((kind, f"{mesh.size_of(axes)} ({axes_text(axes)})", small / 1e3, _LARGE / large, origin))
    return tabulate(rows, headers=("collective", "group", "1 KiB us", "4 MiB GB/s", "source"), floatfmt=",.2f")
