"""Unroll the points of the last table to complete strategies (Algorithm 2, lines 13 and 14).

Every table's trace says, point by point, which state an eliminated variable took and which points of which tables were added
up. LDP and eliminations leave the same kind of trace. So following the traces from the last table back to the problem's own
tables unrolls both; all points at once, O(points x variables).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from .table import States, Trace


def unroll(trace: Trace | None, n_points: int, n_variables: int, fixed: Mapping[int, int]) -> States:
    """Return the state of every variable at every point: int32[n_points, n_variables].

    Args:
        trace: the trace of a table with an empty scope.
        fixed: the states of variables that have the same state at all points.

    A variable whose states were first merged into classes is met twice: the trace farther down has its real state, and is
    followed later.
    """
    strategies = np.full((n_points, n_variables), -1, np.int32)
    for variable, state in fixed.items():
        strategies[:, variable] = state
    pending: list[tuple[Trace, npt.NDArray[np.integer]]] = []
    if trace is not None:
        pending.append((trace, np.arange(n_points)))
    while pending:
        current, points = pending.pop()
        if current.variable is not None and current.states is not None:
            strategies[:, current.variable] = current.states[points]
        pending.extend((parent, index[points]) for parent, index in current.parents)
    if (strategies < 0).any():
        raise AssertionError(f"variables {np.flatnonzero((strategies < 0).any(axis=0))} were never given a state")
    return strategies
