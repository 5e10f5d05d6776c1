"""Search for the frontier of a problem: ``search(problem, algorithm) -> Frontier`` (Algorithm 2, Frontier-Tracking).

| algorithm | steps | use |
|---|---|---|
| ``ft-ldp`` | mark the linear graph, eliminate the rest, LDP, unroll | the default |
| ``ft-elimination`` | eliminate down to nothing, unroll | for comparison with the paper's |
| ``exhaustive`` | try every strategy | small problems, tests |

All three give the same points, to the byte and the nanosecond, unless a limit of the :class:`.Budget` was reached. The
result then says so and carries a lower bound, which limits how far it can be from the true frontier.

1. A small problem is solved exactly. This attempt ends where it would take too much.
2. Otherwise weighted searches find the states that matter and bound all strategies, and Frontier-Tracking works on these
   states (:mod:`.guided`). This phase always counts, however long it takes. Where phase 1 left a gap by thinning alone,
   phase 2 is done only while there is time.
3. While there is time and a gap, there are more rounds of phase 2.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace

from .budget import Budget
from .elimination.solver import Limits
from .elimination.table_graph import TableGraph, TooLargeError
from .elimination.tracking import track
from .frontier import Frontier, settled
from .guided import Guide
from .interning import interned
from .lower_bound import LowerBound
from .presolve.dead_end_elimination import without_replaceable
from .presolve.supported_states import supported_states
from .problem import Problem, in_states
from .reference.exhaustive import exhaustive
from .tables.thinning import Thinning
from .weighted.weighted_search import TimeIsUpError

Progress = Callable[[int, int], None]
ALGORITHMS = ("ft-ldp", "ft-elimination", "exhaustive")
MAX_PAIRS = 1 << 21
"""Pairs of states over all edges up to which an exact solution is tried first."""
_MORE = 4


def search(
    problem: Problem, algorithm: str = "ft-ldp", progress: Progress | None = None, budget: Budget | None = None
) -> Frontier:
    """Find the frontier of a problem.

    Args:
        algorithm: one of ALGORITHMS.
        progress: called with (done, total) now and then.
        budget: how hard to search; ``Budget()`` if not given. Enumeration has its own limit only.

    Raises:
        ValueError: unknown algorithm, or too many strategies to enumerate.
        InfeasibleError: no strategy is allowed.
    """
    if algorithm not in ALGORITHMS:
        raise ValueError(f"unknown algorithm {algorithm!r}; choose one of {', '.join(ALGORITHMS)}")
    if algorithm == "exhaustive":
        return exhaustive(problem, progress)
    return _Search(problem, algorithm, progress, budget or Budget()).run()


class _Search:
    """One run of a search.

    Attributes:
        deadline: by the monotonic clock; infinite until there is a first result.
    """

    def __init__(self, problem: Problem, algorithm: str, progress: Progress | None, budget: Budget) -> None:
        self.problem, self.algorithm, self.progress, self.budget = interned(problem), algorithm, progress, budget
        self.uses_ldp = algorithm == "ft-ldp"
        self.start, self.deadline = time.monotonic(), math.inf

    def run(self) -> Frontier:
        if self.progress is not None:
            self.progress(0, len(self.problem.nodes))
        supported_states(self.problem)  # else it says where the contradiction is
        if all(node.n_states == 1 for node in self.problem.nodes):
            return replace(exhaustive(self.problem), algorithm=self.algorithm)
        limits = Limits(self.budget.max_table_cells, self.budget.max_work, is_strict=True)
        n_pairs = sum(edge.mem_bytes.size for edge in self.problem.edges)
        best = self._tracked(limits) if n_pairs <= MAX_PAIRS else None
        if best is not None and (self._is_enough(best) or time.monotonic() > self.start + self.budget.seconds):
            return best
        return self._by_weights(best)

    def _by_weights(self, best: Frontier | None) -> Frontier:
        """Search by the phases 2 and 3 of the module docstring, beginning with what phase 1 found, if anything."""
        guide = Guide(self.problem, self.uses_ldp, self.budget.max_points, self._report, self.budget.gap)
        start = time.monotonic()
        guide.round()
        best = self._with_guided(best, guide)
        self.deadline = self.start + self.budget.seconds
        while not self._is_enough(best):
            # A round takes longer by up to the factor by which it has more cells, and a running elimination isn't cut short.
            expected = _MORE * (time.monotonic() - start)
            start = time.monotonic()
            if start + expected > self.deadline:
                break
            try:
                guide.round(self.deadline)
                best = self._with_guided(best, guide)
            except TimeIsUpError:
                break
        return best

    def _is_enough(self, best: Frontier) -> bool:
        """Return whether the frontier is exact, or its worst gap is one to stop at."""
        return best.exact or best.worst_gap <= self.budget.gap

    def _with_guided(self, best: Frontier | None, guide: Guide) -> Frontier:
        """Return the frontier of what was known and of what a guide found."""
        assert guide.found is not None
        points = guide.found
        guided = Frontier(points.mem, points.time, points.strategies, guide.counts, self.algorithm, guide.bound)
        return settled(guided) if best is None else best.joined(guided)

    def _tracked(self, limits: Limits) -> Frontier | None:
        """Return the frontier, by eliminations alone; None if that takes too much.

        Raises:
            InfeasibleError: no strategy is allowed.
        """
        reduced = without_replaceable(self.problem)
        states = supported_states(reduced)
        reduced = reduced.restricted(states)
        thinning = Thinning.of(reduced, 0.0, self.budget.max_points)
        try:
            tracked = track(reduced, self.uses_ldp, thinning, limits, self._report)
        except TooLargeError:
            return None
        has_slack = any(tracked.slack)
        bound = LowerBound.within(tracked.mem, tracked.time, tracked.slack, "thinning") if has_slack else None
        strategies = in_states(tracked.strategies, states)
        return settled(Frontier(tracked.mem, tracked.time, strategies, tracked.counts, self.algorithm, bound))

    def _report(self, graph: TableGraph) -> None:
        """Report progress; raise ``TimeIsUpError`` if the deadline has passed."""
        if time.monotonic() > self.deadline:
            raise TimeIsUpError
        if self.progress is not None:
            self.progress(max(len(self.problem.nodes) - len(graph.variables), 0), len(self.problem.nodes))
