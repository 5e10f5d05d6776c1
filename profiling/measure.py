"""Measure this machine: what a device computes, and what each collective costs over each device partition.

TensorOpt, section 3.2: every kind of collective is measured over every device partition (every set of axes, all groups
at once, so that contention is included) at sizes 2^i. More ranks than cores are normal, so compute is measured on all
ranks at once too. Of each quantity a rank takes the lower quartile of its repeats (what else runs on the machine only
ever adds time, and on a busy one to most repeats), and the slowest rank counts.

All ranks must make the same calls in the same order, so nothing that steers the measurement may come from a rank's own
clock: what is measured, how often, and when to stop follow from times that were first agreed on (:class:`_Ranks`), the
largest over all ranks. An agreement is a barrier too.

The budget is a wish: half is for compute, half for collectives, each part of equal shares. Each part makes its fewest
repeats whatever they take; sizes whose predicted time passes the share are left out, and the ends come first, so
that a short budget thins the table instead of cutting it off.

The levels' latency and bandwidth, which meshes of fewer devices need, are fitted to the all-gathers of each level
alone: with the model of ``costs.py``, ``t = (g-1) a + c n (g-1)/g / B``, through the smallest and the largest size.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, combinations
from typing import Any

import numpy as np

from ..reschedule.execute import Communicator, RankPath, RankStep, rank_step
from ..reschedule.layout import Axes, Layout, axes_text, block_bounds
from ..reschedule.mesh import Level, Mesh
from ..reschedule.steps import Move, State, make_step
from .compute import STREAM_BYTES, Action, Chain, Engine, NumpyEngine, TensorFlowEngine, spin, time_s
from .costs import Curve
from .exposed import exposed_share
from .hardware import COMMUNICATING_KINDS, CollectiveTable, Device, Hardware, LinkLevel, Origin
from .hardware.rates import NO_RATES
from .memory import available_memory_bytes

SIZES = tuple(1 << i for i in (10, 22, 16, 12, 19, 14, 24, 18, 20, 21, 17, 23, 15, 13, 11))
"""Bytes, the most telling first."""
FEWEST_SIZES = 2
REPEATS = (3, 15)
"""Fewest and most."""
SHORTEST_PAUSE_S = 0.005
LONGEST_PAUSE_S = {"all_reduce": 0.1, "reduce_scatter": 0.1, "all_gather": 0.02, "all_to_all": 0.02}
"""Before a repeat. An all-reduce of 4 MiB took 0.6 ms after 2 ms, 0.8 after 10, 1.1 after 30 and 1.2 after 100 ms, whatever
was computed in between. In steps it took 1.0 to 1.3: a gradient's sum is taken once a step. What is gathered or exchanged
has just been made, and there are more of these, so that their memory is taken again soon: in steps they took what they take
after 20 ms."""
PAUSED_SIZES = 8
"""For so many sizes, in their fewest repeats, the pauses may take all of a table's budget."""
COPIED = (4096, 256)
"""Of float32: rows of 1 KiB are put together from two halves, as where a tensor's last dimension was split."""
STREAMS = 2
"""Before copies, so many elementwise operators: what is copied has just been made. After one copies were a seventh faster
than in steps, after four a seventh slower, and after a pause of 20 ms between a seventh and a third."""
SIZE_S = 0.2
"""What the repeats of one collective of one size may take where it is timed by itself."""
DEVICE_PARTS = 4
"""Of a device's share of the budget: products in two types, memory, copies."""
EXPOSED_PARTS = 8
"""Of the whole budget: what may go into how collectives and compute run beside each other, on top."""
QUICK_S = 30.0
"""What is measured in less is called quick."""
UNEQUAL = 1.5
"""Ranks that differ by more are said to be different machines."""

Tables = dict[str, dict[str, CollectiveTable]]


@dataclass(frozen=True, slots=True)
class Place:
    """Where this process is among the ranks that measure together.

    Attributes:
        communicator: of all ranks, prepared for :func:`device_partitions`; None for one alone.
        rank: this one's number in the mesh.
        local_ranks: how many ranks share this machine's memory.
        broadcast: gives rank 0's value to every rank.
    """

    communicator: Communicator | None = None
    rank: int = 0
    local_ranks: int = 1
    broadcast: Callable[[Any], Any] = lambda value: value


