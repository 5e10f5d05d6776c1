"""What each collective costs over each device partition, as steps have it: among operators, in a function of the engine.

TensorOpt, section 3.2: every kind of collective over every device partition (every set of axes, all groups at once, so that
contention is included) at sizes 2^i.

A collective by itself, again and again, finds its code and its memory in the caches, and its partners in the same place.
In a step it is called in between operators, and its ranks come to it one after the other. So what is timed are *passes*: a
function of the engine that makes an array for each size, and hands one after the other to Python, where a collective takes
it. What is gathered or exchanged has just been made. A gradient's sum finds its operand as it was left by an operator long
before: these arrays are all made first. A pass has every size twice, after a larger one of nearly its size, and after one
from the other end; the mean of both counts.

How long ago the last collective was decides what a small one takes: nearly nothing is in the caches after 8 ms of compute,
and most is after 0.3. In a pass collectives are either *close*, with next to nothing between them, or *apart*, with a
product and 8 MiB gone through before each. A table has of the ones and of the others, in the share of :data:`APART_SHARE`.

Of a group's members the one that came last tells what a collective took, as when a plan is checked, and of the passes the
median counts.

A table's share of the budget decides how many sizes there are, the ends first, and how many passes: a short budget thins a
table instead of cutting it off.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, combinations
from typing import Any

import numpy as np

from ..reschedule.communicator import Communicator
from ..reschedule.execute import rank_step
from ..reschedule.layout import Axes, Layout, axes_text, block_bounds
from ..reschedule.mesh import Mesh
from ..reschedule.steps import Move, State, Step, make_step
from .compute import APART, CLOSE, Beside, Engine, time_s
from .hardware import COMMUNICATING_KINDS, CollectiveTable
from .ranks import Place, Ranks, repeats

SIZES = tuple(1 << i for i in (10, 22, 16, 12, 19, 14, 24, 18, 20, 21, 17, 23, 15, 13, 11))
"""Bytes, the most telling first."""
FEWEST_SIZES = 2
PASSES = (3, 25)
"""Fewest and most."""
SIZES_S = 1.0
"""What the passes over sizes that were asked for may take."""
APART_SHARE = 0.35
"""What counts of collectives that are apart; the rest of close ones. In 64 plans of four models they came 0.9 to 16 ms apart
on average, but most close to the last one. What a plan's network took was met within 16 % on average by close ones alone,
9.7 a fifth of the way to those apart, 7.9 three tenths, 7.6 four tenths and 8.8 half way; and within 6.4 % by what each
one's own distance from the last says, all the way at 4 ms."""
SHARES = {CLOSE: 1 - APART_SHARE, APART: APART_SHARE}
SUMS = ("all_reduce", "reduce_scatter")
"""The kinds whose operands are made long before: 1 MiB took a seventh longer so than right after it was made."""

Tables = dict[str, dict[str, CollectiveTable]]


def device_partitions(mesh: Mesh) -> tuple[Axes, ...]:
    """Every set of axes that makes groups of more than one device: what a communicator must be prepared for."""
    return tuple(chain.from_iterable(combinations(mesh.axes, n) for n in range(1, len(mesh.axes) + 1)))


@dataclass(slots=True)
class CollectiveTables:
    """Measures the times of all kinds over all device partitions of a mesh; every rank must, and gets equal ones.

    Attributes:
        call_us: what the engine's call into Python costs, which is part of every collective.
        path_us: what a path does in Python around its collective, of small ones; known with the first table.
    """

    engine: Engine
    mesh: Mesh
    place: Place
    call_us: float = 0.0
    path_us: float = 0.0

    def each(self, budget_s: float) -> Iterator[tuple[str, Axes, CollectiveTable]]:
        """Each table as soon as it is measured; first the all-gathers of single levels, which links are fitted to.

        Args:
            budget_s: about how long all of them may take.
        """
        subsets = device_partitions(self.mesh)
        if self.place.communicator is None or not subsets:
            return
        pairs = [(kind, axes) for axes in subsets for kind in COMMUNICATING_KINDS]
        of_levels = (axes_of_level(self.mesh, index) for index in range(len(self.mesh.levels)))
        first = [("all_gather", axes) for axes in of_levels if axes]
        share_s = budget_s / len(pairs)
        for number, (kind, axes) in enumerate(dict.fromkeys([*first, *pairs])):
            measuring = _Measuring(self.engine, self.mesh, self.place, kind, axes)
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
        """What is on top of what is timed: there is no exchange without copies, which are charged by themselves, so what is
        timed of that is no path."""
        return self.call_us + (self.path_us if kind == "all_to_all" else 0.0)

    def afresh(self, kind: str, axes: Axes, sizes: Sequence[int], budget_s: float = SIZES_S) -> dict[int, float]:
        """Microseconds of one collective at each of some sizes, measured once more, as in tables."""
        times = _Measuring(self.engine, self.mesh, self.place, kind, axes).times(sizes, budget_s)
        return {size: 1e6 * float(np.median(of_size)) + self._beside_us(kind) for size, of_size in times.items()}

    def measured(self, budget_s: float) -> Tables:
        """All of them."""
        tables: Tables = {}
        for kind, axes, table in self.each(budget_s):
            tables.setdefault(kind, {})[axes_text(axes)] = table
        return tables


def axes_of_level(mesh: Mesh, level: int) -> Axes:
    return tuple(axis for axis in mesh.axes if mesh.level_of_axis[axis] == level)


