"""Search a problem for its frontier, without rematerialization and with it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ..costs.objectives import MEMORY_TIME, Objectives
from ..ft import Budget, Frontier, InfeasibleError, Problem, search, search_overlapping
from ..ft.frontier import settled
from ..ft.nonadditive.lines import lines_within
from ..ft.nonadditive.local_search import Descent
from ..ft.nonadditive.overlap import Overlap
from ..ft.nonadditive.relaxations import Relaxations
from ..ft.weighted.lagrangian import Found
from .problem.objectives import problem_for
from .problem.strategy_problem import StrategyProblem

FIRST_GAP_AGAIN, MOST_POINTS_AGAIN = 0.02, 1000
"""The least gap at which a first search with rematerialization stops, and the most points to which it thins partial
frontiers: its lower bound is that of a weighted sum, so that nearer to it there is often little to gain. While there is time
and a larger gap than is asked for, a second search goes nearer.
"""
MOST_SEARCHES, MAX_SEGMENTS = 32, 8
"""The most searches of relaxations, and the most segments with which there are any. A small problem, of which the first is
exact, has them whatever they take.
"""
FEW_PAIRS, FAR = 1 << 21, 0.04
"""The gap from which lines are looked for in a problem of more pairs of states, where each takes some tenths of a second."""
BY_SUMS = "sums by segment"
SHARE = 0.5
"""The share of the seconds that the search without rematerialization may take where one with it follows, and the share that
is left for changes, and for bounds by segment, where what came before took all seconds.
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

    def plain(self, problem: StrategyProblem, is_last: bool = True) -> Frontier:
        """Return the frontier of a problem without rematerialization.

        Args:
            is_last: whether no search with rematerialization may follow, for which time is to be left.
        """
        budget = self.budget if is_last else replace(self.budget, seconds=SHARE * self.budget.seconds)
        return self._found(problem_for(problem, self.objectives), problem.overlap, budget)

    def with_rematerialization(self, frontier: Frontier, seconds: float, rematerializing: StrategyProblem) -> Frontier:
        """Return the frontier of a problem with rematerialization, in its states; no point is above one of ``frontier``.

        Args:
            frontier: the frontier of the problem without, in the states of this one (:func:`.problem.warm_start.adopted`).
            seconds: how long the search for that took, which counts for the budget.
        """
        transient, overlap = rematerializing.transient, rematerializing.overlap
        assert transient is not None
        problem = problem_for(rematerializing, self.objectives)
        start_s = time.monotonic()
        deadline = start_s + self.budget.seconds - seconds

        def searched(charged: Problem, gap: float) -> Frontier:
            left_s, max_points = max(0.0, deadline - time.monotonic()), min(self.budget.max_points, MOST_POINTS_AGAIN)
            limited = replace(self.budget, seconds=left_s, max_points=max_points, gap=gap)
            return self._found(charged, overlap, limited)

        def merge(best: Frontier, result: Frontier) -> Frontier:
            """Return the frontier with the strategies of a search at their true memory, and what changes make of them."""
            points = transient.at_true_memory(problem, result, relaxations.bound)
            best = replace(best, bound=relaxations.bound).with_points(points.mem_bytes, points.time_ns, points.strategies)
            mem, time_ns, strategies = descent.improved(np.concatenate([result.strategies, best.strategies]))
            if overlap is not None and self.objectives == MEMORY_TIME:
                time_ns = time_ns - overlap.overlap_ns(problem, strategies)
            relaxations.know(np.concatenate([result.time_ns, time_ns]), np.concatenate([result.strategies, strategies]))
            return best.with_points(mem, time_ns, strategies)

        repeat = searched(transient.charged(problem), max(self.budget.gap, FIRST_GAP_AGAIN))
        relaxations = Relaxations(problem, transient, repeat.lower_bound(BY_SUMS))
        is_small = repeat.exact and self.algorithm != "exhaustive"
        # The first result always counts, however long it took: changes have their part of the seconds in any case.
        deadline = max(deadline, time.monotonic() + SHARE * self.budget.seconds)
        descent = Descent(problem, transient, math.inf if is_small else deadline)
        counts = {kind: frontier.eliminations[kind] + repeat.eliminations[kind] for kind in frontier.eliminations}
        best = merge(replace(frontier, eliminations=counts), repeat)
        deadline = max(deadline, time.monotonic() + SHARE * self.budget.seconds)
        if not is_small and self._has_lines(rematerializing, best):
            points = Found(best.mem_bytes, best.time_ns, best.strategies)
            lines = lines_within(problem, transient, points, self.budget.gap, deadline)
            relaxations.prove(None, lines.bound)
            best = replace(best, bound=relaxations.bound)
            best = best.with_points(lines.found.mem, lines.found.time, lines.found.strategies)
        if repeat.worst_gap > self.budget.gap < best.worst_gap and 2 * time.monotonic() - start_s <= deadline:
            start_s, repeat = time.monotonic(), searched(transient.charged(problem), self.budget.gap)
            relaxations.prove(None, repeat.lower_bound(BY_SUMS))
            best = merge(best, repeat)
        for _ in range(MOST_SEARCHES if len(transient.segments) <= MAX_SEGMENTS else 0):
            now_s = time.monotonic()
            if best.worst_gap <= self.budget.gap or (not is_small and 2 * now_s - start_s > deadline):
                break
            relaxation = relaxations.next(best, self.budget.gap)
            if relaxation is None:
                break
            start_s = now_s
            try:
                repeat = searched(relaxations.relaxed(relaxation), self.budget.gap)
            except InfeasibleError:  # all strategies are above the capped level
                relaxations.prove(relaxation, None)
                best = settled(replace(best, bound=relaxations.bound))
            else:
                relaxations.prove(relaxation, repeat.lower_bound(BY_SUMS))
                best = merge(best, repeat)
        return best

    def _has_lines(self, problem: StrategyProblem, best: Frontier) -> bool:
        """Return whether lines may bring a frontier nearer to what is proven."""
        transient = problem.transient
        if transient is None or problem.overlap is not None or len(transient.segments) > MAX_SEGMENTS:
            return False
        n_pairs = sum(edge.mem_bytes.size for edge in problem.problem.edges)
        return not transient.has_negative and best.worst_gap > (self.budget.gap if n_pairs <= FEW_PAIRS else FAR)

    def _found(self, problem: Problem, overlap: Overlap | None, budget: Budget) -> Frontier:
        if overlap is None or self.objectives != MEMORY_TIME:
            return search(problem, self.algorithm, self.progress, budget)
        return search_overlapping(problem, overlap, self.algorithm, self.progress, budget)