@dataclass(frozen=True, slots=True)
class Watching:
    """Who follows a measurement.

    Attributes:
        progress: is told how many of the tables of collectives have been measured, and of how many.
        keep: is given what is known so far, as soon as that makes a description: an interruption leaves the last one.
    """

    progress: Callable[[int, int], None] = lambda done, total: None
    keep: Callable[[Hardware], None] = lambda hardware: None


def measure(
    levels: Sequence[Level],
    place: Place | None = None,
    budget_s: float = 1.0,
    engine: str = "tensorflow",
    name: str = "this machine",
    watching: Watching | None = None,
) -> Hardware:
    """Measure the devices of all ranks; every rank must call it, and gets an equal description.

    Args:
        levels: of the mesh that the ranks make, outermost first.
        place: where this rank is; without it, one device alone.
        budget_s: about how long it may take, without the start of the engine.
        engine: ``tensorflow`` or ``numpy``.

    Raises:
        ValueError: an unknown engine, no budget, or several devices without a communicator.
    """
    place = place or Place()
    mesh = Mesh(tuple(levels))
    if engine not in ("tensorflow", "numpy"):
        raise ValueError(f"unknown engine to measure with: got {engine!r}, expected 'tensorflow' or 'numpy'")
    if not budget_s > 0:
        raise ValueError(f"the budget of a measurement is {budget_s!r} s, expected more than 0")
    if place.communicator is None and mesh.n_devices > 1:
        raise ValueError(f"measuring a mesh of {mesh.n_devices} devices needs their communicator, got none")
    computing: Engine = TensorFlowEngine() if engine == "tensorflow" else NumpyEngine()
    ranks = _Ranks(place.communicator, mesh)
    when = f"measured {datetime.date.today().isoformat()} on {ranks.count} ranks at once, the slowest counts"
    device, provenance = _measure_device(computing, place, ranks, budget_s / 2, when)
    call_us = _overhead_us(computing.callbacks(), ranks)
    path_us = 0.0
    if place.communicator is not None and mesh.axes:
        path_us = max(0.0, _overhead_us(computing.callbacks(_local_path(mesh, place)), ranks) - call_us)
    provenance["collectives"] = (
        f"{when}, all groups at once, with {call_us:.1f} us for the engine's call into Python and {path_us:.1f} us there"
    )
    single = [level.name for level in mesh.levels if level.count == 1]
    provenance["levels"] = "fitted to the measured all-gathers" + (
        f"; {' and '.join(single)}: one unit, so no link is used, and the numbers stand for nothing" if single else ""
    )

    def described(tables: Tables, is_complete: bool) -> Hardware:
        fitted = tuple(fitted_link(level, index, mesh, tables, device) for index, level in enumerate(mesh.levels))
        today, is_quick = datetime.date.today().isoformat(), budget_s < QUICK_S
        origin = Origin(today, computing.tensorflow, computing.threads, is_complete, is_quick)
        return Hardware(name, device, fitted, tables, provenance, NO_RATES, origin, call_us, path_us, exposed)

    watching = watching or Watching()
    tables: Tables = {}
    exposed = 1.0
    n_tables = len(device_partitions(mesh)) * len(COMMUNICATING_KINDS)
    for done, (kind, axes, table) in enumerate(collective_tables(mesh, place, budget_s / 2, call_us + path_us), start=1):
        tables.setdefault(kind, {})[axes_text(axes)] = table
        watching.progress(done, n_tables)
        if done >= sum(level.count > 1 for level in mesh.levels):
            watching.keep(described(tables, is_complete=False))
    if tables:
        exposed = _exposed(computing, mesh, place, ranks, tables, device, budget_s / EXPOSED_PARTS)
        provenance["exposed_share"] = f"{when}: products of matrices beside an all-reduce over all devices"
    # The numbers agree already, names and dates need not.
    result: Hardware = place.broadcast(described(tables, is_complete=True))
    return result


