"""Search for one path by Dijkstra's algorithm, on layouts that are enumerated as they are reached.

O(E log L) for E edges and L layouts that are nearer than the target, usually far fewer than there are.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Sequence

from ..layout import Axes, Shape
from ..orders import Ints, Orders, mask_of_axes, orders
from ..steps import COMMUNICATING, SIZED_BY_RESULT, Move, State, move_between, moves, n_copies

Ask = Callable[[str, Axes, int], int]
"""A cost model for one tensor: (kind, ascending axes, elements of the largest shard) to nanoseconds."""
AskAll = Callable[[Sequence[str], Sequence[Axes], Ints], Ints]
"""The same for each of some kinds, each of some axes, and each of some numbers of elements, int64[kinds, axes, elements]."""


class StepTimes:
    """The times of one tensor's moves. The cost model is asked once for each distinct (kind, axes, elements).

    ``ask_all`` asks it for many at once, in arrays; None for cost models that can't be asked so.
    """

    def __init__(self, axis_sizes: Axes, shape: Shape, ask: Ask, ask_all: AskAll | None = None) -> None:
        self.axis_sizes, self.shape, self._ask, self.ask_all = axis_sizes, shape, ask, ask_all
        self._elements: dict[State, int | None] = {}
        self._times: dict[tuple[str, Axes, int], int] = {}

    def elements(self, state: State) -> int | None:
        """Return the number of elements of the largest shard; None for a state that does not fit."""
        if state not in self._elements:
            counts = [math.prod(self.axis_sizes[axis] for axis in axes) for axes in state.splits]
            fits = all(count <= max(extent, 1) for extent, count in zip(self.shape, counts, strict=True))
            sizes = (-(-extent // count) for extent, count in zip(self.shape, counts, strict=True))
            self._elements[state] = math.prod(sizes) if fits else None
        return self._elements[state]

    def time_ns(self, state: State, move: Move) -> int:
        """Return the time of a move between states that fit."""
        elements = self.elements(move.target if move.kind in SIZED_BY_RESULT else state)
        assert elements is not None
        axes = tuple(sorted(move.axes))
        time_ns = self.ask(move.kind if move.kind in COMMUNICATING else "local", axes, elements)
        copies = n_copies(move.kind, move.dim, move.to_dim, self.shape)
        return time_ns + copies * self.ask("local", axes, elements) if copies else time_ns

    def ask(self, kind: str, axes: Axes, elements: int) -> int:
        """Return the cost model's time, from the cache where it was asked before."""
        key = (kind, axes, elements)
        if key not in self._times:
            self._times[key] = self._ask(kind, axes, elements)
        return self._times[key]

    def moves(self, state: State, may_be_partial: bool, runs: int | None) -> Iterator[Move]:
        """Yield the moves to states that fit, are of few runs, and partial only where that is allowed."""
        for move in moves(len(self.axis_sizes), state, runs):
            if (may_be_partial or not move.target.partial) and self.elements(move.target) is not None:
                yield move


Between = Callable[["StepTimes", State, State, bool, "int | None"], "list[Move]"]


def cheapest_moves(
    times: StepTimes, source: State, target: State, may_be_partial: bool, runs: int | None, between: Between | None = None
) -> list[Move]:
    """Return the moves of the cheapest path between two states that fit.

    Args:
        between: finds the moves between states of which at most one part each has too many runs; None for
            :func:`dijkstra_moves`.
        may_be_partial: whether the states on the way may be partial.
        runs: the most runs of axes that a dimension of a state on the way may be made of; None for any number.
    """
    if source == target:
        return []
    table = orders(len(times.axis_sizes), runs)
    leaving, entering = unwinding(source, table), unwinding(target, table)
    if (leaving or entering) and (direct := move_between(source, target)):
        return [direct]
    near_source = leaving[-1].target if leaving else source
    near_target = entering[-1].target if entering else target
    moves = (between or dijkstra_moves)(times, near_source, near_target, may_be_partial, runs)
    return [*leaving, *moves, *rewinding(target, entering)]


def unwinding(state: State, table: Orders) -> list[Move]:
    """Return the moves after which at most one part of a state (dimension, or partial axes) has too many runs.

    One step turns one such part into one of few runs, but not two: without these moves first, or :func:`rewinding` them
    last, there might be no path. Few layouts need any: those with merged dimensions, of several groups of axes each.
    """
    path: list[Move] = []
    dims = [dim for dim, axes in enumerate(state.splits) if axes not in table.number]
    for dim in dims if not table.can_be_partial[mask_of_axes(state.partial)] else dims[:-1]:
        axes = state.splits[dim]
        state = State((*state.splits[:dim], (), *state.splits[dim + 1 :]), state.partial)
        path.append(Move("all_gather", axes, dim, None, state))
    return path


def rewinding(state: State, moves_from: list[Move]) -> list[Move]:
    """Return the moves back along those of :func:`unwinding`, to ``state``."""
    targets = [state, *(move.target for move in moves_from)]
    return [
        Move("slice", move.axes, move.dim, None, target)
        for move, target in zip(reversed(moves_from), reversed(targets[:-1]), strict=True)
    ]


def path_time_ns(times: StepTimes, state: State, path: list[Move]) -> int:
    """Return the sum of the times of moves that start at ``state``."""
    origins = [state, *(move.target for move in path)]
    return sum(times.time_ns(origin, move) for origin, move in zip(origins, path, strict=False))


def dijkstra_moves(times: StepTimes, source: State, target: State, may_be_partial: bool, runs: int | None) -> list[Move]:
    """Return the moves of the cheapest path between two states of which at most one part each has too many runs."""
    is_reachable = orders(len(times.axis_sizes), runs).has(*target)
    distance = {source: (0, 0, 0)}  # time, collectives, steps
    arrivals: dict[State, tuple[State, Move]] = {}
    heap = [((0, 0, 0), 0, source)]
    while heap:
        so_far, _, state = heapq.heappop(heap)
        if state == target:
            break
        if so_far > distance[state]:
            continue
        last = None if is_reachable else move_between(state, target)
        for move in (*times.moves(state, may_be_partial, runs), *([last] if last else [])):
            communicates = move.kind in COMMUNICATING
            cost = (so_far[0] + times.time_ns(state, move), so_far[1] + communicates, so_far[2] + 1)
            least = distance.get(move.target)
            if least is None or cost < least:
                distance[move.target] = cost
                arrivals[move.target] = (state, move)
                heapq.heappush(heap, (cost, len(heap), move.target))
            elif cost == least and enumeration_order(state) < enumeration_order(arrivals[move.target][0]):
                arrivals[move.target] = (state, move)
    path = []
    while target != source:
        target, move = arrivals[target]
        path.append(move)
    return path[::-1]


def enumeration_order(state: State) -> tuple[int, Axes, int, Axes, tuple[int, ...]]:
    """Return a key that sorts states as `all_states` of `tests/oracles/layouts.py` enumerates them."""
    lengths = [len(axes) for axes in state.splits]
    starts = tuple(sum(lengths[:dim]) for dim in range(len(lengths)))
    return len(state.partial), state.partial, sum(lengths), sum(state.splits, ()), starts
