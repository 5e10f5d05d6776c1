"""The inner loops of the searches for paths, compiled by Numba.

:func:`relax` is for :mod:`.bulk`; the others are for :mod:`.quick`.

It compiles where there is no compiled code on disk yet (some seconds, once).
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Any

import numpy as np

from ...common.compiled import compiled

# In the search for a single path a step's weight is its time, shifted left by TIE_BITS. The lower bits break ties: fewer
# collectives, then fewer steps. There is room for 31 steps, and no cheapest path comes near that.
TIE_BITS = 10
LOCAL = 1
COLLECTIVE = (1 << 5) + LOCAL
LONGEST = 1 << 51  # a longer time doesn't leave room for these bits; NEVER, of states that don't fit, is longer too
FAR = LONGEST << TIE_BITS


@compiled
def relax(start: Any, source: Any, weight: Any, order: Any, distance: Any, never: int) -> int:
    """Lower ``distance`` [states, rows] in place until no edge can lower it, and return the number of rounds.

    Args:
        start: int64[states + 1]; state t is reached by edges start[t] to start[t + 1].
        source: int32[edges].
        weight: [edges], of distance's type.
        order: the order of the states in odd rounds; even rounds go through it backwards.
        never: the distance of states that aren't reached.
    """
    n_states, n_rows = distance.shape
    best, spare = np.empty(n_rows, distance.dtype), np.empty(n_rows, distance.dtype)
    changed = np.full(n_states, -1, np.int64)  # the time at which a state's distances were last lowered
    for state in range(n_states):
        if distance[state].min() < never:
            changed[state] = 0
    visit_time = np.full(n_states, -1, np.int64)  # the time at which its incoming edges were last looked at
    clock = rounds = last = 0
    while True:
        rounds += 1
        for index in range(n_states):
            state = order[index] if rounds % 2 else order[n_states - 1 - index]
            clock += 1
            is_first = True
            for edge in range(start[state], start[state + 1]):
                origin = source[edge]
                if changed[origin] > visit_time[state]:
                    added = weight[edge]
                    row = distance[origin]
                    if is_first:
                        is_first = False
                        best[:] = distance[state]
                    # A sum fits its type, since NEVER is at most half of the largest number. Nothing is lowered in place:
                    # the compiler would store 64 bits under a mask, which some processors do many times more slowly.
                    for i in range(n_rows):
                        spare[i] = min(best[i], distance.dtype.type(row[i] + added))
                    best, spare = spare, best
            visit_time[state] = clock
            if not is_first:
                difference = 0
                own = distance[state]
                for i in range(n_rows):
                    difference |= own[i] ^ best[i]
                    own[i] = best[i]
                if difference:
                    changed[state] = clock
                    last = rounds
        if last < rounds:
            return rounds


@compiled
def _weight(time_ns: Any, communicates: Any, edge: int) -> Any:
    """Return a step's time with what breaks ties; FAR for a step between layouts that don't fit."""
    if time_ns[edge] >= LONGEST:
        return FAR
    return (time_ns[edge] << TIE_BITS) + (COLLECTIVE if communicates[edge] else LOCAL)


@compiled
def distances(start: Any, other: Any, edges: Any, time_ns: Any, communicates: Any, end: int) -> Any:
    """Return the weights of the cheapest paths between one end and each state, int64[states]; FAR where there is none.

    Args:
        start: int64[states + 1]; the edges at state t are start[t] to start[t + 1].
        other: int32[edges], the state at the other end of each: its source for paths to ``end``, its target for paths
            from there.
        edges: int32[edges], the number of each in ``time_ns`` and ``communicates``.
    """
    n_states = len(start) - 1
    distance = np.full(n_states, FAR, np.int64)
    is_settled = np.zeros(n_states, np.bool_)
    distance[end] = 0
    heap = [(0, end)]
    while len(heap) > 0:
        so_far, state = heappop(heap)
        if is_settled[state]:
            continue
        is_settled[state] = True
        for i in range(start[state], start[state + 1]):
            cost = so_far + _weight(time_ns, communicates, edges[i])
            if cost < distance[other[i]]:
                distance[other[i]] = cost
                heappush(heap, (cost, np.int64(other[i])))
    return distance


@compiled
def on_cheapest_paths(start: Any, target: Any, edges: Any, time_ns: Any, communicates: Any, rest: Any, firsts: Any) -> Any:
    """Return the states on the cheapest paths from any of ``firsts``, bool[states], given what is left from each state.

    Args:
        start, target, edges: as in :func:`distances`, for paths from a state.
        rest: int64[states], of :func:`distances` to the end of the paths.
    """
    is_between = np.zeros(len(start) - 1, np.bool_)
    is_between[firsts] = True
    stack = list(firsts)
    while len(stack) > 0:
        state = stack.pop()
        for i in range(start[state], start[state + 1]):
            after = np.int64(target[i])
            if not is_between[after] and rest[state] == rest[after] + _weight(time_ns, communicates, edges[i]):
                is_between[after] = True
                stack.append(after)
    return is_between