class _Ranks:
    """Numbers on which all ranks agree.

    Attributes:
        unequal: the most by which the slowest rank took longer than the fastest for the same action.
    """

    def __init__(self, communicator: Communicator | None, mesh: Mesh) -> None:
        self._communicator = communicator
        self._axes = mesh.axes
        self.count = mesh.n_devices
        self.unequal = 1.0

    def largest(self, value: float) -> float:
        if self._communicator is None or not self._axes:
            return value
        return float(self._communicator.all_reduce(self._axes, np.array([value], np.float64), "max")[0])

    def smallest(self, value: float) -> float:
        return -self.largest(-value)

    def after_s(self, before: Action, action: Action) -> float:
        """What an action takes this rank after another; all start together, by a collective that fetches the code again."""
        before()
        self.largest(0.0)
        return time_s(action)

    def typical_s(self, action: Action, budget_s: float) -> float:
        """The slowest rank's lower quartile over repeats of ``action``, which all ranks start together."""
        action()
        self.largest(0.0)
        repeats = _repeats(budget_s, self.largest(time_s(action)))
        mine_s = lower_quartile([time_s(action) for _ in range(repeats)])
        slowest_s = self.largest(mine_s)
        self.unequal = max(self.unequal, slowest_s / self.smallest(mine_s))
        return slowest_s


