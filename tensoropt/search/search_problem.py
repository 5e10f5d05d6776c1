"""Search a problem for its frontier, without rematerialization and with it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ..ft import Budget, Frontier, Problem, search, search_overlapping
from ..ft.nonadditive.local_search import Descent
from ..ft.nonadditive.overlap import Overlap
from ..ft.nonadditive.segment_memory import agreed, joined, with_more
from .problem.objectives import MEMORY_TIME, Objectives, problem_for
from .problem.strategy_problem import StrategyProblem
from .problem.warm_start import adopted

GAP_AGAIN, MOST_POINTS_AGAIN = 0.02, 1000
"""The least gap at which a search with rematerialization stops, and the most points to which it thins partial frontiers: its
lower bound is that of a weighted sum anyway, so nearer to it isn't worth the time.
"""


def search_problem(
    plain: StrategyProblem,
    rematerializing: StrategyProblem | None,
    objectives: Objectives,
    algorithm: str,
    progress: Callable[[int, int], None] | None,
    budget: Budget,
) -> Frontier:
    """Return the frontier of ``plain`` joined with that of ``rematerializing``, where there is such a problem.

    Args:
        plain: the problem without rematerialization.
        rematerializing: the problem with it; None where there is none. The result is then in its states, and no point is
            above one of ``plain``'s frontier.
    """

    def found(problem: Problem, overlap: Overlap | None, budget: Budget) -> Frontier:
        if overlap is None or objectives != MEMORY_TIME:
            return search(problem, algorithm, progress, budget)
        return search_overlapping(problem, overlap, algorithm, progress, budget)

    started = time.monotonic()
    kept = found(problem_for(plain, objectives), plain.overlap, budget)
    if rematerializing is None or rematerializing.transient is None:
        return kept
    problem, overlap, transient = (
        problem_for(rematerializing, objectives),
        rematerializing.overlap,
        rematerializing.transient,
    )
    gap, max_points = max(budget.gap, GAP_AGAIN), min(budget.max_points, MOST_POINTS_AGAIN)
    left_s = max(budget.seconds / 2, budget.seconds - (time.monotonic() - started))
    again_budget = replace(budget, seconds=left_s, gap=gap, max_points=max_points)

    def improved(both: Frontier, strategies: np.ndarray) -> Frontier:
        """Return the frontier with what changes make of its strategies, and of others of the same search."""
        descent = Descent(problem, transient, time.monotonic() + budget.seconds)
        mem, time_ns, strategies = descent.improved(np.concatenate([strategies, both.strategies]))
        if overlap is not None and objectives == MEMORY_TIME:
            time_ns = time_ns - overlap.hidden_ns(problem, strategies)
        return with_more(both, mem, time_ns, strategies)

    began = time.monotonic()
    again = found(transient.charged(problem), overlap, again_budget)
    kept = replace(kept, strategies=adopted(rematerializing, plain, kept.strategies))
    best = improved(joined(kept, transient.at_true_memory(problem, again)), again.strategies)
    for other in transient.other_charges():
        now = time.monotonic()
        if best.worst_gap <= budget.gap or 2 * now - began > started + budget.seconds:
            break
        began = now
        again = found(other.charged(problem), overlap, again_budget)
        best = improved(agreed(best, other.at_true_memory(problem, again)), again.strategies)
    return best
