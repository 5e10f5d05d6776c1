"""Measure each collective over each device partition as it runs in a step: among operators, in a function of the engine.

TensorOpt, section 3.2: every kind of collective over every device partition (every set of axes, all groups at once, so
that contention is included) at sizes 2^i.

A collective that runs by itself, again and again, finds its code and its memory in the caches, and the other ranks in
the same place. In a step it is called in between operators, and its ranks come to it one after the other. So *passes*
are timed. A pass is a function of the engine that makes an array for each size and hands one after the other to Python,
where a collective uses it. The input of an all-gather or an all-to-all has just been made. A sum of gradients
(all-reduce, reduce-scatter) finds its input as an operator left it long before: these arrays are all made before the
first collective. A pass has every size twice, once after a larger one of nearly its size and once after one from the
other end of the sizes; the mean of both counts.

The time of a small collective depends on the time since the last one: after 8 ms of compute nearly nothing of it is in
the caches, after 0.3 ms most is. In a pass collectives are either *close*, with next to nothing between them, or
*apart*, with a matrix product and a pass over 8 MiB before each. A table is the mean of both kinds, in which those apart
have the weight :data:`APART_SHARE`.

The time of a collective is that of the member of its group that came last, as when a plan is checked. Of the passes the
median counts.

A table's share of the budget decides how many sizes there are, smallest and largest first, and how many passes: a short
budget thins a table instead of cutting it off.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, combinations
from typing import Any

import numpy as np

from ..reschedule.communicator import Communicator
from ..reschedule.layout import Axes, Layout, block_bounds
from ..reschedule.mesh import Mesh
from ..reschedule.rank_steps import rank_step
from ..reschedule.steps import Move, State, Step, make_step
from .compute import APART, CLOSE, ComputeBetween, time_s
from .hardware import COMMUNICATING_KINDS, CollectiveTable
from .measuring_ranks import MeasuringProcess, MeasuringRanks, repeats
from .tensorflow_engine import TensorFlowEngine

SIZES = tuple(1 << i for i in (10, 22, 16, 12, 19, 14, 24, 18, 20, 21, 17, 23, 15, 13, 11))
"""Bytes, the most telling first."""
FEWEST_SIZES = 2
"""The fewest sizes of a table."""
PASSES = (3, 25)
"""The fewest and the most passes."""
SIZES_S = 1.0
"""The seconds that passes over sizes that a caller asks for may take."""
APART_SHARE = 0.35
"""The weight of collectives that are apart; the rest is that of close ones.

In 64 plans of four models collectives came 0.9 to 16 ms apart on average, but most came close to the one before.
Predictions of the network time of a plan were off by 16 % on average with close ones alone, by 9.7 with a weight of 0.2,
7.9 with 0.3, 7.6 with 0.4 and 8.8 with 0.5. They were off by 6.4 % with a weight of each collective's own, which rose
with its distance from the one before and was 1 from 4 ms on.
"""
SHARES = {CLOSE: 1 - APART_SHARE, APART: APART_SHARE}
SUMS = ("all_reduce", "reduce_scatter")
"""The kinds whose inputs are made long before. 1 MiB took a seventh longer so than right after it was made."""

Tables = Mapping[str, Mapping[str, CollectiveTable]]


def device_partitions(mesh: Mesh) -> tuple[Axes, ...]:
    """Return every set of axes that makes groups of several devices: those for which a communicator must be prepared."""
    return tuple(chain.from_iterable(combinations(mesh.axes, n) for n in range(1, len(mesh.axes) + 1)))


@dataclass(slots=True)
class CollectiveTables:
    """A measurement of all kinds of collectives over all device partitions of a mesh; all ranks must make it together.

    All ranks get equal tables.

    Attributes:
        call_us: the time of the engine's call into Python, which is part of every collective.
        path_us: the time that a path spends in Python around its collective, of small collectives; known with the first
            table.
    """

    engine: TensorFlowEngine
    mesh: Mesh
    process: MeasuringProcess
    call_us: float = 0.0
    path_us: float = 0.0

    def each(self, budget_s: float) -> Iterator[tuple[str, Axes, CollectiveTable]]:
        """Yield (kind, axes, table) as soon as each table is measured.

        The all-gathers over single levels come first, since links are fitted to them.

        Args:
            budget_s: about how long all tables may take.
        """
        subsets = device_partitions(self.mesh)
        if self.process.communicator is None or not subsets:
            return
        pairs = [(kind, axes) for axes in subsets for kind in COMMUNICATING_KINDS]
        of_levels = (axes_of_level(self.mesh, index) for index in range(len(self.mesh.levels)))
        first = [("all_gather", axes) for axes in of_levels if axes]
        share_s = budget_s / len(pairs)
        for number, (kind, axes) in enumerate(dict.fromkeys([*first, *pairs])):
            measuring = _Measuring(self.engine, self.mesh, self.process, kind, axes)
            times = _thinned(measuring, share_s)
            if number == 0:
                self.path_us = 1e6 * measuring.path_s
            beside_us = self._beside_us(kind)
            sizes = tuple(sorted(times))
            low, middle, high = zip(*(np.quantile(times[size], (0.25, 0.5, 0.75)).tolist() for size in sizes), strict=True)
            time_us = tuple(seconds * 1e6 + beside_us for seconds in middle)
            spread = tuple(last / start - 1 for start, last in zip(low, high, strict=True))
            yield kind, axes, CollectiveTable(sizes, time_us, spread)

    def _beside_us(self, kind: str) -> float:
        """Return the time beside the measured one of a collective: the engine's call, and for an all-to-all the path's time.

        An all-to-all of a path always comes with copies, which have cost entries of their own. So the all-to-all that is
        timed is not run as a path, and the path's time is missing from it. On a GPU the call is timed with its host copies.
        """
        return (0.0 if self.engine.is_gpu else self.call_us) + (self.path_us if kind == "all_to_all" else 0.0)

    def afresh(self, kind: str, axes: Axes, sizes: Sequence[int], budget_s: float = SIZES_S) -> dict[int, float]:
        """Measure one collective again as for a table, at each of some sizes, and return the microseconds by size."""
        times = _Measuring(self.engine, self.mesh, self.process, kind, axes).times(sizes, budget_s)
        return {size: 1e6 * float(np.median(of_size)) + self._beside_us(kind) for size, of_size in times.items()}


def quartiles_apart(tables: Tables) -> float:
    """Return how far the quartiles of a collective's repeats lie apart, over the lower one: the median over all."""
    spreads = [spread for of_kind in tables.values() for table in of_kind.values() for spread in table.spread]
    return float(np.median(spreads)) if spreads else 0.0


