"""Search a problem for its frontier, without rematerialization and with it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

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


@dataclass(frozen=True, slots=True)
class ProblemSearch:
    """A search of a model's problems: first of the one without rematerialization, then of the one with it.

    Attributes:
        objectives: the two costs that are searched.
        algorithm: one of ``ft.ALGORITHMS``.
        progress: called with (done, total) now and then.
        budget: the effort for both problems together.
    """

    objectives: Objectives
    algorithm: str
    progress: Callable[[int, int], None] | None
    budget: Budget

    def plain(self, built: StrategyProblem) -> Frontier:
        """Return the frontier of a problem without rematerialization."""
        return self._found(problem_for(built, self.objectives), built.overlap, self.budget)

    def with_rematerialization(
        self, plain: StrategyProblem, kept: Frontier, seconds: float, rematerializing: StrategyProblem
    ) -> Frontier:
        """Return the frontier of a problem with rematerialization, in its states; no point is above one of ``kept``.

        Args:
            plain: the problem without rematerialization.
            kept: its frontier.
            seconds: how long the search for that took.
        """
        transient, overlap, budget = rematerializing.transient, rematerializing.overlap, self.budget
        assert transient is not None
        problem = problem_for(rematerializing, self.objectives)
        gap, max_points = max(budget.gap, GAP_AGAIN), min(budget.max_points, MOST_POINTS_AGAIN)
        left_s = max(budget.seconds / 2, budget.seconds - seconds)
        limited = replace(budget, seconds=left_s, gap=gap, max_points=max_points)
        began = time.monotonic()
        ends = began + budget.seconds - seconds

        def improved(both: Frontier, strategies: np.ndarray) -> Frontier:
            """Return the frontier with what changes make of its strategies, and of others of the same search."""
            descent = Descent(problem, transient, time.monotonic() + budget.seconds)
            mem, time_ns, strategies = descent.improved(np.concatenate([strategies, both.strategies]))
            if overlap is not None and self.objectives == MEMORY_TIME:
                time_ns = time_ns - overlap.overlap_ns(problem, strategies)
            return with_more(both, mem, time_ns, strategies)

        again = self._found(transient.charged(problem), overlap, limited)
        kept = replace(kept, strategies=adopted(rematerializing, plain, kept.strategies))
        best = improved(joined(kept, transient.at_true_memory(problem, again)), again.strategies)
        for other in transient.other_charges():
            now = time.monotonic()
            if best.worst_gap <= budget.gap or 2 * now - began > ends:
                break
            began = now
            again = self._found(other.charged(problem), overlap, limited)
            best = improved(agreed(best, other.at_true_memory(problem, again)), again.strategies)
        return best

    def _found(self, problem: Problem, overlap: Overlap | None, budget: Budget) -> Frontier:
        if overlap is None or self.objectives != MEMORY_TIME:
            return search(problem, self.algorithm, self.progress, budget)
        return search_overlapping(problem, overlap, self.algorithm, self.progress, budget)
