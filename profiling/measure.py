"""Measure this machine: how fast a device computes, and the time of each collective over each device partition.

More ranks than cores are normal, so compute is measured on all ranks at once, as collectives are
(:mod:`.collective_tables`). Of each quantity a rank takes the lower quartile of its repeats (other work on the machine only
ever adds time, and on a busy machine to most repeats), and the slowest rank counts. All ranks make the same calls in the
same order (:mod:`.measuring_ranks`).

The budget is a request, not a limit: half is for compute, half for collectives, and each half is divided into equal
shares. Each part makes its fewest repeats however long they take. Sizes whose predicted time passes the share are left
out, and the smallest and the largest come first, so that a short budget thins the table instead of cutting it off.

The levels' latency and bandwidth, which meshes of fewer devices need, are fitted to the all-gathers of each level alone:
with the model of ``hardware_costs.py``, ``t = (g-1) a + c n (g-1)/g / B``, through the smallest and the largest size.

Where a device computes on while it communicates, a step takes less than the sum of both. How much less depends on cores
and links: a rank with one core that spins in MPI computes nothing meanwhile; one that sleeps while a link is busy
computes, except for the time in which the system sends and receives. So the overlap is measured as steps have it, in
TensorFlow's own threads, with four functions: products of matrices alone, an all-reduce alone, both together, and
neither. The *exposed share* is the time that the all-reduce adds to the products, over the time that it adds to the
empty function.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ..reschedule.layout import axes_text
from ..reschedule.mesh import Level, Mesh
from .available_memory import available_memory_bytes
from .collective_tables import SHARES, CollectiveTables, Tables, axes_of_level, collective, device_partitions
from .compute import STREAM_BYTES, Action, Call, Chain, time_s
from .hardware import COMMUNICATING_KINDS, CollectiveTable, Device, Hardware, LinkLevel, Origin
from .hardware.rates import NO_RATES
from .hardware_costs import MeasuredCurve
from .measuring_ranks import REPEATS, MeasuringProcess, MeasuringRanks
from .tensorflow_engine import TensorFlowEngine

COPIED = (4096, 256)
"""Rows and columns of float32: rows of 1 KiB are put together from two halves, as where a tensor's last dimension was split.
"""
STREAMS = 2
"""The number of elementwise operators before each copy, since in a step the tensor to copy has just been made.

After one, copies were a seventh faster than in steps; after four a seventh slower; and after a pause of 20 ms between a
seventh and a third slower.
"""
DEVICE_PARTS = 4
"""The parts into which the device's share of the budget is divided: products in two types, memory, copies."""
EXPOSED_PARTS = 8
"""The whole budget over that for the overlap of collectives and compute, which comes on top."""
QUICK_S = 15.0
"""A measurement with a smaller budget in seconds is called quick."""
UNEQUAL = 1.5
"""Ranks whose times differ by a larger factor are reported as different machines."""


@dataclass(frozen=True, slots=True)
class Watching:
    """The callbacks of someone who follows a measurement.

    Attributes:
        progress: is called with the number of tables of collectives that have been measured, and of all.
        keep: is called with what is known so far, as soon as that makes a description: after an interruption the last
            one is left.
    """

    progress: Callable[[int, int], None] = lambda done, total: None
    keep: Callable[[Hardware], None] = lambda hardware: None