def axes_of_level(mesh: Mesh, level: int) -> Axes:
    return tuple(axis for axis in mesh.axes if mesh.level_of_axis[axis] == level)


def _thinned(measuring: _Measuring, share_s: float) -> dict[int, np.ndarray]:
    """Return the times of as many sizes as the budget allows, or of the fewest where it allows no more.

    The time of a pass over more sizes is predicted from a measurement of the fewest.
    """
    times = measuring.times(SIZES[:FEWEST_SIZES], 0.0)
    small, large = sorted(times)
    first_s, last_s = (float(np.median(times[size])) for size in (small, large))
    n_each = 2 * len(SHARES)
    beside_s = max(0.0, measuring.pass_s / n_each - first_s - last_s) / FEWEST_SIZES
    left_s = share_s - measuring.took_s

    def passes_s(sizes: Sequence[int]) -> float:
        per_byte_s = max(0.0, last_s - first_s) / (large - small)
        return n_each * (PASSES[0] + 1) * sum(beside_s + first_s + per_byte_s * size for size in sizes)

    sizes = next((SIZES[:n] for n in range(len(SIZES), FEWEST_SIZES, -1) if passes_s(SIZES[:n]) <= left_s), None)
    return times if sizes is None else measuring.times(sizes, left_s)


@dataclass(slots=True)
class _Measuring:
    """The measurement of one kind of collective over one device partition.

    Attributes:
        pass_s: the seconds of one pass in the last call of :meth:`times`.
        took_s: the seconds of all passes and their preparation in that call.
        path_s: the seconds spent around the communicator's own calls, the median of all.
    """

    engine: TensorFlowEngine
    mesh: Mesh
    process: MeasuringProcess
    kind: str
    axes: Axes
    pass_s: float = 0.0
    took_s: float = 0.0
    path_s: float = 0.0

    def times(self, sizes: Sequence[int], budget_s: float) -> dict[int, np.ndarray]:
        """Return by size the seconds in each pass, on which all ranks agree."""
        ranks = MeasuringRanks(self.process.communicator, self.mesh)
        # Falling, then from both ends by turns, a large one before each small one.
        falling = sorted(sizes, reverse=True)
        by_turns = [size for pair in zip(falling, reversed(falling), strict=True) for size in pair]
        order = [*falling, *by_turns[: len(falling)]]
        seconds: list[tuple[float, float]] = []
        runs = [self._pass(order, compute, seconds) for compute in SHARES]

        def pass_() -> None:
            for run in runs:
                ranks.largest(0.0)
                run()

        preparing_s = ranks.largest(time_s(pass_))
        self.pass_s = once_s = ranks.largest(time_s(pass_))
        seconds.clear()
        n_passes = repeats(budget_s, once_s, PASSES)
        for _ in range(n_passes):
            pass_()
        self.took_s = preparing_s + (n_passes + 1) * once_s
        inside_s, around_s = np.array(seconds).T.reshape(2, n_passes, len(SHARES), len(order))
        inside_s, around_s = (
            np.einsum("psc,s->cp", each_s, list(SHARES.values()))
            for each_s in (ranks.without_waiting(self.axes, inside_s), ranks.slowest(around_s))
        )
        self.path_s = float(np.median(around_s))
        totals = inside_s + around_s
        return {size: totals[[process for process, n in enumerate(order) if n == size]].mean(axis=0) for size in sizes}

    def _pass(
        self, order: Sequence[int], compute: ComputeBetween, seconds: list[tuple[float, float]]
    ) -> Callable[[], object]:
        """Return a function that runs the collectives of some sizes.

        For each collective it appends to ``seconds`` the time of the collective itself and the time spent around it.
        """
        is_sum = self.kind in SUMS
        if self.process.emitted is not None:
            operators = [self.process.emitted(self.kind, self.axes, size) for size in order]
        else:
            assert self.process.communicator is not None
            communicator = _Clocked(self.process.communicator)
            calls = [collective(self.kind, self.mesh, self.axes, self.process.rank, communicator, size) for size in order]
            if not self.engine.is_gpu:
                clocked = [(count, _clocked(call, communicator, seconds)) for count, call in calls]
                return self.engine.among(clocked, is_sum, compute)
            operators = [(count, partial(self.engine.called, call)) for count, call in calls]  # with their host copies
        run = self.engine.among_emitted(operators, is_sum, compute)
        return lambda: seconds.extend((float(each_s), 0.0) for each_s in run())


