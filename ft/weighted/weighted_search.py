"""Find the least weighted cost  a mem + b time  of all strategies, and of those with a given state: exact or a lower bound.

A weighted sum turns a frontier into one number, so that a table is a plain array of numbers, in the algebra (min, +).

- ``least``: variables are eliminated in the order of :mod:`.elimination_plan`; going back, each takes its best state.
- ``marginals``: going back, every bucket also gets the least that all tables outside of it cost. So for every state of every
  node, and for every pair of states of an edge, there is the least cost of a strategy that has it (*min-marginals*).

Where the plan had to split buckets, the results are lower bounds. A variable's own cost is then shared out over its buckets.
The sum of the shares is its cost, whatever they are, and any shares give a valid bound. The first shares are such that each
state costs the same in all buckets, judged by what was eliminated before them ("max-marginal matching": Ihler, Flerova,
Dechter and Otten, UAI 2012). ``tightened`` then goes on: a state's min-marginal should be the same in all buckets, so each
share grows by what its bucket's marginal lacks to their mean, by less where that made the bound lower. Where many variables
are split, those that are alike get the same shares, so that each is done once. The bound is concave in weights and shares
together, so the search for a line between two others begins with shares between theirs. The strategy is real in any case,
but no longer proven the best.

Numbers are float64. With integer weights such that no sum can exceed 2^52, all of them are integers and exact. Otherwise
bounds are lowered by more than rounding can have added.

Complexity: O(sum over buckets of groups x cells) at most for ``least``, and two more products for each one in ``marginals``;
layers that are alike count once in ``least``, unless they have different shares.
"""

from __future__ import annotations

import math

import numpy as np

from ..problem import Problem
from .elimination_plan import EliminationPlan
from .passes import EXACT, Least, Marginals, Moves, Setting, Shares, TimeIsUpError, WeightedPass

MAX_CELLS = 1 << 20
N_ROUNDS = 8
"""The most rounds of sharing out the costs of split variables."""
_WORTH_A_ROUND = 0.1
"""The share of the distance between bound and known strategy that a round must gain for another to be worth it."""
_MANY_SPLIT, _STEP_OF_MANY, _LEAST_STEP = 100, 2.0**-3, 2.0**-8
"""With more split variables than the first, their shares begin to change by the second as a step; and the least step."""
_FEW_SPLIT = 32
"""The most split variables that all get shares of their own. With more, those that are alike get the same, and the bound is
hardly lower: deep models then repeat a layer that often."""
_MATTERS = 1e-6
_MOST = 2.0**61
LEAST_WEIGHT, _COARSE = 1 << 6, 1 << 3
"""The smaller of two weights, where costs are so large that it would be below the second if sums were not to be rounded;
less where they are larger still, so that sums stay below _MOST."""

__all__ = ["MAX_CELLS", "Least", "Marginals", "Shares", "TimeIsUpError", "WeightedSearch", "mixed"]