def _thinned(measuring: _Measuring, share_s: float) -> dict[int, np.ndarray]:
    """The times of as many sizes as can be had, by what two of them say that a pass takes; of the two, where no more can."""
    few = measuring.times(SIZES[:FEWEST_SIZES], 0.0)
    small, large = sorted(few)
    first_s, last_s = (float(np.median(few[size])) for size in (small, large))
    n_each = 2 * len(SHARES)
    beside_s = max(0.0, measuring.pass_s / n_each - first_s - last_s) / FEWEST_SIZES
    left_s = share_s - measuring.took_s

    def passes_s(sizes: Sequence[int]) -> float:
        per_byte_s = max(0.0, last_s - first_s) / (large - small)
        return n_each * (PASSES[0] + 1) * sum(beside_s + first_s + per_byte_s * size for size in sizes)

    sizes = next((SIZES[:n] for n in range(len(SIZES), FEWEST_SIZES, -1) if passes_s(SIZES[:n]) <= left_s), None)
    return few if sizes is None else measuring.times(sizes, left_s)


@dataclass(slots=True)
class _Measuring:
    """One kind of collective over one device partition.

    Attributes:
        pass_s: what the last of :meth:`times` took for a pass; ``took_s``, for all and its preparation; ``path_s``, what was
            done around the communicator's own calls, the median of all.
    """

    engine: Engine
    mesh: Mesh
    place: Place
    kind: str
    axes: Axes
    pass_s: float = 0.0
    took_s: float = 0.0
    path_s: float = 0.0

    def times(self, sizes: Sequence[int], budget_s: float) -> dict[int, np.ndarray]:
        """By size the seconds in each pass, on which all ranks agree."""
        assert self.place.communicator is not None
        ranks = Ranks(self.place.communicator, self.mesh)
        order = _twice(sizes)
        seconds: list[tuple[float, float]] = []
        runs = [self._pass(order, beside, seconds) for beside in SHARES]

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
        found = inside_s + around_s
        return {size: found[[place for place, each in enumerate(order) if each == size]].mean(axis=0) for size in sizes}

    def _pass(self, order: Sequence[int], beside: Beside, seconds: list[tuple[float, float]]) -> Callable[[], object]:
        """Runs the collectives of some sizes, and writes down of each what it took and what was done around it."""
        is_sum = self.kind in SUMS
        if self.place.emitted is not None:
            emitted = [self.place.emitted(self.kind, self.axes, size) for size in order]
            stamped = self.engine.among_emitted(emitted, is_sum, beside)
            return lambda: seconds.extend((float(each_s), 0.0) for each_s in stamped())
        assert self.place.communicator is not None
        clocked = _Clocked(self.place.communicator)
        calls = [collective(self.kind, self.mesh, self.axes, self.place.rank, clocked, size) for size in order]
        return self.engine.among([(count, _clocked(call, clocked, seconds)) for count, call in calls], is_sum, beside)


def _twice(sizes: Sequence[int]) -> list[int]:
    """Sizes in the order of a pass: falling, and then from both ends by turns, a large one before each small one."""
    falling = sorted(sizes, reverse=True)
    by_turns = [size for pair in zip(falling, reversed(falling), strict=True) for size in pair]
    return [*falling, *by_turns[: len(falling)]]


@dataclass(slots=True)
class _Clocked:
    """A communicator that adds up what its collectives take."""

    inner: Communicator
    seconds: float = 0.0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if name not in COMMUNICATING_KINDS:
            return found

        def timed(*arguments: Any, **named: Any) -> Any:
            started = time.perf_counter()
            result = found(*arguments, **named)
            self.seconds += time.perf_counter() - started
            return result

        return timed


def _clocked(
    run: Callable[[np.ndarray], np.ndarray], communicator: _Clocked, seconds: list[tuple[float, float]]
) -> Callable[[np.ndarray], np.ndarray]:
    """The same, which writes down what the communicator took, and what the rest did."""

    def timed(piece: np.ndarray) -> np.ndarray:
        communicator.seconds = 0.0
        started = time.perf_counter()
        result = run(piece)
        all_s = time.perf_counter() - started
        seconds.append((communicator.seconds, all_s - communicator.seconds))
        return result

    return timed


def collective(
    kind: str, mesh: Mesh, axes: Axes, rank: int, communicator: Any, n_bytes: int
) -> tuple[int, Callable[[np.ndarray], np.ndarray]]:
    """One collective of ``n_bytes``, in the kind's own meaning (``costs.py``), over the groups of ``axes``: how many numbers
    a rank has for it, and what does it and gives what the rank has then."""
    n_members, mine = mesh.size_of(axes), mesh.index_along(axes, rank)
    n_numbers = n_bytes // np.dtype(np.float32).itemsize
    bounds = [block_bounds(n_numbers, n_members, member) for member in range(n_members)]
    start, end = bounds[mine]
    if kind == "all_to_all":

        def exchange(whole: np.ndarray) -> np.ndarray:
            # There is none without copies, which are charged by themselves.
            result: np.ndarray = communicator.empty(((end - start) * n_members,), whole.dtype)
            blocks = [whole[of_member[0] : of_member[1]] for of_member in bounds]
            communicator.all_to_all(axes, blocks, [(end - start,)] * n_members, result, whole)
            return result

        return n_numbers, exchange
    step = rank_step(step_alone(kind, mesh, axes), (n_numbers,), rank)
    return (end - start if kind == "all_gather" else n_numbers), lambda piece: step.run(piece, communicator)


def step_alone(kind: str, mesh: Mesh, axes: Axes) -> Step:
    """One step of a tensor of one dimension, as paths carry it out: all kinds but the all-to-all."""
    whole, split, summands = State(((),), ()), State((axes,), ()), State(((),), axes)
    source, target = {
        "all_gather": (split, whole), "reduce_scatter": (summands, split), "all_reduce": (summands, whole)
    }[kind]
    dim = None if kind == "all_reduce" else 0
    return make_step(Layout(mesh, *source), Move(kind, axes, dim, None, target))
