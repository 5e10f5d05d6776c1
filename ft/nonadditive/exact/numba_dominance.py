"""The inner loop of :mod:`.dominance`, compiled by Numba. Importing this module needs Numba."""

from __future__ import annotations

from typing import Any

import numba  # type: ignore[import-untyped,import-not-found,unused-ignore]
import numpy as np


def _mark_undominated(in_set: Any, costs: Any, kept: Any) -> None:
    """Mark the points that stay, in place; see :func:`.dominance.undominated`.

    A point that beat the last one often beats the next one too, so it moves to the middle of what comes before it.
    """
    n_costs, n_points = costs.shape
    staying = np.empty(n_points, np.int64)
    n_staying, current = 0, -1
    for point in range(n_points):
        if in_set[point] != current:
            current, n_staying = in_set[point], 0
        is_beaten = False
        for i in range(n_staying):
            other = staying[i]
            is_beaten = True
            for cost in range(1, n_costs):
                if costs[cost, other] > costs[cost, point]:
                    is_beaten = False
                    break
            if is_beaten:
                staying[i], staying[i // 2] = staying[i // 2], other
                break
        if not is_beaten:
            staying[n_staying] = point
            n_staying += 1
            kept[point] = True


mark_undominated: Any = numba.njit(cache=True, nogil=True)(_mark_undominated)
