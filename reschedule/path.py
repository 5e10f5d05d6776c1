"""Find the cheapest paths through the graph of layouts.

TensorOpt, section 4.2: nodes are layouts, edges are steps, weights are times, and the best way to reschedule a tensor is
the shortest path. :func:`cheapest_path` finds one, by :mod:`.cheapest.dijkstra` or, once compiled code is loaded, by
:mod:`.cheapest.quick`. :func:`all_pairs` makes a table of the times between many layouts, by :mod:`.cheapest.bulk`.

A path takes the least time, then the fewest collectives, then the fewest steps, then the smallest predecessor in a fixed
order, so all ranks find the same path. A tensor that is partial at neither end is not made partial on the way: integers
and booleans never are, and minus zero would not survive a sum. On many axes only some layouts may lie between the two
ends: those of whole *units* if both ends are, see :mod:`.units`, and those of few runs of axes or units, see
:mod:`.orders`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol, runtime_checkable

import numpy as np

from .cheapest.bounded_cache import BoundedCache
from .cheapest.bulk import times_between
from .cheapest.dijkstra import StepTimes, cheapest_moves, dijkstra_moves
from .cheapest.quick import is_quick, quick_moves
from .halo import HaloStep
from .layout import Axes, Layout, Shape
from .mesh import Mesh
from .orders import Ints, runs_on_paths
from .steps import Move, State, Step, make_step
from .units import UnitMesh, units

_TOO_LONG_NS = 3600 * 10**9
_tables: BoundedCache[tuple[object, ...], Ints] = BoundedCache(1 << 26)


class ReschedulingError(ValueError):
    """A tensor cannot be taken from one layout to another."""


@dataclass(frozen=True, slots=True)
class Path:
    """The steps that take a tensor of ``shape`` from ``source`` to ``target``; none if they are equal.

    A halo step is a path by itself: the step ends, or its backward step starts, with more elements than the layout's
    blocks.
    """

    source: Layout
    target: Layout
    steps: tuple[Step | HaloStep, ...]
    shape: Shape

    def __post_init__(self) -> None:
        layout = self.source
        for step in self.steps:
            if step.source != layout:
                raise ReschedulingError(f"step {step} starts at {step.source}, but the path has come to {layout}")
            layout = step.target
        if layout != self.target:
            raise ReschedulingError(f"the steps end at {layout}, expected {self.target}")

    def time_ns(self, costs: StepCosts, itemsize: int) -> int:
        return sum(step_time_ns(step, self.shape, itemsize, costs) for step in self.steps)

    @property
    def communicates(self) -> bool:
        return any(step.communicates for step in self.steps)

    @property
    def n_collectives(self) -> int:
        return sum(step.communicates for step in self.steps)

    def __str__(self) -> str:
        return str(self.source) + "".join(f" -{step}-> {step.target}" for step in self.steps)


def step_time_ns(step: Step | HaloStep, shape: Shape, itemsize: int, costs: StepCosts) -> int:
    """Return a cost model's time of one step on a tensor of ``shape``: its collective and the copies around that."""
    charged = step.charged(shape, itemsize)
    return sum(costs.time_ns(kind, step.source.mesh, axes, n_bytes) for kind, axes, n_bytes in charged)


def cheapest_path(source: Layout, target: Layout, shape: Shape, itemsize: int, costs: StepCosts) -> Path:
    """Return the cheapest path from ``source`` to ``target`` for a tensor of ``shape`` with elements of ``itemsize`` bytes.

    Raises:
        ReschedulingError: the layouts are of different meshes or ranks, or do not fit the shape.
    """
    _check(source, target, shape)
    mesh = source.mesh
    may_be_partial = bool(source.partial or target.partial)
    of_units = UnitMesh.of(mesh)
    ends = of_units.state(source), of_units.state(target)
    if ends[0] is not None and ends[1] is not None:
        times = _step_times(mesh, True, shape, itemsize, costs)
        moves = [of_units.move(move) for move in _moves(times, ends[0], ends[1], may_be_partial)]
    else:
        times = _step_times(mesh, False, shape, itemsize, costs)
        moves = _moves(times, State.of(source), State.of(target), may_be_partial)
    layout, steps = source, []
    for move in moves:
        steps.append(make_step(layout, move))
        layout = steps[-1].target
    return Path(source, target, tuple(steps), shape)


def _moves(times: StepTimes, source: State, target: State, may_be_partial: bool) -> list[Move]:
    runs = runs_on_paths(len(times.axis_sizes), len(times.shape))
    return cheapest_moves(times, source, target, may_be_partial, runs, _between)


def _between(times: StepTimes, source: State, target: State, may_be_partial: bool, runs: int | None) -> list[Move]:
    search = quick_moves if is_quick(times, source, target, runs) else dijkstra_moves
    return search(times, source, target, may_be_partial, runs)


