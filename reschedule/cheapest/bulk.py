"""Compute the times of the cheapest paths from many layouts to many, as one table.

All sources are searched from together. Each state of the graph of layouts holds one vector, its distances from all
sources. An edge lowers its target's vector to its source's vector plus the edge's weight. Rounds go through the states
back and forth, and each state looks only at those origins that were lowered since its last look. The search ends when
nothing changes (Bellman and Ford's algorithm, in place). A graph of layouts has many edges, but its paths have few
steps, so a handful of rounds over long vectors, which stay in a cache, is enough.

Complexity: O(R E S) for R rounds, E edges and S sources. In the worst case there is half a round for each step of the
longest path.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np

from ..orders import Ints, Mask, axes_of_mask, mask_of_axes, orders
from ..steps import COMMUNICATING, KINDS, Move, State, leading_dim, move_between
from .bounded_cache import BoundedCache
from .dijkstra import StepTimes, path_time_ns, rewinding, unwinding
from .layout_graph import LayoutGraph, layout_graph

_MOST_TIMES = 1 << 20
"""The most distances (states times sources) that one search holds: a few MB, which stay in a core's cache."""
_KEPT_BYTES = 1 << 26
"""The most bytes of weights that are kept for the next search of the same tensor; those that were used last are."""
# The distance of a state that isn't reached, by dtype: half of the type's range, so that adding a weight doesn't overflow.
NEVER = {np.dtype(np.int32): (1 << 30) - 1, np.dtype(np.int64): (1 << 62) - 1}