def lower_quartile(times: Sequence[float]) -> float:
    """The time that a quarter of the repeats do not exceed; of three, the least."""
    return sorted(times)[len(times) // 4]


def _repeats(budget_s: float, once_s: float) -> int:
    fewest, most = REPEATS
    return max(fewest, min(most, int(budget_s / once_s)))


def _overhead_us(timed: Chain | None, ranks: _Ranks) -> float:
    """What one of the chain's operators costs. A difference of medians would be mostly noise, so the fastest count."""
    if timed is None:
        return 0.0
    fastest_s = []
    for action in (timed.few, timed.many):
        for _ in range(2):  # an engine's first runs prepare
            action()
        ranks.largest(0.0)
        fastest_s.append(min(time_s(action) for _ in range(REPEATS[1])))
    return ranks.largest(max(0.0, fastest_s[1] - fastest_s[0]) / timed.more * 1e6)


def _measure_device(
    engine: Engine, place: Place, ranks: _Ranks, budget_s: float, when: str
) -> tuple[Device, dict[str, str]]:
    """The device as all ranks see it, and where its numbers come from."""
    share_s = budget_s / DEVICE_PARTS
    flops = 2 * engine.gemm_extent**3
    rates = {dtype: flops / ranks.typical_s(engine.gemm(dtype), share_s) for dtype in ("float32", "float64")}
    bytes_per_s = 2 * STREAM_BYTES / ranks.typical_s(engine.stream(), share_s)
    overhead_us = _overhead_us(engine.operators(), ranks)
    own = engine.device_memory_bytes()
    # Measured on GPUs too, for all ranks must make the same calls; but NumPy's copies say nothing of those.
    copied_s = _repeated(ranks, share_s, _streams(engine), _copying())[0]
    copied_per_s = 4 * COPIED[0] * COPIED[1] / copied_s if own is None else 0.0
    memory_bytes = own if own is not None else available_memory_bytes(place.local_ranks)
    device = Device(
        name=engine.device_name(),
        memory_bytes=int(ranks.smallest(memory_bytes)),
        flops_per_s=rates,
        memory_bytes_per_s=bytes_per_s,
        operator_overhead_us=overhead_us,
        copied_bytes_per_s=copied_per_s,
    )
    free = f"free when measured, over {place.local_ranks} ranks of the machine, the least of all ranks"
    provenance = {
        "memory_bytes": "the device's own" if own is not None else free,
        "flops_per_s": f"{when}: {engine.name}, product of square matrices of {engine.gemm_extent} rows",
        "memory_bytes_per_s": f"{when}: {engine.name}, {STREAM_BYTES} bytes read and as many written, elementwise",
        "operator_overhead_us": f"{when}: {engine.name}, a chain of products of 4 by 4 matrices",
    }
    if copied_per_s:
        provenance["copied_bytes_per_s"] = f"{when}: NumPy, rows of {4 * COPIED[1]} bytes put together from two halves"
    if ranks.unequal > UNEQUAL:
        provenance["ranks"] = f"the slowest rank took {ranks.unequal:.1f} times as long as the fastest; the slowest counts"
    return device, provenance


def _exposed(
    engine: Engine, mesh: Mesh, place: Place, ranks: _Ranks, tables: Tables, device: Device, budget_s: float
) -> float:
    curve = Curve.of(tables["all_reduce"][axes_text(mesh.axes)])
    return exposed_share(
        engine,
        partial(_collective, "all_reduce", mesh, mesh.axes, place),
        lambda size: curve.time_ns(size) / 1e9,
        2 * engine.gemm_extent**3 / device.flops_per_s["float32"],
        ranks.largest,
        budget_s,
    )


def device_partitions(mesh: Mesh) -> tuple[Axes, ...]:
    """Every set of axes that makes groups of more than one device: what a communicator must be prepared for."""
    return tuple(chain.from_iterable(combinations(mesh.axes, n) for n in range(1, len(mesh.axes) + 1)))


def measure_collectives(mesh: Mesh, place: Place, budget_s: float, beside_us: float = 0.0) -> Tables:
    """The times of all kinds over all device partitions of ``mesh``; every rank must call it, and gets equal tables.

    Args:
        budget_s: about how long it may take.
        beside_us: what a collective costs beyond the communicator's own time: the engine's call, and what is done there.
    """
    tables: Tables = {}
    for kind, axes, table in collective_tables(mesh, place, budget_s, beside_us):
        tables.setdefault(kind, {})[axes_text(axes)] = table
    return tables


def collective_tables(
    mesh: Mesh, place: Place, budget_s: float, beside_us: float
) -> Iterator[tuple[str, Axes, CollectiveTable]]:
    """The same, each table as soon as it is measured; first the all-gathers of single levels, which links are fitted to."""
    subsets = device_partitions(mesh)
    if place.communicator is None or not subsets:
        return
    ranks = _Ranks(place.communicator, mesh)
    pairs = [(kind, axes) for axes in subsets for kind in COMMUNICATING_KINDS]
    of_levels = [("all_gather", _axes_of(mesh, index)) for index in range(len(mesh.levels)) if _axes_of(mesh, index)]
    share_s = budget_s / len(pairs)
    for kind, axes in dict.fromkeys([*of_levels, *pairs]):
        times, spreads = _series(ranks, share_s, LONGEST_PAUSE_S[kind], partial(_collective, kind, mesh, axes, place))
        sizes = tuple(sorted(times))
        time_us = tuple(times[size] * 1e6 + beside_us for size in sizes)
        yield kind, axes, CollectiveTable(sizes, time_us, tuple(spreads[size] for size in sizes))


def time_sizes(mesh: Mesh, place: Place, kind: str, axes: Axes, sizes: Sequence[int]) -> dict[int, float]:
    """Seconds of one collective at each of some sizes, after the longest pauses; all ranks call it, and get the same."""
    ranks, pause = _Ranks(place.communicator, mesh), partial(spin, LONGEST_PAUSE_S[kind])
    return {size: _repeated(ranks, SIZE_S, pause, _collective(kind, mesh, axes, place, size))[0] for size in sizes}


def _axes_of(mesh: Mesh, level: int) -> Axes:
    return tuple(axis for axis in mesh.axes if mesh.level_of_axis[axis] == level)


def _pause_s(share_s: float, longest_s: float) -> float:
    """How long to wait before each repeat, where a table may take so long."""
    return max(SHORTEST_PAUSE_S, min(longest_s, share_s / (PAUSED_SIZES * (REPEATS[0] + 2))))


def _series(
    ranks: _Ranks, share_s: float, longest_pause_s: float, of_size: Callable[[int], Action]
) -> tuple[dict[int, float], dict[int, float]]:
    """Seconds and relative spread by size; a size's time is predicted from the next larger known one, else in proportion."""
    times: dict[int, float] = {}
    spreads: dict[int, float] = {}
    spent_s, pause_s = 0.0, _pause_s(share_s, longest_pause_s)
    for size in SIZES:
        if len(times) >= FEWEST_SIZES:
            larger = [times[known] for known in sorted(times) if known > size]
            predicted_s = larger[0] if larger else times[max(times)] * size / max(times)
            if spent_s + REPEATS[0] * (predicted_s + pause_s) > share_s:
                continue
        times[size], spreads[size], took_s = _repeated(ranks, share_s / len(SIZES), partial(spin, pause_s), of_size(size))
        spent_s += took_s
    return times, spreads


def _repeated(ranks: _Ranks, budget_s: float, before: Action, action: Action) -> tuple[float, float, float]:
    """Of an action after another the slowest rank's seconds, their relative spread, and about what measuring it took."""
    action()
    once_s = ranks.largest(time_s(lambda: ranks.after_s(before, action)))
    repeats = _repeats(budget_s, once_s)
    mine_s = sorted(ranks.after_s(before, action) for _ in range(repeats))
    low_s = lower_quartile(mine_s)
    return ranks.largest(low_s), ranks.largest(mine_s[3 * repeats // 4] / low_s - 1), (repeats + 2) * once_s


def _collective(kind: str, mesh: Mesh, axes: Axes, place: Place, n_bytes: int) -> Action:
    """One collective of ``n_bytes``, in the kind's own meaning (``costs.py``), over the groups of ``axes``."""
    communicator = place.communicator
    assert communicator is not None
    n_members, mine = mesh.size_of(axes), mesh.index_along(axes, place.rank)
    n_numbers = n_bytes // np.dtype(np.float32).itemsize
    whole = np.ones(n_numbers, np.float32)
    bounds = [block_bounds(n_numbers, n_members, member) for member in range(n_members)]
    shapes = [(end - start,) for start, end in bounds]
    blocks = [whole[start:end] for start, end in bounds]
    if kind != "all_to_all":
        step = _alone(kind, mesh, axes, n_numbers, place.rank)

    def run() -> object:
        if kind == "all_to_all":
            # There is none without copies, which are charged by themselves.
            result = communicator.empty((shapes[mine][0] * n_members,), whole.dtype)
            return communicator.all_to_all(axes, blocks, [shapes[mine]] * n_members, result, whole)
        return step.run(blocks[mine] if kind == "all_gather" else whole, communicator)

    return run


def _alone(kind: str, mesh: Mesh, axes: Axes, n_numbers: int, rank: int) -> RankStep:
    """One step of a tensor of one dimension, as paths carry it out."""
    whole, split, summands = State(((),), ()), State((axes,), ()), State(((),), axes)
    source, target = {
        "all_gather": (split, whole), "reduce_scatter": (summands, split), "all_reduce": (summands, whole)
    }[kind]
    dim = None if kind == "all_reduce" else 0
    step = make_step(Layout(mesh, *source), Move(kind, axes, dim, None, target))
    return rank_step(step, (n_numbers,), rank)


def _streams(engine: Engine) -> Action:
    stream = engine.stream()

    def run() -> None:
        for _ in range(STREAMS):
            stream()

    return run


def _local_path(mesh: Mesh, place: Place) -> Action:
    """What a path does in Python, without a collective: one local step of some numbers."""
    communicator = place.communicator
    assert communicator is not None
    whole, split = State(((),), ()), State((mesh.axes,), ())
    step = make_step(Layout(mesh, *whole), Move("slice", mesh.axes, 0, None, split))
    path = RankPath((rank_step(step, (mesh.n_devices,), place.rank),))
    piece = np.ones(mesh.n_devices, np.float32)
    return lambda: path.run(piece, communicator)


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
    """The link of a level, from the all-gathers among its units alone: see the module docstring."""
    axes = _axes_of(mesh, index)
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
