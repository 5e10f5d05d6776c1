"""Search a problem for its frontier, without rematerialization and with it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from ..ft import Budget, Frontier, Problem, search, search_overlapping
from ..ft.nonadditive.exact.frontiers import Effort
from ..ft.nonadditive.exact.search import (
    LITTLE,
    PAIRS_OF_ARC,
    Lined,
    Solved,
    corners_within,
    frontier_within,
    lines_within,
)
from ..ft.nonadditive.local_search import Descent
from ..ft.nonadditive.overlap import Overlap
from ..ft.nonadditive.segment_memory import Transient, agreed, joined, with_more
from .problem.objectives import MEMORY_TIME, Objectives, problem_for
from .problem.strategy_problem import StrategyProblem

FIRST_GAP_AGAIN, MOST_POINTS_AGAIN = 0.02, 1000
"""The least gap at which a first search with rematerialization stops, and the most points to which it thins partial
frontiers: its lower bound is that of a weighted sum, so that nearer to it there is often little to gain. While there is time
and a larger gap than is asked for, a second search goes nearer.
"""
MOST_ARCS = 1 << 19
"""The size up to which a problem is searched exactly while there is time (:mod:`..ft.nonadditive.exact.eliminations`)."""
FAR = 0.04
"""The gap from which bounds by segment are looked for in a larger problem, each of which takes some tenths of a second."""
MOST_EPSILON, LEAST_EPSILON, NEARER = 0.25, 1e-3, 1.4
"""The largest gap that a search by segment can aim at, one below which it is exact, and how much nearer the next goes."""
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

    def plain(self, built: StrategyProblem, is_last: bool = True) -> Frontier:
        """Return the frontier of a problem without rematerialization.

        Args:
            is_last: whether no search with rematerialization may follow, for which time is to be left.
        """
        budget = self.budget if is_last else replace(self.budget, seconds=SHARE * self.budget.seconds)
        return self._found(problem_for(built, self.objectives), built.overlap, budget)

    def at_once(self, rematerializing: StrategyProblem) -> Frontier | None:
        """Return the exact frontier of a small problem with rematerialization; None where finding it would take much.

        It has all strategies, those without rematerialization too, so that no other search is needed.
        """
        if self.progress is not None:
            self.progress(0, 1)
        nothing = np.zeros((0, len(rematerializing.problem.nodes)), np.int32)
        return self._within(rematerializing, nothing, {}, LITTLE, 0.0)

    def with_rematerialization(self, kept: Frontier, seconds: float, rematerializing: StrategyProblem) -> Frontier:
        """Return the frontier of a problem with rematerialization, in its states; no point is above one of ``kept``.

        Args:
            kept: the frontier of the problem without, in the states of this one (:func:`.problem.warm_start.adopted`).
            seconds: how long the search for that took, which counts for the budget.
        """
        transient, overlap = rematerializing.transient, rematerializing.overlap
        assert transient is not None
        problem = problem_for(rematerializing, self.objectives)
        exact = self._within(rematerializing, kept.strategies, kept.eliminations, LITTLE, 0.0)
        if exact is not None:
            return exact
        began = time.monotonic()
        deadline = began + self.budget.seconds - seconds

        def searched(charge: Transient, gap: float) -> Frontier:
            left_s, max_points = max(0.0, deadline - time.monotonic()), min(self.budget.max_points, MOST_POINTS_AGAIN)
            limited = replace(self.budget, seconds=left_s, max_points=max_points, gap=gap)
            return self._found(charge.charged(problem), overlap, limited)

        def improved(both: Frontier, strategies: np.ndarray) -> Frontier:
            """Return the frontier with what changes make of its strategies, and of others of the same search."""
            mem, time_ns, strategies = descent.improved(np.concatenate([strategies, both.strategies]))
            if overlap is not None and self.objectives == MEMORY_TIME:
                time_ns = time_ns - overlap.overlap_ns(problem, strategies)
            return with_more(both, mem, time_ns, strategies)

        again = searched(transient, max(self.budget.gap, FIRST_GAP_AGAIN))
        # The first result always counts, however long it took: changes have their part of the seconds in any case.
        deadline = max(deadline, time.monotonic() + SHARE * self.budget.seconds)
        descent = Descent(problem, transient, deadline)
        best = improved(joined(kept, transient.at_true_memory(problem, again)), again.strategies)
        until = max(deadline, time.monotonic() + SHARE * self.budget.seconds)
        lined = self._lined(rematerializing, best, until)
        best = best if lined is None else agreed(best, self._of_solved(lined.solved(), best.eliminations))
        nearer = [] if again.worst_gap <= self.budget.gap else [transient]
        for charge in (*nearer, *(transient.other_charges() if lined is None or lined.eliminations is None else ())):
            now = time.monotonic()
            if best.worst_gap <= self.budget.gap or 2 * now - began > deadline:
                break
            began, again = now, searched(charge, self.budget.gap)
            best = improved(agreed(best, charge.at_true_memory(problem, again)), again.strategies)
        return best if lined is None or lined.eliminations is None else self._nearer(rematerializing, best, lined, until)

    def _lined(self, built: StrategyProblem, best: Frontier, deadline: float) -> Lined | None:
        """Return what weighted sums by segment prove of a problem's strategies; None where it would take too much.

        Their bound is above those of all charges, since each corner has weights of its own.

        Args:
            best: points of the problem.
            deadline: by ``time.monotonic``.
        """
        if best.worst_gap <= self.budget.gap or time.monotonic() > deadline or not self._has_sums(built):
            return None
        n_pairs = sum(edge.mem_bytes.size for edge in built.problem.edges)
        if n_pairs > PAIRS_OF_ARC * MOST_ARCS and best.worst_gap < FAR:
            return None
        assert built.transient is not None
        problem = problem_for(built, self.objectives)
        effort = Effort(MOST_ARCS, math.inf, deadline)
        return lines_within(problem, built.transient, best.strategies, effort, self.budget.gap)

    def _has_sums(self, built: StrategyProblem) -> bool:
        """Return whether memory is the largest of several sums, and time a sum."""
        return built.transient is not None and built.overlap is None and self.algorithm != "exhaustive"

    def _nearer(self, built: StrategyProblem, best: Frontier, lined: Lined, deadline: float) -> Frontier:
        """Return a problem's frontier with what searches by segment add while there is time, each nearer than the last.

        Args:
            best: points of the problem, with a lower bound of it.
            lined: what weighted sums prove.
            deadline: by ``time.monotonic``.
        """
        problem, epsilon = problem_for(built, self.objectives), MOST_EPSILON
        while best.worst_gap > self.budget.gap and time.monotonic() < deadline:
            epsilon = max(min(best.worst_gap, epsilon) / NEARER, self.budget.gap)
            epsilon = epsilon if epsilon >= LEAST_EPSILON else 0.0
            is_near = False
            if epsilon:
                solved, is_near = corners_within(lined, problem, epsilon, deadline)
                best = agreed(best, self._of_solved(solved, best.eliminations))
            if not is_near:  # all corners together, as long as there is time
                effort = Effort(MOST_ARCS, math.inf, deadline)
                found = self._within(built, best.strategies, best.eliminations, effort, epsilon, lined)
                if found is None:
                    break
                best = agreed(best, found)
        return best

    def _within(
        self,
        built: StrategyProblem,
        known: np.ndarray,
        before: Mapping[str, int],
        effort: Effort,
        epsilon: float,
        lined: Lined | None = None,
    ) -> Frontier | None:
        """Return the frontier of a problem with rematerialization, by segment; None where finding it would take too much.

        Args:
            known: strategies that were found before, int32[P, nodes], in the problem's states.
            before: the number of eliminations of each kind that they took.
            epsilon: how near the points must be, as a gap; 0 for the exact frontier.
            lined: what weighted sums prove.
        """
        if not self._has_sums(built):
            return None
        assert built.transient is not None
        problem = problem_for(built, self.objectives)
        solved = frontier_within(problem, built.transient, known, effort, epsilon, lined)
        return None if solved is None else self._of_solved(solved, before)

    def _of_solved(self, solved: Solved, before: Mapping[str, int]) -> Frontier:
        """Return what a search by segment found as a frontier.

        Args:
            before: the number of eliminations of each kind that came before.
        """
        counts = {kind: before.get(kind, 0) + solved.counts.get(kind, 0) for kind in {**before, **solved.counts}}
        found = solved.found
        return Frontier(found.mem, found.time, found.strategies, counts, self.algorithm, solved.bound)

    def _found(self, problem: Problem, overlap: Overlap | None, budget: Budget) -> Frontier:
        if overlap is None or self.objectives != MEMORY_TIME:
            return search(problem, self.algorithm, self.progress, budget)
        return search_overlapping(problem, overlap, self.algorithm, self.progress, budget)