@lru_cache(maxsize=128)
def _step_times(mesh: Mesh, in_units: bool, shape: Shape, itemsize: int, costs: StepCosts) -> StepTimes:
    """Return the costs of moves of axes, or of units, each numbered as one axis: a move costs what its axes together do."""
    bundles = units(mesh) if in_units else tuple((axis,) for axis in mesh.axes)

    def ask(kind: str, numbers: Axes, elements: int) -> int:
        axes = tuple(axis for number in numbers for axis in bundles[number])
        return costs.time_ns(kind, mesh, axes, elements * itemsize)

    def ask_all(kinds: Sequence[str], subsets: Sequence[Axes], elements: Ints) -> Ints:
        of_axes = [tuple(axis for number in numbers for axis in bundles[number]) for numbers in subsets]
        assert isinstance(costs, ManyStepCosts)
        return costs.times_ns(kinds, mesh, of_axes, elements * itemsize)

    sizes = tuple(mesh.size_of(axes) for axes in bundles)
    return StepTimes(sizes, shape, ask, ask_all if isinstance(costs, ManyStepCosts) else None)


def _check(source: Layout, target: Layout, shape: Shape) -> None:
    if source.mesh != target.mesh:
        raise ReschedulingError(f"mesh {source.mesh} at one end, {target.mesh} at the other; give both one mesh")
    for layout in (source, target):
        if len(layout.splits) != len(shape):
            raise ReschedulingError(f"layout {layout} is of rank {len(layout.splits)}, shape {shape} of rank {len(shape)}")
        if not layout.fits(shape):
            raise ReschedulingError(f"layout {layout} on mesh {layout.mesh} leaves blocks of {shape} empty; split less")


def size_class(mesh: Mesh, shape: Shape, itemsize: int) -> tuple[object, ...]:
    """Return a key for tensors whose tables of times are equal for equal layouts, see :func:`all_pairs`.

    Extents that all devices divide evenly matter by their product with the element's size, the others by themselves.
    """
    is_even = [extent > 0 and extent % mesh.n_devices == 0 for extent in shape]
    others = tuple(None if even else extent for extent, even in zip(shape, is_even, strict=True))
    return mesh, others, itemsize * math.prod(extent for extent, even in zip(shape, is_even, strict=True) if even)


def all_pairs(mesh: Mesh, shape: Shape, itemsize: int, costs: StepCosts, layouts: Sequence[Layout]) -> Ints:
    """Return the times of the cheapest paths between all pairs of layouts, int64[layouts, layouts].

    Raises:
        ReschedulingError: a layout is of another mesh or rank, or does not fit the shape; or a path takes over an hour.
    """
    key = costs, size_class(mesh, shape, itemsize), tuple(layouts)
    if (times := _tables.get(key)) is not None:
        return times
    replicated = Layout.replicated(mesh, len(shape))
    for layout in layouts:
        _check(layout, replicated, shape)
    of_units = [UnitMesh.of(mesh).state(layout) for layout in layouts]
    inside = [i for i, state in enumerate(of_units) if state is not None]
    time_ns = np.zeros((len(layouts), len(layouts)), np.int64)
    if len(inside) < len(layouts):
        time_ns = _table(_step_times(mesh, False, shape, itemsize, costs), [State.of(layout) for layout in layouts])
    between_units = _step_times(mesh, True, shape, itemsize, costs)
    time_ns[np.ix_(inside, inside)] = _table(between_units, [state for state in of_units if state is not None])
    if time_ns.size and time_ns.max() >= _TOO_LONG_NS:
        raise ReschedulingError(f"rescheduling {shape} on {mesh} takes over an hour by the cost model, check its units")
    _tables.put(key, time_ns, time_ns.nbytes)
    return time_ns


def _table(times: StepTimes, states: Sequence[State]) -> Ints:
    """Return the nanoseconds between all pairs of states. A pair that is partial at neither end isn't partial on the way."""
    runs = runs_on_paths(len(times.axis_sizes), len(times.shape))
    is_partial = np.array([bool(state.partial) for state in states], bool)
    time_ns = np.zeros((len(states), len(states)), np.int64)
    whole = np.flatnonzero(~is_partial).tolist()
    time_ns[np.ix_(whole, whole)] = times_between(times, [states[i] for i in whole], False, runs)
    if is_partial.any():
        summing = times_between(times, states, True, runs)
        time_ns = np.where(is_partial[:, None] | is_partial[None, :], summing, time_ns)
    return time_ns


class StepCosts(Protocol):
    """The times of steps: the interface at which cost models plug in. Times must be deterministic and never negative."""

    def time_ns(self, kind: str, mesh: Mesh, axes: Axes, n_bytes: int) -> int:
        """Return the time of a collective over ``axes`` (ascending), or of a local step (``kind`` "local").

        ``n_bytes`` is the result of :meth:`Step.n_bytes`: the bytes of the rank with the largest shard.
        """

    def __hash__(self) -> int:
        """Return a hash that is equal for equal costs: caches of times go by it."""


@runtime_checkable
class ManyStepCosts(StepCosts, Protocol):
    """Step costs that can be asked for many times at once, in arrays."""

    def times_ns(
        self, kinds: Sequence[str], mesh: Mesh, subsets: Sequence[tuple[int, ...]], n_bytes: np.ndarray
    ) -> np.ndarray:
        """Return ``time_ns`` of each kind, each set of axes and each number of bytes, int64[kinds, subsets, sizes]."""
