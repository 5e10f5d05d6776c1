"""Count the peaks of all points that a search found."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from ..program.fast_peak import Columns, Peaks
from ..program.peak import peak_of
from ..search.problem.strategy_problem import StrategyProblem
from ..sharding.strategy import StrategyView

WORTH_LOADING = 1_500
"""So many operators, over all points, take longer to replay than the compiled kernels take to load."""
MOST_REPLAYED = 20_000
"""The most operators, over all points, that are replayed where the kernels can't count; it takes about 3 s."""
AT_ONCE = 256
"""So many points' rows are held in memory at once."""


def peaks_of(
    peaks: Peaks,
    built: StrategyProblem,
    states: np.ndarray,
    view_of: Callable[[int], StrategyView],
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> np.ndarray | None:
    """Return the peaks of strategies, int64[P]; None where that would take long.

    Args:
        built: the problem whose states these are.
        states: int32[P, nodes].
        view_of: returns the strategy of a number, on its graph.
        on_progress: called with (done, total) now and then.
    """
    n = len(states)
    n_operators = n * built.n_operators
    if peaks.is_quick and n_operators > WORTH_LOADING:
        found = []
        for first in range(0, n, AT_ONCE):
            on_progress(first, n)
            part = states[first : first + AT_ONCE]
            view = cache(lambda i, first=first: view_of(first + i))
            found.append(peaks.of_columns(_columns(peaks, built, part), view))
        return np.concatenate(found)
    if n_operators > MOST_REPLAYED:
        return None
    replayed = np.empty(n, np.int64)
    for i in range(n):
        on_progress(i, n)
        replayed[i] = peak_of(view_of(i), peaks.costing, peaks.router).n_bytes
    return replayed


def _columns(peaks: Peaks, built: StrategyProblem, states: np.ndarray) -> Columns:
    """Return strategies, int32[P, nodes], as columns of numbers."""
    rows, configs, rematerialized = peaks.rows, {}, {}
    for i, (node, of_node) in enumerate(built.nodes):
        column = states[:, i]
        for op, of_op, place in zip(node.operators, of_node.configs, of_node.place, strict=True):
            numbers = np.array([rows.config_number(config) for config in of_op], np.int32)
            configs[op.name] = numbers[place[column]]
        for k in of_node.rematerialized:
            rematerialized[node.operators[k].name] = of_node.rematerializes[column].astype(np.int32)
    shared = {
        copy.tensor.name: np.array([rows.sharding_number(each) for each in copy.shardings], np.int32)[states[:, copy.node]]
        for copy in built.shared
    }
    regathered = {
        choice.copy: np.asarray(choice.is_regathered)[states[:, choice.node]].astype(np.int32) for choice in built.choices
    }
    return Columns(len(states), configs, shared, regathered, rematerialized)
