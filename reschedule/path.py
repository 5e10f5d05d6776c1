"""Cheapest paths through the graph of layouts.

TensorOpt, section 4.2: nodes are layouts, edges are steps, weights are times, and the best way to reschedule a tensor
is the shortest path. :func:`cheapest_path` is Dijkstra's algorithm on layouts found as it goes, O(E log L) worst case
and usually far less; :func:`all_pairs` weighs all edges at once and leaves the L searches to SciPy.

Both take the least time, then the fewest collectives, then the fewest steps, then the smallest predecessor in the order
of :func:`_order`, so they give the same paths. A tensor that is partial at neither end is not made partial on the way:
integers and booleans never are, and minus zero would not survive a sum.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra

from .graph import (
    Ints,
    LayoutGraph,
    Mask,
    all_states,
    axes_of_mask,
    edge_bytes,
    layout_graph,
    unique_rows,
)
from .layout import Axes, Layout, Shape
from .mesh import Mesh
from .steps import COMMUNICATING, SIZED_BY_RESULT, Move, State, Step, make_step, moves

# SciPy's distances are float64, exact below 2^53: a step weighs its time, and in the lower bits what breaks ties,
# 32 if it communicates plus 1. No cheapest path comes near 31 steps, and times sum to at most 2^43 ns, 2.4 hours.
_TIE_BITS = 10
_COLLECTIVE = 1 << 5
_EXACT = float(1 << 53)


class ReschedulingError(ValueError):
    """A tensor cannot be taken from one layout to another."""


class StepCosts(Protocol):
    """What steps cost: the interface at which cost models plug in. Must be deterministic and never negative."""

    def time_ns(self, kind: str, mesh: Mesh, axes: Axes, n_bytes: int) -> int:
        """Time of a collective over ``axes`` (ascending), or of a local step (``kind`` "local").

        ``n_bytes`` is what :meth:`Step.n_bytes` gives: for the rank with the largest piece.
        """
        ...


@dataclass(frozen=True, slots=True)
class Path:
    """The steps that take a tensor of ``shape`` from ``source`` to ``target``; none if they are equal."""

    source: Layout
    target: Layout
    steps: tuple[Step, ...]
    shape: Shape

    def __post_init__(self) -> None:
        at = self.source
        for step in self.steps:
            if step.source != at:
                raise ReschedulingError(f"step {step} starts at {step.source}, but the path has come to {at}")
            at = step.target
        if at != self.target:
            raise ReschedulingError(f"the steps end at {at}, expected {self.target}")

    def time_ns(self, costs: StepCosts, itemsize: int) -> int:
        """The sum of the steps' times."""
        return sum(step_time_ns(step, self.shape, itemsize, costs) for step in self.steps)

    @property
    def communicates(self) -> bool:
        return any(step.communicates for step in self.steps)

    @property
    def n_collectives(self) -> int:
        return sum(step.communicates for step in self.steps)

    def __str__(self) -> str:
        return str(self.source) + "".join(f" -{step}-> {step.target}" for step in self.steps)


def step_time_ns(step: Step, shape: Shape, itemsize: int, costs: StepCosts) -> int:
    """The time that a cost model gives for one step on a tensor of ``shape``."""
    return costs.time_ns(step.cost_kind, step.source.mesh, step.group_axes, step.n_bytes(shape, itemsize))


def all_layouts(mesh: Mesh, shape: Shape, partial: bool = True) -> tuple[Layout, ...]:
    """Every layout that fits a tensor of ``shape``, in a fixed order; without ``partial``, those that hold no sum."""
    layouts = (Layout(mesh, *state) for state in all_states(len(mesh.sizes), len(shape), partial))
    return tuple(layout for layout in layouts if layout.fits(shape))


def cheapest_path(source: Layout, target: Layout, shape: Shape, itemsize: int, costs: StepCosts) -> Path:
    """The cheapest path from ``source`` to ``target`` for a tensor of ``shape`` with elements of ``itemsize`` bytes.

    Raises:
        ReschedulingError: the layouts are of different meshes or ranks, or do not fit the shape.
    """
    _check(source, target, shape)
    search = _Search(source.mesh, shape, itemsize, costs, bool(source.partial or target.partial))
    layout, steps = source, []
    for move in search.run(State.of(source), State.of(target)):
        steps.append(make_step(layout, move))
        layout = steps[-1].target
    return Path(source, target, tuple(steps), shape)