@dataclass(frozen=True, eq=False)
class Weighted:
    """A graph of layouts with the costs of its steps for one tensor."""

    graph: LayoutGraph
    fits: Mask  # [states]: whether the layout fits the tensor's shape
    of_class: Ints  # [classes of edges], in nanoseconds; NEVER where an end does not fit

    @cached_property
    def weight(self) -> Ints:
        """The weight of each edge, int64[edges], in nanoseconds; NEVER where an end does not fit."""
        return self.weights(NEVER[np.dtype(np.int64)], np.dtype(np.int64))

    def weights(self, never: int, kind: np.dtype[Any]) -> Ints:
        """Return the weight of each edge, [edges] of a type, at most ``never``."""
        of_edges: Ints = np.minimum(self.of_class, never).astype(kind)[self.graph.class_of]
        return of_edges

    @classmethod
    def of(cls, graph: LayoutGraph, steps: StepTimes) -> Weighted:
        """Return the weighted graph of a tensor, built or as it was kept."""
        weighted = _kept.get((graph, steps))
        if weighted is None:
            weighted = cls._built(graph, steps)
            _kept.put((graph, steps), weighted, 8 * len(graph.source))
        return weighted

    @classmethod
    def _built(cls, graph: LayoutGraph, steps: StepTimes) -> Weighted:
        """Build the weighted graph of a tensor; the cost model is asked once per distinct (kind, axes, elements)."""
        axis_sizes = steps.axis_sizes
        fits, elements = graph.sizes(axis_sizes, steps.shape)
        sizes, size_of = np.unique(elements, return_inverse=True)
        n_masks, kinds = 1 << len(axis_sizes), (*COMMUNICATING, "local")
        edges = graph.first_of_class
        cost_kind = np.minimum(np.arange(len(KINDS)), len(COMMUNICATING))[graph.kind[edges]]
        of_axes = graph.mask[edges].astype(np.int64) * len(sizes) + size_of.reshape(-1)[graph.sized_by[edges]]
        query, copy = (number * n_masks * len(sizes) + of_axes for number in (cost_kind, len(COMMUNICATING)))
        usable = fits[graph.source[edges]] & fits[graph.target[edges]]
        copied = graph.copied[edges] & -(2 << leading_dim(steps.shape))
        n_copies = (copied != 0).astype(np.int64) + (copied & copied - 1 != 0)  # the number of bits set, of at most two
        is_copied = usable & (n_copies > 0)
        is_asked = np.zeros(len(kinds) * n_masks * len(sizes), bool)
        is_asked[query[usable]] = is_asked[copy[is_copied]] = True
        times = np.full(len(is_asked), NEVER[np.dtype(np.int64)])
        if steps.ask_all is not None:
            all_axes = [axes_of_mask(mask) for mask in range(n_masks)]
            times[is_asked] = steps.ask_all(kinds, all_axes, sizes).reshape(-1)[is_asked]
        for number in np.flatnonzero(is_asked).tolist() if steps.ask_all is None else ():
            kind, mask, size = np.unravel_index(number, (len(kinds), n_masks, len(sizes)))
            times[number] = steps.ask(kinds[kind], axes_of_mask(int(mask)), int(sizes[size]))
        of_class = np.where(usable, times[query] + n_copies * np.where(is_copied, times[copy], 0), NEVER[np.dtype(np.int64)])
        return cls(graph, fits, of_class)

    def search(self, starts: _Starts, targets: Ints) -> Ints:
        """Return the nanoseconds from each start to each target, all of which fit, int64[targets, starts]."""
        size = max(1, _MOST_TIMES // len(self.fits))
        nanoseconds = np.empty((len(targets), starts.n_rows), np.int64)
        narrow: np.dtype[Any] = np.dtype(np.int32)
        wide: np.dtype[Any] = np.dtype(np.int64)
        first = narrow
        for i in range(0, starts.n_rows, size):
            rows = np.arange(i, min(i + size, starts.n_rows))
            nanoseconds[:, rows] = times = self._distances(starts.of(rows), first)[targets]
            if first == narrow:
                overflowing_rows = rows[(times == NEVER[narrow]).any(axis=0)]
                nanoseconds[:, overflowing_rows] = self._distances(starts.of(overflowing_rows), wide)[targets]
                first = wide if 2 * len(overflowing_rows) > len(rows) else narrow  # where many overflow, others will too
        return nanoseconds

    def _distances(self, starts: _Starts, kind: np.dtype[Any]) -> Ints:
        """Return the nanoseconds to each state from each start, [states, starts].

        In 32 bits, times from about one second on are wrong.
        """
        never, graph = NEVER[kind], self.graph
        distance = np.full((len(self.fits), starts.n_rows), never, kind)
        distance[starts.state, starts.row] = np.minimum(starts.time_ns, never)
        if starts.n_rows and len(graph.source):
            from . import path_kernels  # here, since loading compiled code takes half a second

            path_kernels.relax(graph.start, graph.source, self.weights(never, kind), graph.by_splits, distance, never)
        return distance


_kept: BoundedCache[tuple[LayoutGraph, StepTimes], Weighted] = BoundedCache(_KEPT_BYTES)


@dataclass(frozen=True, slots=True, eq=False)
class _Starts:
    """The starts of searches: row ``row[i]`` starts at ``state[i]`` with a distance of ``time_ns[i]``.

    A row may have several.
    """

    n_rows: int
    row: Ints
    state: Ints
    time_ns: Ints

    @classmethod
    def at(cls, states: Ints) -> _Starts:
        """Return one start at each of the states, one to a row."""
        return cls(len(states), np.arange(len(states)), states, np.zeros_like(states))

    def of(self, rows: Ints) -> _Starts:
        """Return the starts of some rows (ascending), which are then numbered from 0."""
        is_chosen = np.isin(self.row, rows)
        return _Starts(len(rows), np.searchsorted(rows, self.row[is_chosen]), self.state[is_chosen], self.time_ns[is_chosen])


def times_between(steps: StepTimes, states: Sequence[State], may_be_partial: bool, runs: int | None) -> Ints:
    """Return the nanoseconds between all pairs of states, which must fit the tensor, int64[states, states].

    Args:
        may_be_partial: whether the layouts on the way may be partial.
        runs: the most runs of axes that a dimension may be made of on the way; None for any number.
    """
    table = orders(len(steps.axis_sizes), runs)
    chains = {i: leaving for i, state in enumerate(states) if (leaving := unwinding(state, table))}
    if chains:
        return _with_chains(steps, states, chains, may_be_partial, runs)
    graph = layout_graph(len(steps.axis_sizes), len(steps.shape), may_be_partial, runs)
    weighted = Weighted.of(graph, steps)
    inside = [i for i, state in enumerate(states) if graph.orders.has(*state)]
    numbers = graph.number_of([states[i] for i in inside])
    if len(inside) == len(states):
        result: Ints = weighted.search(_Starts.at(numbers), numbers).T
        return result
    return _between_ends(steps, weighted, states, np.array(inside, np.int64), numbers)


def _with_chains(
    steps: StepTimes, states: Sequence[State], chains: dict[int, list[Move]], may_be_partial: bool, runs: int | None
) -> Ints:
    """Return :func:`times_between` where some states, those with ``chains``, are unwound first or rewound last."""
    near = [chains[i][-1].target if i in chains else state for i, state in enumerate(states)]
    index = {state: number for number, state in enumerate(dict.fromkeys(near))}
    of_near = np.array([index[state] for state in near])
    times: Ints = times_between(steps, list(index), may_be_partial, runs)[np.ix_(of_near, of_near)]
    for i, leaving in chains.items():
        times[i] += path_time_ns(steps, states[i], leaving)
        times[:, i] += path_time_ns(steps, near[i], rewinding(states[i], leaving))
    pairs = _may_be_one_step(states)
    pairs[np.ix_(*[np.setdiff1d(np.arange(len(states)), list(chains))] * 2)] = False
    for i, j in np.argwhere(pairs).tolist():
        if direct := move_between(states[i], states[j]):
            times[i, j] = steps.time_ns(states[i], direct)
    np.fill_diagonal(times, 0)
    return times


def _may_be_one_step(states: Sequence[State]) -> Mask:
    """Return which pairs one step may lead between: the others needn't be looked at, bool[states, states]."""
    splits = np.array([[hash(axes) for axes in state.splits] for state in states], np.int64).reshape(len(states), -1)
    axes = np.array([[mask_of_axes(state.partial), mask_of_axes(tuple(chain(*state.splits)))] for state in states])
    n_changed = sum((column[:, None] != column for column in splits.T), np.zeros((len(states),) * 2, np.int8))
    has_same_axes = (axes[:, None] == axes).all(axis=2)
    result: Mask = (n_changed < 2) | ((n_changed == 2) & has_same_axes)
    return result


def _between_ends(steps: StepTimes, weighted: Weighted, states: Sequence[State], inside: Ints, numbers: Ints) -> Ints:
    """Return :func:`times_between` where some states aren't in the graph, so that they can only be the ends of a path.

    One step leads from such a state into the graph, or from the graph to it.
    """
    outside = np.setdiff1d(np.arange(len(states)), inside).tolist()
    edges_from = [(i, *step) for i in outside for step in steps_into(steps, weighted.graph, states[i], is_reversed=False)]
    row, state, time_ns, _ = np.array(edges_from, np.int64).reshape(-1, 4).T
    first = _Starts.at(numbers)
    starts = _Starts(
        len(states),
        np.concatenate([inside[first.row], row]),
        np.concatenate([first.state, state]),
        np.concatenate([first.time_ns, time_ns]),
    )
    edges_into = [steps_into(steps, weighted.graph, states[j], is_reversed=True) for j in outside]
    near = [np.array([number for number, *_ in edges], np.int64) for edges in edges_into]
    targets, index = np.unique(np.concatenate([numbers, *near]), return_inverse=True)
    columns = np.split(index.reshape(-1), np.cumsum([len(numbers), *map(len, near)])[:-1])
    distances = weighted.search(starts, targets)
    times = np.empty((len(states), len(states)), np.int64)
    times[:, inside] = distances[columns[0]].T
    for j, edges, column in zip(outside, edges_into, columns[1:], strict=True):
        times[:, j] = (distances[column] + np.array([[time_ns] for _, time_ns, _ in edges])).min(axis=0)
    for i, j in np.argwhere(_may_be_one_step([states[i] for i in outside])).tolist():
        source, target = outside[i], outside[j]
        direct = move_between(states[source], states[target])
        if direct is not None:
            times[source, target] = min(times[source, target], steps.time_ns(states[source], direct))
    times[outside, outside] = 0
    return times


_REVERSED = {"all_to_all": "all_to_all"}
for _kind, _other in [("all_gather", "slice"), ("reduce_scatter", "pad"), ("all_reduce", "keep")]:
    _REVERSED |= {_kind: _other, _other: _kind}


def steps_into(steps: StepTimes, graph: LayoutGraph, state: State, is_reversed: bool) -> list[tuple[int, int, bool]]:
    """Return the states of the graph one step after ``state``, or before it if ``is_reversed``.

    Returns:
        For each its number, the step's time, and whether the step is a collective.
    """
    moves = list(steps.moves(state, bool(graph.partial.any()), graph.orders.runs))
    numbers = graph.number_of([move.target for move in moves]).tolist()
    ways = [(state, move) for move in moves]
    if is_reversed:
        ways = [(move.target, move._replace(kind=_REVERSED[move.kind], target=state)) for move in moves]
    return [(n, steps.time_ns(*way), way[1].kind in COMMUNICATING) for n, way in zip(numbers, ways, strict=True)]