def measure(
    levels: Sequence[Level], process: MeasuringProcess | None = None, budget_s: float = 1.0, watching: Watching | None = None
) -> Hardware:
    """Measure the devices of all ranks; every rank must call it, and gets an equal description.

    Args:
        levels: the levels of the mesh that the ranks make, outermost first.
        process: this rank's place among the ranks; without it, one device alone.
        budget_s: about how long it may take, without the start of the engine.

    Raises:
        ValueError: no budget, or several devices without a communicator.
    """
    process = process or MeasuringProcess()
    mesh = Mesh(tuple(levels))
    if not budget_s > 0:
        raise ValueError(f"the budget of a measurement is {budget_s!r} s, expected more than 0")
    if process.communicator is None and mesh.n_devices > 1:
        raise ValueError(f"measuring a mesh of {mesh.n_devices} devices needs their communicator, got none")
    computing = TensorFlowEngine()
    # A GPU computes beside its rank's core.
    per_core = process.ranks_per_core if computing.device_memory_bytes() is None else 1.0
    ranks = MeasuringRanks(process.communicator, mesh, per_core)
    occasion = f"measured {datetime.date.today().isoformat()} on {ranks.count} ranks at once, the slowest counts"
    device, provenance = _measure_device(computing, process, ranks, budget_s / 2, occasion)
    call_us = 0.0
    if process.emitted is None and process.communicator is not None:
        call_us = sum(share * _overhead_us(computing.callbacks(compute), ranks) for compute, share in SHARES.items())
    measuring = CollectiveTables(computing, mesh, process, call_us)
    single = [level.name for level in mesh.levels if level.count == 1]
    unused = f"; {' and '.join(single)}: one unit, so no link is used, and the numbers stand for nothing" if single else ""
    provenance["levels"] = "fitted to the measured all-gathers" + unused

    def described(tables: Tables, is_complete: bool) -> Hardware:
        fitted = tuple(fitted_link(level, index, mesh, tables, device) for index, level in enumerate(mesh.levels))
        date, is_quick = datetime.date.today().isoformat(), budget_s < QUICK_S
        backend = process.collectives, process.is_by_nccl
        origin = Origin(date, computing.tensorflow, computing.threads, is_complete, is_quick, *backend)
        path_us = measuring.path_us
        python = f"with {call_us:.1f} us for the engine's call into Python and {path_us:.1f} us there"
        means = python if process.emitted is None else f"as operators of {process.collectives}"
        provenance["collectives"] = f"{occasion}, all groups at once, among operators, {means}"
        return Hardware(
            name="this machine", device=device, levels=fitted, collectives=tables, provenance=provenance, operators=NO_RATES,
            measured=origin, collective_call_us=call_us, collective_path_us=path_us, exposed_share=exposed_part,
        )

    watching = watching or Watching()
    tables: dict[str, dict[str, CollectiveTable]] = {}
    exposed_part = 1.0
    n_tables = len(device_partitions(mesh)) * len(COMMUNICATING_KINDS)
    for n_done, (kind, axes, table) in enumerate(measuring.each(budget_s / 2), start=1):
        tables.setdefault(kind, {})[axes_text(axes)] = table
        watching.progress(n_done, n_tables)
        if n_done >= sum(level.count > 1 for level in mesh.levels):
            watching.keep(described(tables, is_complete=False))
    if tables:
        exposed_part = _exposed_share(computing, mesh, process, ranks, tables, device, budget_s / EXPOSED_PARTS)
        provenance["exposed_share"] = f"{occasion}: products of matrices beside an all-reduce over all devices"
    # The ranks' numbers agree already; names and dates may differ.
    result: Hardware = process.broadcast(described(tables, is_complete=True))
    return result


def _overhead_us(chain: Chain, ranks: MeasuringRanks) -> float:
    """Return the microseconds of one of the chain's operators.

    The fastest runs count, since a difference of medians would be mostly noise.
    """
    fastest_s = []
    for action in (chain.short, chain.long):
        for _ in range(2):  # an engine's first runs prepare
            action()
        ranks.largest(0.0)
        fastest_s.append(min(time_s(action, ranks.ranks_per_core) for _ in range(REPEATS[1])))
    return ranks.largest(max(0.0, fastest_s[1] - fastest_s[0]) / chain.n_more * 1e6)


def _measure_device(
    engine: TensorFlowEngine, process: MeasuringProcess, ranks: MeasuringRanks, budget_s: float, occasion: str
) -> tuple[Device, dict[str, str]]:
    """Measure the device, on which all ranks agree, and return it with the provenance of its numbers."""
    share_s = budget_s / DEVICE_PARTS
    flops = 2 * engine.gemm_extent**3
    rates = {dtype: flops / ranks.typical_s(engine.gemm(dtype), share_s) for dtype in ("float32", "float64")}
    stream = engine.stream()
    bytes_per_s = 2 * STREAM_BYTES / ranks.typical_s(stream, share_s)
    overhead_us = _overhead_us(engine.operators(), ranks)
    own = engine.device_memory_bytes()
    # Measured on GPUs too, since all ranks must make the same calls; but NumPy's copies aren't a GPU's.
    copied_s = ranks.repeated(share_s, lambda: [stream() for _ in range(STREAMS)], _copying())
    copied_per_s = 4 * COPIED[0] * COPIED[1] / copied_s if own is None else 0.0
    memory_bytes = own if own is not None else available_memory_bytes(process.local_ranks)
    device = Device(
        name=engine.device_name(), memory_bytes=int(ranks.smallest(memory_bytes)), flops_per_s=rates,
        memory_bytes_per_s=bytes_per_s, operator_overhead_us=overhead_us, copied_bytes_per_s=copied_per_s,
    )  # fmt: skip
    free = f"free when measured, over {process.local_ranks} ranks of the machine, the least of all ranks"
    provenance = {
        "memory_bytes": "the device's own" if own is not None else free,
        "flops_per_s": f"{occasion}: {engine.name}, product of square matrices of {engine.gemm_extent} rows",
        "memory_bytes_per_s": f"{occasion}: {engine.name}, {STREAM_BYTES} bytes read and as many written, elementwise",
        "operator_overhead_us": f"{occasion}: {engine.name}, a chain of products of 4 by 4 matrices",
    }
    if copied_per_s:
        provenance["copied_bytes_per_s"] = f"{occasion}: NumPy, rows of {4 * COPIED[1]} bytes put together from two halves"
    if ranks.unequal > UNEQUAL:
        provenance["ranks"] = f"the slowest rank took {ranks.unequal:.1f} times as long as the fastest; the slowest counts"
    return device, provenance