def _check(source: Layout, target: Layout, shape: Shape) -> None:
    if source.mesh != target.mesh:
        raise ReschedulingError(f"mesh {source.mesh} at one end, {target.mesh} at the other; give both one mesh")
    for layout in (source, target):
        if len(layout.splits) != len(shape):
            raise ReschedulingError(
                f"layout {layout} is of rank {len(layout.splits)}, shape {shape} of rank {len(shape)}"
            )
        if not layout.fits(shape):
            raise ReschedulingError(f"layout {layout} on mesh {layout.mesh} leaves blocks of {shape} empty; split less")


def _order(state: State) -> tuple[int, Axes, int, Axes, tuple[int, ...]]:
    """Sorts states as :func:`~.graph.all_states` enumerates them."""
    lengths = [len(axes) for axes in state.splits]
    starts = tuple(sum(lengths[:dim]) for dim in range(len(lengths)))
    return len(state.partial), state.partial, sum(lengths), sum(state.splits, ()), starts


class _Search:
    """Dijkstra's algorithm from one state to another, over the states that fit, weighing each move when it is met."""

    def __init__(self, mesh: Mesh, shape: Shape, itemsize: int, costs: StepCosts, partial: bool) -> None:
        self.mesh, self.shape, self.itemsize, self.costs, self.partial = mesh, shape, itemsize, costs, partial
        self._elements: dict[State, int | None] = {}
        self._times: dict[tuple[str, Axes, int], int] = {}

    def run(self, source: State, target: State) -> list[Move]:
        distance = {source: (0, 0, 0)}  # time, collectives, steps
        arrived: dict[State, tuple[State, Move]] = {}
        heap = [((0, 0, 0), 0, source)]
        while heap:
            so_far, _, state = heapq.heappop(heap)
            if state == target:
                break
            if so_far > distance[state]:
                continue
            for move in self.moves(state):
                communicates = move.kind in COMMUNICATING
                reached = (so_far[0] + self.time_ns(state, move), so_far[1] + communicates, so_far[2] + 1)
                known = distance.get(move.target)
                if known is None or reached < known:
                    distance[move.target] = reached
                    arrived[move.target] = (state, move)
                    heapq.heappush(heap, (reached, len(heap), move.target))
                elif reached == known and _order(state) < _order(arrived[move.target][0]):
                    arrived[move.target] = (state, move)
        path = []
        while target != source:
            target, move = arrived[target]
            path.append(move)
        return path[::-1]

    def moves(self, state: State) -> Iterator[Move]:
        for move in moves(len(self.mesh.sizes), state):
            if self.elements(move.target) is not None and (self.partial or not move.target.partial):
                yield move

    def elements(self, state: State) -> int | None:
        """The elements of the largest piece; None for a state that does not fit."""
        if state not in self._elements:
            counts = [self.mesh.size_of(axes) for axes in state.splits]
            fits = all(count <= max(extent, 1) for extent, count in zip(self.shape, counts, strict=True))
            sizes = (-(-extent // count) for extent, count in zip(self.shape, counts, strict=True))
            self._elements[state] = math.prod(sizes) if fits else None
        return self._elements[state]

    def time_ns(self, state: State, move: Move) -> int:
        elements = self.elements(move.target if move.kind in SIZED_BY_RESULT else state)
        assert elements is not None
        key = (move.kind if move.kind in COMMUNICATING else "local", tuple(sorted(move.axes)), elements)
        if key not in self._times:
            kind, axes, _ = key
            self._times[key] = self.costs.time_ns(kind, self.mesh, axes, elements * self.itemsize)
        return self._times[key]


@dataclass(frozen=True, slots=True, eq=False)
class _Searched:
    """Distances from some states to all states of a graph, in combined weights (time above, ties below)."""

    graph: LayoutGraph
    row: dict[State, int]
    distance: Ints  # [rows, states]
    weight: Ints  # [edges]; negative: the edge leads from or to a state that does not fit
    by_target: Ints  # edge numbers, ordered by target, then by source

    def between(self, layouts: Sequence[Layout]) -> Ints:
        """[layouts, layouts]: times in nanoseconds; zero where this graph does not have both."""
        states = [State.of(layout) for layout in layouts]
        time_ns = np.zeros((len(states), len(states)), np.int64)
        has = np.array([state in self.row for state in states], bool)
        rows = [self.row[state] for state in states if state in self.row]
        columns = [self.graph.index[state] for state in states if state in self.row]
        time_ns[np.ix_(has, has)] = self.distance[np.ix_(rows, columns)] >> _TIE_BITS
        return time_ns

    def walk(self, source: State, target: State) -> list[State]:
        """The states on the path after ``source``: backwards, each time to the first predecessor that is on time."""
        distance, at, path = self.distance[self.row[source]], self.graph.index[target], []
        while self.graph.states[at] != source:
            path.append(self.graph.states[at])
            first, last = np.searchsorted(self.graph.target, (at, at + 1), sorter=self.by_target)
            edges = self.by_target[first:last]
            origins = self.graph.source[edges]
            on_time = (self.weight[edges] >= 0) & (distance[origins] + self.weight[edges] == distance[at])
            at = int(origins[np.argmax(on_time)])
        return path[::-1]


def _search_all(mesh: Mesh, shape: Shape, itemsize: int, costs: StepCosts, layouts: Sequence[Layout]) -> _Searched:
    """Distances from ``layouts`` to all states, on the graph without partial axes unless a layout has some."""
    graph = layout_graph(len(mesh.sizes), len(shape), any(layout.partial for layout in layouts))
    fits, elements = graph.sizes(mesh, shape)
    usable = fits[graph.source] & fits[graph.target]
    weight = np.full(len(usable), -1, np.int64)
    weight[usable] = _weights(graph, usable, edge_bytes(graph, elements, itemsize), mesh, costs)
    n_states = len(graph.states)
    edges = (graph.source[usable], graph.target[usable])
    matrix = csr_array((weight[usable].astype(float), edges), shape=(n_states, n_states))
    states = [State.of(layout) for layout in layouts]
    distance = dijkstra(matrix, indices=[graph.index[state] for state in states])
    if distance.size and distance[:, fits].max() >= _EXACT:
        raise ReschedulingError(f"rescheduling {shape} on {mesh} takes over an hour by the cost model, check its units")
    distance[:, ~fits] = -1
    by_target = np.lexsort((graph.source, graph.target))
    return _Searched(graph, {state: i for i, state in enumerate(states)}, distance.astype(np.int64), weight, by_target)


def _weights(graph: LayoutGraph, usable: Mask, n_bytes: Ints, mesh: Mesh, costs: StepCosts) -> Ints:
    """The combined weights of the usable edges; the cost model is asked once per distinct (kind, axes, bytes)."""
    n_communicating = len(COMMUNICATING)
    cost_kind = np.minimum(graph.kind[usable], n_communicating)
    queries, numbers = unique_rows(cost_kind, graph.axes_mask[usable], n_bytes[usable])
    kinds = (*COMMUNICATING, "local")
    asked = [costs.time_ns(kinds[kind], mesh, axes_of_mask(mask), size) for kind, mask, size in queries.tolist()]
    times = np.array(asked, np.int64).reshape(-1)[numbers]
    weights: Ints = (times << _TIE_BITS) + np.where(cost_kind < n_communicating, _COLLECTIVE + 1, 1)
    return weights


@dataclass(frozen=True, slots=True, eq=False)
class AllPairs:
    """The cheapest paths between all pairs of ``layouts``.

    ``time_ns[i, j]`` is the time from ``layouts[i]`` to ``layouts[j]``, ``index`` the inverse of ``layouts``.
    """

    layouts: tuple[Layout, ...]
    index: dict[Layout, int]
    time_ns: Ints
    shape: Shape
    _plain: _Searched
    _summing: _Searched

    def path(self, i: int, j: int) -> Path:
        """The path whose time is ``time_ns[i, j]``: the one that :func:`cheapest_path` gives."""
        source, target = self.layouts[i], self.layouts[j]
        searched = self._summing if source.partial or target.partial else self._plain
        layout, steps = source, []
        for state in searched.walk(State.of(source), State.of(target)):
            found = (move for move in moves(len(source.mesh.sizes), State.of(layout)) if move.target == state)
            steps.append(make_step(layout, next(found)))
            layout = steps[-1].target
        return Path(source, target, tuple(steps), self.shape)


def all_pairs(
    mesh: Mesh, shape: Shape, itemsize: int, costs: StepCosts, layouts: Sequence[Layout] | None = None
) -> AllPairs:
    """The cheapest paths between all pairs of ``layouts`` (all that fit the shape if None), through any layouts.

    Raises:
        ReschedulingError: a layout is of another mesh or rank, or does not fit the shape; or a path takes over an hour.
    """
    chosen = tuple(dict.fromkeys(all_layouts(mesh, shape) if layouts is None else layouts))
    replicated = Layout.replicated(mesh, len(shape))
    for layout in chosen:
        _check(layout, replicated, shape)
    is_partial = np.array([bool(layout.partial) for layout in chosen], bool)
    unsummed = [layout for layout in chosen if not layout.partial]
    plain = summing = _search_all(mesh, shape, itemsize, costs, unsummed)
    time_ns = plain.between(chosen)
    if is_partial.any():
        summing = _search_all(mesh, shape, itemsize, costs, chosen)
        time_ns = np.where(is_partial[:, None] | is_partial[None, :], summing.between(chosen), time_ns)
    return AllPairs(chosen, {layout: i for i, layout in enumerate(chosen)}, time_ns, shape, plain, summing)
