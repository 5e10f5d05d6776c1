"""Search large problems in rounds: weighted searches find the states that matter, Frontier-Tracking searches only these.

A round has four steps:

1. *Lines*: find the least weighted cost of all strategies for several weights (:mod:`.weighted.lagrangian`), each with a
   strategy that has (nearly) this cost. These lines bound every strategy from below.
2. *Reduced costs*: for some of the lines and each state of each node, find by how much the least weighted cost of a strategy
   with this state exceeds that of all strategies (:mod:`.weighted.weighted_search`). A strategy on the frontier is close to
   some line, so its states have small reduced costs.
3. *Restriction*: keep the states of the strategies found so far, and those of the least reduced costs.
4. *Frontier-Tracking* on the restricted problem: it finds hundreds of points between those that the lines touch.

The points are strategies of the given problem, and the lower bound holds for all of its strategies. The gap between the two
is the certificate. The next round has more cells (where lines are not exact yet), more lines and more states.

Why the gap is small: the frontier of a sum of many small parts is nearly convex (Shapley and Folkman), and the lines bound
just its convex hull.

Complexity: that of the weighted searches, O(lines x nodes x K^2 and more); the rest works on a few states per node.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from .elimination.solver import Limits, Report
from .elimination.tracking import Tracked, track
from .lower_bound import LowerBound
from .presolve.dead_end_elimination import without_replaceable
from .presolve.supported_states import supported_states
from .problem import Floats, Ints, Problem, in_states
from .tables.thinning import Thinning
from .weighted.lagrangian import Found, Hull, lagrangian
from .weighted.weighted_search import WeightedSearch

FIRST_CELLS = 1 << 16
FIRST_LINES = 12
WITH_MARGINALS = 3
"""Number of lines for which reduced costs are computed: these take longer than the lines themselves."""
SAMPLES = 3
"""The number of equal parts of a problem, such as layers, whose reduced costs are computed."""
FIRST_STATES = 4
MORE_CELLS, MORE = 4, 2
EPSILON = 2e-3
"""Epsilon of the thinning in step 4: points between lines are found more precisely than the lines' bound needs."""
_RESTRICTED = Limits(max_cells=1 << 9)
"""Limits of step 4. With few states per node, tables that need more cells take many seconds and hardly narrow the gap."""


@dataclass
class Guide:
    """Rounds of guided search on one problem; their results add up.

    Attributes:
        uses_ldp: whether to solve by LDP what elimination leaves.
        max_points: longer frontiers of partial problems are thinned to this many points.
        report: called after eliminations.
        gap: the gap to aim for.
        found: the strategies found in all rounds; None before the first.
        bound: the lower bound that all rounds prove; None before the first.
        counts: eliminations of the latest round, by kind.
    """

    problem: Problem
    uses_ldp: bool
    max_points: int
    report: Report
    gap: float
    found: Found | None = None
    bound: LowerBound | None = None
    counts: dict[str, int] = field(default_factory=dict)
    n_rounds: int = 0

    def round(self, deadline: float = math.inf) -> None:
        """Do one more round.

        Raises:
            InfeasibleError: no strategy is allowed.
            TimeIsUpError: the deadline passed before the first two lines were ready.
        """
        scale = MORE**self.n_rounds
        search = WeightedSearch(self.problem, FIRST_CELLS * MORE_CELLS**self.n_rounds, deadline)
        hull = lagrangian(search, FIRST_LINES * scale, self.found, self.gap / 2)
        self.bound = hull.bound if self.bound is None else self.bound.tightened(hull.bound)
        points = hull.found if self.found is None else hull.found.with_others(self.found)
        states = self._promising(hull, points, FIRST_STATES * scale)
        tracked = self._tracked(states)
        self.counts = dict(tracked.counts)
        self.found = points.with_others(tracked)
        self.n_rounds += 1

    def _promising(self, hull: Hull, points: Found, n_states: int) -> list[Ints]:
        """Return the states to keep of each node.

        Kept are the states of the known strategies, and the states of least reduced costs: ``n_states`` per node on average,
        and no more than twice that for any node.
        """
        spread = np.unique(np.linspace(0, len(hull.lines) - 1, WITH_MARGINALS).round().astype(int))
        lines = [hull.lines[index] for index in spread.tolist()]
        of_lines = [hull.search.marginals((line.mem_weight, line.time_weight), samples=SAMPLES).nodes for line in lines]
        by_arrays: dict[tuple[int, ...], Floats] = {}  # nodes of equal layers have the same arrays

        def reduced_cost(marginals: tuple[Floats, ...]) -> Floats:
            key = tuple(map(id, marginals))
            if key not in by_arrays:
                parts = (marginal / max(line.least, 1) - 1 for marginal, line in zip(marginals, lines, strict=True))
                by_arrays[key] = np.minimum.reduce(list(parts))
            return by_arrays[key]

        reduced = [reduced_cost(marginals) for marginals in zip(*of_lines, strict=True)]
        sorted_costs = np.sort(np.concatenate(reduced))
        limit = sorted_costs[min(n_states * len(reduced), len(sorted_costs)) - 1]
        cache: dict[tuple[int, bytes], Ints] = {}
        result = []
        for costs, states in zip(reduced, np.ascontiguousarray(points.strategies.T), strict=True):
            choice = id(costs), states.tobytes()
            if choice not in cache:
                best = np.argsort(costs, kind="stable")[: 2 * n_states]
                cache[choice] = np.union1d(best[costs[best] <= limit], states).astype(np.int64)
            result.append(cache[choice])
        return result

    def _tracked(self, subsets: list[Ints]) -> Tracked:
        """Run Frontier-Tracking on these states of each node alone."""
        restricted = self.problem.restricted(subsets)
        assert self.bound is not None
        least = int(self.bound.mem_bytes[0]), int(self.bound.time_ns[-1])
        thinning = Thinning.of(restricted, max(EPSILON, self.gap / 2), self.max_points, least)
        reduced = without_replaceable(restricted)
        states = supported_states(reduced)
        tracked = track(reduced.restricted(states), self.uses_ldp, thinning, _RESTRICTED, self.report)
        return replace(tracked, strategies=in_states(in_states(tracked.strategies, states), subsets))