def _exposed_share(
    engine: TensorFlowEngine,
    mesh: Mesh,
    process: MeasuringProcess,
    ranks: MeasuringRanks,
    tables: Tables,
    device: Device,
    budget_s: float,
) -> float:
    curve = MeasuredCurve.of(tables["all_reduce"][axes_text(mesh.axes)])

    def all_reduce(n_bytes: int) -> Action | Call:
        if process.emitted is not None:
            return process.emitted("all_reduce", mesh.axes, n_bytes)
        count, run = collective("all_reduce", mesh, mesh.axes, process.rank, process.communicator, n_bytes)
        whole = np.ones(count, np.float32)
        return lambda: run(whole)

    return exposed_share(
        engine, all_reduce, lambda size: curve.time_ns(size) / 1e9,
        2 * engine.gemm_extent**3 / device.flops_per_s["float32"], ranks.largest, budget_s,
    )  # fmt: skip


def _copying() -> Action:
    rows, columns = COPIED
    half = np.ones((rows, columns // 2), np.float32)

    def run() -> object:
        whole = np.empty((rows, columns), np.float32)
        whole[:, : columns // 2] = half
        whole[:, columns // 2 :] = half
        return whole

    return run


def fitted_link(level: Level, index: int, mesh: Mesh, tables: Tables, device: Device) -> LinkLevel:
    """Return the link of a level, fitted to the all-gathers among its units alone: see the module docstring."""
    axes = axes_of_level(mesh, index)
    if not axes:
        return LinkLevel(level.name, level.count, 0.0, device.memory_bytes_per_s)
    table = tables["all_gather"][axes_text(axes)]
    steps = level.count - 1
    (small, large), (first_us, last_us) = ((ends[0], ends[-1]) for ends in (table.n_bytes, table.time_us))
    us_per_byte = max(last_us - first_us, 1e-3 * last_us) / (large - small)
    sharing = mesh.size_of(tuple(axis for axis in mesh.axes if mesh.level_of_axis[axis] > index))
    return LinkLevel(
        name=level.name,
        count=level.count,
        latency_us=max(0.0, first_us - us_per_byte * small) / steps,
        bytes_per_s=sharing * steps / level.count / us_per_byte * 1e6,
    )


SIZES = (1 << 22, 1 << 21, 1 << 20, 1 << 19)
"""Bytes of the all-reduce; the largest that the budget allows is taken."""
FEWEST, MOST = 3, 9
"""The fewest and the most rounds of measurement."""
LONGER = 1.5
"""The time of the products over that of the all-reduce. Above 1, so that the part that can overlap does so entirely."""
# The time of a round over that of the all-reduce: the all-reduce alone, the products alone, and both.
_ROUND = 1 + LONGER + (1 + LONGER)
NOTHING = 0.8
"""A larger share counts as 1: it is the noise of a device that computes nothing meanwhile."""


def exposed_share(
    engine: TensorFlowEngine,
    all_reduce: Callable[[int], Action | Call],
    seconds_of: Callable[[int], float],
    product_s: float,
    largest: Callable[[float], float],
    budget_s: float,
) -> float:
    """Return the exposed share, in (0, 1]; 1 where nothing overlaps. Every rank must call it, and gets the same.

    Args:
        all_reduce: returns an all-reduce of so many bytes.
        seconds_of: returns about how long that takes.
        product_s: the time of one of the engine's products in float32.
        largest: returns the largest of the ranks' numbers; a barrier too.
        budget_s: about how long it may take.
    """
    fits = [size for size in SIZES if FEWEST * _ROUND * seconds_of(size) <= budget_s]
    size = (fits or SIZES[-1:])[0]
    alone_s = seconds_of(size)
    n_products = max(1, round(LONGER * alone_s / product_s))
    call = all_reduce(size)
    actions = [engine.with_products(*pair) for pair in ((None, 0), (call, 0), (None, n_products), (call, n_products))]
    times_s: list[list[float]] = [[] for _ in actions]
    for number in range(1 + max(FEWEST, min(MOST, int(budget_s / (_ROUND * alone_s))))):
        for action, times in zip(actions, times_s, strict=True):
            largest(0.0)
            taken_s = largest(time_s(action))
            if number:  # an engine's first runs prepare
                times.append(taken_s)
    nothing_s, collective_s, products_s, both_s = (sorted(times)[len(times) // 2] for times in times_s)
    if collective_s <= nothing_s:
        return 1.0
    share = (both_s - products_s) / (collective_s - nothing_s)
    return 1.0 if share > NOTHING else max(share, 0.01)