@dataclass(slots=True)
class _Clocked:
    """A communicator that adds up the time of its collectives."""

    inner: Communicator
    seconds: float = 0.0

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self.inner, name)
        if name not in COMMUNICATING_KINDS:
            return attribute

        def timed(*arguments: Any, **options: Any) -> Any:
            start = time.perf_counter()
            result = attribute(*arguments, **options)
            self.seconds += time.perf_counter() - start
            return result

        return timed


def _clocked(
    run: Callable[[np.ndarray], np.ndarray], communicator: _Clocked, seconds: list[tuple[float, float]]
) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function that does the same as ``run`` and appends the communicator's time and the rest of its time."""

    def timed(shard: np.ndarray) -> np.ndarray:
        communicator.seconds = 0.0
        start = time.perf_counter()
        result = run(shard)
        all_s = time.perf_counter() - start
        seconds.append((communicator.seconds, all_s - communicator.seconds))
        return result

    return timed


def collective(
    kind: str, mesh: Mesh, axes: Axes, rank: int, communicator: Any, n_bytes: int
) -> tuple[int, Callable[[np.ndarray], np.ndarray]]:
    """Return one collective of ``n_bytes`` over the groups of ``axes``: the length of its input, and the function that
    runs it.

    ``n_bytes`` means for each kind what the docstring of ``hardware_costs.py`` says. The input is a rank's array of
    float32, and the function returns the rank's array after the collective.
    """
    n_members, index = mesh.size_of(axes), mesh.index_along(axes, rank)
    n_numbers = n_bytes // np.dtype(np.float32).itemsize
    bounds = [block_bounds(n_numbers, n_members, member) for member in range(n_members)]
    start, end = bounds[index]
    if kind == "all_to_all":

        def exchange(whole: np.ndarray) -> np.ndarray:
            # Not run as a step: in a path an all-to-all comes with copies, which have cost entries of their own.
            result: np.ndarray = communicator.empty(((end - start) * n_members,), whole.dtype)
            blocks = [whole[of_member[0] : of_member[1]] for of_member in bounds]
            communicator.all_to_all(axes, blocks, [(end - start,)] * n_members, result, whole)
            return result

        return n_numbers, exchange
    step = rank_step(step_alone(kind, mesh, axes), (n_numbers,), rank)
    return (end - start if kind == "all_gather" else n_numbers), lambda shard: step.run(shard, communicator)


def step_alone(kind: str, mesh: Mesh, axes: Axes) -> Step:
    """Return one step of a tensor of one dimension, as paths carry it out, for any kind but the all-to-all."""
    whole, split, summands = State(((),), ()), State((axes,), ()), State(((),), axes)
    source, target = {
        "all_gather": (split, whole), "reduce_scatter": (summands, split), "all_reduce": (summands, whole)
    }[kind]
    dim = None if kind == "all_reduce" else 0
    return make_step(Layout(mesh, *source), Move(kind, axes, dim, None, target))