class WeightedSearch:
    """Searches one problem for the least weighted cost, for any weights.

    Args:
        max_cells: the most cells of a table that an elimination makes; where more would be needed, results are lower bounds.
        deadline: the deadline of all its searches, by ``time.monotonic``.
    """

    def __init__(self, problem: Problem, max_cells: int = MAX_CELLS, deadline: float = math.inf) -> None:
        self.problem = problem
        self.plan = EliminationPlan.of(problem, max_cells)
        tables = self.plan.costs
        self.most = (sum(int(costs.mem.max()) for costs in tables), sum(int(costs.time.max()) for costs in tables))
        split = tuple(step.variable for step in self.plan.steps if len(step.buckets) > 1)
        self.setting = Setting(problem, self.plan, self.most, split, deadline)
        is_split = set(self.setting.split)
        self.alike = [variables for variables in self.plan.alike if variables[0] in is_split]
        # Factor on the changes of shares. Those of many split variables together may go too far: it begins small, and grows.
        self.may_grow = len(self.setting.split) > _MANY_SPLIT
        self.step = _STEP_OF_MANY if self.may_grow else 1.0
        self.shares: dict[tuple[float, float], Shares] = {}  # the best shares found for some weights

    def integer_weights(self, mem: float, time: float) -> tuple[int, int]:
        """Return integer weights with nearly this ratio.

        They are large, but not so large that sums are rounded, unless the ratio asks for it.
        """
        parts = mem * max(self.most[0], 1), time * max(self.most[1], 1)
        scale = (EXACT >> 1) / sum(parts) if any(parts) else 1.0
        if min(parts) > sum(parts) * _MATTERS and min(mem, time) * scale < _COARSE:
            scale = max(scale, min(LEAST_WEIGHT / min(mem, time), _MOST / sum(parts)))
        weights = math.floor(mem * scale), math.floor(time * scale)
        divisor = math.gcd(*weights) or 1
        return (weights[0] // divisor, weights[1] // divisor) if any(weights) else (int(mem > 0), int(time > 0))

    def least(self, weights: tuple[float, float]) -> Least:
        """Find the least of ``weights[0] * mem + weights[1] * time``.

        Raises:
            ValueError: a weight is negative or not finite.
            InfeasibleError: no strategy is allowed.
            TimeIsUpError: the deadline has passed.
        """
        run = WeightedPass(self.setting, weights, self.shares.get(weights))
        result = run.least()
        run.put_back()
        return result

    def marginals(self, weights: tuple[float, float], samples: int | None = None) -> Marginals:
        """Return the least weighted cost with each state of each node.

        Args:
            samples: the most of equal parts of a problem that are looked at; None for all, which proves bounds.

        Raises:
            ValueError, InfeasibleError, TimeIsUpError: as ``least``.
        """
        run = WeightedPass(self.setting, weights, self.shares.get(weights))
        result = run.marginals(samples)
        run.put_back()
        return result

    def tightened(
        self, weights: tuple[float, float], upper_bound: float = math.inf, near: float = 0.0, shares: Shares | None = None
    ) -> list[Least]:
        """Find the least weighted cost as ``least`` does, with ever higher bounds.

        Round by round, the costs of split variables are shared out again. The bound of :meth:`least` and of
        :meth:`marginals` for these weights will be that of the best round.

        Args:
            upper_bound: the weighted cost of a real strategy.
            near: how close, relatively, the bound must come to a strategy to be good enough.
            shares: the shares to begin with.

        Returns:
            The results of the rounds; the one with the highest bound is last.

        Raises:
            ValueError, InfeasibleError: as ``least``.
            TimeIsUpError: not a single bound was ready by the deadline.
        """
        results: list[Least] = []
        best: tuple[float, Shares, Moves] | None = None  # the total, the shares, and how they may change
        is_even = (shares is None or shares.is_even) and len(self.setting.split) > _FEW_SPLIT
        try:
            for _ in range(1 if self.plan.is_exact else N_ROUNDS):
                run = WeightedPass(self.setting, weights, shares)
                total, least = run.total, run.least()
                if least.strategy is not None:
                    upper_bound = min(upper_bound, weights[0] * least.mem_bytes + weights[1] * least.time_ns)
                is_best = best is None or total > best[0]
                gain = math.inf if best is None else total - best[0]
                results.insert(len(results) if is_best else 0, least)
                gains_little = 0 <= gain < _WORTH_A_ROUND * (upper_bound - total)
                enough = gains_little or upper_bound <= total * (1 + near)
                if is_best:
                    shares = Shares({variable: run.own[variable][1:] for variable in self.setting.split}, run.folds)
                    self.shares[weights] = shares
                    if not enough:
                        run.find_moves()
                    best = total, shares, run.moves
                    self.step = min(2 * self.step, 1.0) if self.may_grow and len(results) > 1 else self.step
                else:
                    self.step, self.may_grow = self.step / (2 if self.may_grow else 4), False
                run.put_back()
                if enough or best is None or self.step < _LEAST_STEP:
                    break
                shares = _moved(best[1], self._averaged(best[2]) if is_even else best[2], is_even, self.step)
        except TimeIsUpError:
            if not results:
                raise
        return results

    def _averaged(self, moves: Moves) -> Moves:
        """Return the mean move of all variables whose eliminations are equal, for each of them.

        Any shares give a valid bound; equal ones let equal eliminations be done once.
        """
        result = {}
        for variables in self.alike:
            by_part = zip(*(moves[variable] for variable in variables), strict=True)
            mean = [np.mean([np.where(np.isfinite(move), move, 0.0) for move in of_part], axis=0) for of_part in by_part]
            result.update(dict.fromkeys(variables, mean))
        return result


def mixed(first: Shares, second: Shares, parts: tuple[float, float]) -> Shares:
    """Combine two sets of shares, each multiplied by one of ``parts``.

    Where their weights are combined with the same parts, the bound is at least as high as their bounds combined.
    """
    result = {}
    for variable, of_buckets in first.by_variable.items():
        pairs = zip(of_buckets, second.by_variable[variable], strict=True)
        result[variable] = [np.floor(one * parts[0] + other * parts[1]) for one, other in pairs]
    return Shares(result, first.is_even and second.is_even)


def _moved(shares: Shares, moves: Moves, is_even: bool, step: float) -> Shares:
    """Return the shares, each changed by ``step`` times its finite moves."""
    result = {}
    for variable, of_buckets in shares.by_variable.items():
        result[variable] = [
            share + np.floor(np.where(np.isfinite(move), move, 0.0) * step)
            for share, move in zip(of_buckets, moves[variable], strict=True)
        ]
    return Shares(result, shares.is_even and is_even)
