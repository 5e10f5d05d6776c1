"""The inner loop of the bulk search, compiled by Numba: the same distances as :func:`.bulk.relaxed` in NumPy, to the bit.

Importing this module needs Numba, and compiles where there is no compiled code on disk yet (some seconds, once).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba  # type: ignore[import-untyped,import-not-found,unused-ignore]
import numpy as np

_Function = TypeVar("_Function", bound=Callable[..., Any])


def _compile(function: _Function) -> _Function:
    result: Any = numba.njit(cache=True, nogil=True)(function)
    return cast(_Function, result)


@_compile
def relax(start: Any, source: Any, weight: Any, order: Any, distance: Any, never: int) -> int:
    """Lower ``distance`` [states, rows] in place until no edge can lower it; how often all states were gone through.

    Args:
        start: int64[states + 1], state t is reached by edges start[t] to start[t + 1].
        source: int32[edges]; weight: of distance's type, [edges].
        order: in which states are gone through; back and forth.
        never: what stands where nothing was reached.
    """
    n_states, n_rows = distance.shape
    best = np.empty(n_rows, distance.dtype)
    changed = np.full(n_states, -1, np.int64)  # when a state's distances were last lowered
    for state in range(n_states):
        if distance[state].min() < never:
            changed[state] = 0
    seen = np.full(n_states, -1, np.int64)  # when its incoming edges were last looked at
    now = rounds = last = 0
    while True:
        rounds += 1
        for place in range(n_states):
            state = order[place] if rounds % 2 else order[n_states - 1 - place]
            now += 1
            is_first = True
            for edge in range(start[state], start[state + 1]):
                origin = source[edge]
                if changed[origin] > seen[state]:
                    added = weight[edge]
                    row = distance[origin]
                    if is_first:
                        is_first = False
                        best[:] = distance[state]
                    for i in range(n_rows):
                        best[i] = min(best[i], row[i] + added)
            seen[state] = now
            if not is_first:
                differs = 0
                own = distance[state]
                for i in range(n_rows):
                    differs |= own[i] ^ best[i]
                    own[i] = best[i]
                if differs:
                    changed[state] = now
                    last = rounds
        if last < rounds:
            return rounds
