"""Run a plan of eliminations once, forward and back, for given weights: the building block of :mod:`.weighted_search`.

- Forward: each bucket's least sum is a product of matrices in the algebra (min, +), see :mod:`.min_plus`. The cost of a
  variable with several buckets is shared out over them.
- ``Pass.least``: going back, each variable takes its best state.
- ``Pass.marginals``: going back, every bucket gets the least that all tables outside of it cost. With that, two more
  products give the least cost with each cell of its tables.

Eliminations that the plan knows to be equal are done once, unless they are given different shares.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ..problem import INFEASIBLE, Floats, InfeasibleError, Problem
from .best_states import best_states
from .elimination_plan import EliminationPlan
from .elimination_steps import Bucket, EliminationStep, Grouping, Input
from .min_plus import Pool, added, expand, least_of_classes, least_of_expanded, less, min_plus, weigh

EXACT = 1 << 52
"""Integers up to this, and sums and differences of two, are exact in float64."""
_CHUNK = 1 << 22
"""Cells of both parts of a bucket that are added up together."""

Moves = dict[int, list[Floats]]
"""For each split variable the changes of the shares of its own cost in each of its buckets but the first: float64[K]."""


@dataclass(frozen=True, slots=True, eq=False)
class Shares:
    """Shares of split variables' own costs in their buckets.

    Attributes:
        by_variable: for each split variable its shares in each of its buckets but the first: float64[K].
        is_even: whether variables whose eliminations are equal have equal shares, so that these are done once.
    """

    by_variable: Moves
    is_even: bool


class TimeIsUpError(Exception):
    """Raised where a weighted search was not ready by its deadline."""


@dataclass(frozen=True, slots=True, eq=False)
class Least:
    """The result of a weighted search.

    Attributes:
        weights: the weights of memory and of time.
        bound: no strategy has a lower weighted cost.
        is_exact: whether ``strategy`` has exactly this cost, so that it is the best.
        strategy: int32[n_nodes], a real one; None if none was found.
        mem_bytes, time_ns: the strategy's costs; 0 if there is none.
    """

    weights: tuple[float, float]
    bound: float
    is_exact: bool
    strategy: npt.NDArray[np.int32] | None
    mem_bytes: int
    time_ns: int


@dataclass(frozen=True, slots=True, eq=False)
class Marginals:
    """Lower bounds on the weighted cost of strategies with a given state; exact where ``least.is_exact``.

    Attributes:
        least: the result for all strategies.
        nodes: float64[K] for each node; infinite where no strategy has the state.
    """

    least: Least
    nodes: tuple[Floats, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _Back:
    """The result of going back through a bucket.

    Attributes:
        outer: for each cell of the bucket's result, the least that all tables outside of the bucket cost.
        of_state: the marginals of the variable's states, float64[K].
        of_inputs: the same as ``outer`` for each table of the bucket that an elimination made.
    """

    outer: Floats
    of_state: Floats
    of_inputs: tuple[Floats, ...]


def _is_sample(number: int, n: int, samples: int) -> bool:
    """Return whether the one with this number, from 0, is among ``samples`` evenly spread ones."""
    return number == 0 or number * samples // n > (number - 1) * samples // n


@dataclass(frozen=True, slots=True, eq=False)
class Setting:
    """The arrays that all passes over a problem share.

    Attributes:
        most: the sum of the largest memories of all tables, and of the largest times.
        split: the variables that have several buckets.
        deadline: by ``time.monotonic``.
        pool: the pool that arrays come from.
    """

    problem: Problem
    plan: EliminationPlan
    most: tuple[int, int]
    split: tuple[int, ...]
    deadline: float
    pool: Pool = field(default_factory=Pool)


class WeightedPass:
    """One run of the eliminations for one pair of weights.

    Args:
        weights: the weights of memory and of time.
        shares: the shares of split variables' costs; None to choose them bucket by bucket.

    Raises:
        ValueError: a weight is negative or not finite.
        InfeasibleError: no strategy is allowed.
        TimeIsUpError: the deadline has passed.
    """

    def __init__(self, setting: Setting, weights: tuple[float, float], shares: Shares | None = None) -> None:
        if not all(0 <= weight < math.inf for weight in weights):
            raise ValueError(f"weights of memory and time must be finite and at least 0, got {weights}")
        self.shares = None if shares is None else shares.by_variable
        self.folds = shares is None or shares.is_even
        self.moves: Moves = {}  # how much each bucket's share must grow for all buckets to agree
        self.found: Least | None = None
        self._results: set[int] = set()  # of the eliminations through which marginals are being found
        self.setting, self.plan, self.weights = setting, setting.plan, weights
        self.tables: list[Floats] = [np.empty(0)] * len(self.plan.shapes)
        for number, costs in enumerate(self.plan.costs):
            same = self.plan.same[number]
            self.tables[number] = self.tables[same] if same < number else setting.pool.take(costs.mem.shape)
            if same == number:
                weigh(costs.mem, costs.time, costs.forbidden, weights, self.tables[number])
        self.own: dict[int, list[Floats]] = {}  # by variable, each bucket's share of its own cost
        for step in self.plan.steps:
            self._eliminate(step)
        shares_of_split = (share for variable in setting.split for share in self.own[variable])
        self.margin = self._margin(sum(float(np.abs(share[np.isfinite(share)]).max(initial=0)) for share in shares_of_split))
        self.total = sum(float(self.tables[number]) for number in self.plan.constants)
        if math.isinf(self.total):
            raise InfeasibleError("no strategy is allowed: every combination of states is infeasible")

    def _margin(self, shared: float) -> float:
        """Return how much rounding can have added to any number, given the largest sum of shares.

        Any number here is a sum of costs and of shares, each at most once.
        """
        mem, time_ns = self.weights
        largest = mem * self.setting.most[0] + time_ns * self.setting.most[1] + shared
        is_integral = float(mem).is_integer() and float(time_ns).is_integer() and largest <= EXACT
        return 0.0 if is_integral else float(largest) * 2.0**-50 * (len(self.plan.shapes) + 8)

    def _eliminate(self, step: EliminationStep) -> None:
        """Compute the results of a variable's buckets, or take those of an equal elimination."""
        if time.monotonic() > self.setting.deadline:
            raise TimeIsUpError
        same = self.plan.same[step.buckets[0].result]
        if self.folds and same < step.buckets[0].result:
            self.own[step.variable] = self.own[self.plan.variable_of[same]]
            for bucket in step.buckets:
                self.tables[bucket.result] = self.tables[self.plan.same[bucket.result]]
            return
        own = np.zeros(self.plan.n_states[step.variable])
        for number in step.own:
            own += self.tables[number][self.plan.shapes[number].of(step.variable)]
        if self.shares is None or len(step.buckets) == 1:
            self.own[step.variable] = self._shares(step, own)
        else:
            others = self.shares[step.variable]
            self.own[step.variable] = [less(own, np.sum(others, axis=0), np.empty_like(own)), *others]
        for bucket, share in zip(step.buckets, self.own[step.variable], strict=True):
            result = self.setting.pool.take(bucket.sizes)
            result[...] = np.inf
            for _, left, right in self._halves(bucket, share):
                np.minimum(result, min_plus(left, right), out=result)
            self.tables[bucket.result] = result.reshape(bucket.shape)

    def put_back(self) -> None:
        """Give the tables' memory back, for other passes."""
        for number, same in enumerate(self.plan.same):
            if same == number or (not self.folds and number >= len(self.plan.costs)):
                self.setting.pool.put_back(self.tables[number])
        self.tables.clear()

    def _shares(self, step: EliminationStep, own: Floats) -> list[Floats]:
        """Share a variable's own cost out over its buckets, such that each state costs the same in all of them."""
        if len(step.buckets) == 1:
            return [own]
        leasts = []  # by bucket, the least that its tables cost with each state
        for bucket in step.buckets:
            of_group = np.empty(bucket.group.n_classes)
            for chunk, left, right in self._halves(bucket, np.zeros_like(own)):
                of_group[chunk] = (left.min(axis=1) + right.min(axis=2)).min(axis=0)
            leasts.append(of_group[bucket.group.class_of])
        total = own + sum(leasts)
        possible = np.isfinite(total)
        result = [np.where(possible, 0.0, np.inf) for _ in leasts]
        mean = np.floor(total[possible] / len(leasts))
        for share, least in zip(result[1:], leasts[1:], strict=True):
            share[possible] = mean - least[possible]
        result[0][possible] = own[possible] - sum(share[possible] for share in result[1:])
        return result

    def _halves(self, bucket: Bucket, own: Floats) -> Iterator[tuple[slice, Floats, Floats]]:
        """Yield both parts of a bucket, some groups at a time: the slice of groups, the left and the right part.

        The left part is [neighbours of both, neighbours of the left, groups], with the variable's own cost added. The right
        part is [neighbours of both, groups, neighbours of the right].
        """
        n_both, of_left, of_right = bucket.sizes
        axis = len(bucket.axes[0])
        lefts = [least_of_classes(own, bucket.group)]
        lefts += [expand(self.tables[operand.table], operand) for operand in bucket.left]
        rights = [expand(self.tables[operand.table], operand) for operand in bucket.right]
        size = max(1, _CHUNK // (n_both * (of_left + of_right)))
        for start in range(0, bucket.group.n_classes, size):
            if time.monotonic() > self.setting.deadline:
                raise TimeIsUpError
            chunk = slice(start, start + size)
            left = added([part[..., chunk] for part in lefts])
            right = added([part[(slice(None),) * axis + (chunk,)] for part in rights])
            n_groups = left.shape[-1]
            if left.size < n_both * of_left * n_groups:  # to broadcast what has all axes takes longer than to add it up
                left = np.broadcast_to(left, (*bucket.axes[0], *bucket.axes[1], n_groups))
            if right.size < n_both * n_groups * of_right:
                right = np.broadcast_to(right, (*bucket.axes[0], n_groups, *bucket.axes[2]))
            yield chunk, left.reshape(n_both, of_left, n_groups), right.reshape(n_both, n_groups, of_right)

    def least(self) -> Least:
        """Return the least weighted cost, with a strategy."""
        if self.found is None:
            strategy = best_states(self.plan, self.tables, self.own, self.folds)
            mem, time_ns = self.setting.problem.cost(strategy.tolist())
            bound = self.total - self.margin
            if mem >= INFEASIBLE or time_ns >= INFEASIBLE:
                self.found = Least(self.weights, bound, False, None, 0, 0)
            else:
                cost = self.weights[0] * mem + self.weights[1] * time_ns
                self.found = Least(self.weights, bound, cost <= bound, strategy, mem, time_ns)
        return self.found

    def marginals(self, samples: int | None = None) -> Marginals:
        """Return the marginals, and set ``moves`` for the split variables.

        Args:
            samples: of equal eliminations at most so many are done, evenly spread; the others get the marginals of the last
                of these before them. They are then neither exact nor bounds, but good enough to choose states and shares
                by. None to do all.
        """
        nodes = self._marginals(range(len(self.plan.n_states)), samples)
        # Nodes that are alike have one array, so that what follows from it is computed once.
        lowered = {id(marginals): marginals - self.margin for marginals in nodes} if self.margin else {}
        return Marginals(self.least(), tuple(lowered.get(id(marginals), marginals) for marginals in nodes))

    def find_moves(self) -> None:
        """Set ``moves`` for the split variables, by the marginals of what lies between them and the last elimination."""
        self._marginals(self.plan.above_split, None)

    def _marginals(self, variables: Collection[int], samples: int | None) -> list[Floats]:
        """Return the marginals of some variables, with all that are eliminated after them; empty arrays for others."""
        self._results = {result for result, variable in self.plan.variable_of.items() if variable in variables}
        pool = self.setting.pool
        nodes: list[Floats] = [np.empty(0)] * len(self.plan.n_states)
        outside: dict[int, Floats] = {
            n: np.subtract(self.total, self.tables[n], out=pool.take(())) for n in self.plan.constants
        }
        self._backs: dict[int, list[_Back]] = {}
        self._visits: dict[int, int] = {}
        # What is made of marginals, by their identities: equal layers have the same, which are compared by identity then.
        joined: dict[tuple[int, ...], tuple[list[Floats], Floats]] = {}
        beyond: dict[tuple[int, ...], Floats] = {}
        for step in reversed(self.plan.steps):
            if step.buckets[0].result not in self._results:
                continue
            of_buckets = []
            for bucket, own in zip(step.buckets, self.own[step.variable], strict=True):
                outer = outside.pop(bucket.result)
                back = self._back(bucket, own, outer, samples)
                results = (operand.table for operand in bucket.inputs if operand.table in self._results)
                outside.update(zip(results, back.of_inputs, strict=True))
                of_buckets.append(back.of_state)
            if len(of_buckets) == 1:
                nodes[step.variable] = of_buckets[0]
            else:
                kinds = tuple(map(id, of_buckets))
                if kinds not in joined:
                    # How far the marginals of all buckets but the first are below their mean, state by state.
                    mean = np.mean(of_buckets, axis=0)
                    moves = [less(mean, state, np.empty_like(state)) for state in of_buckets[1:]]
                    joined[kinds] = moves, np.max(of_buckets, axis=0)
                self.moves[step.variable], nodes[step.variable] = joined[kinds]
            for number in step.own:
                if number in self._results:
                    class_of, table = self.plan.shapes[number].of(step.variable), self.tables[number]
                    kinds = id(of_buckets[0]), id(class_of), id(table)
                    if kinds not in beyond:
                        marginal = least_of_classes(of_buckets[0], Grouping(class_of, len(table)))
                        beyond[kinds] = less(marginal, table, pool.take(marginal.shape))
                    outside[number] = beyond[kinds]
        arrays = (array for backs in self._backs.values() for back in backs for array in (back.outer, *back.of_inputs))
        for array in {id(array): array for array in arrays}.values():
            pool.put_back(array)
        self._backs.clear()
        return nodes

    def _back(self, bucket: Bucket, own: Floats, outer: Floats, samples: int | None) -> _Back:
        """Return a bucket's marginals: those of an equal elimination, if the same costs lie beyond both, or of a sample.

        In a run of equal layers that is so from a few layers before its ends on.
        """
        same = self.plan.same[bucket.result]
        kind = same if self.folds else bucket.result
        backs = self._backs.setdefault(kind, [])
        visit = self._visits[kind] = self._visits.get(kind, -1) + 1
        known = next((back for back in backs if back.outer is outer), None)  # mostly, and sooner than by comparing arrays
        known = known or next((back for back in backs if np.array_equal(back.outer, outer)), None)
        if known is not None:
            return known
        if samples is not None and backs and not _is_sample(visit, self.plan.n_equal[same], samples):
            return backs[-1]
        of_state, of_inputs, arrays = self._go_back(bucket, own, outer)
        pool = self.setting.pool
        parts = ((marginal, self.tables[operand.table]) for operand, marginal in of_inputs)
        back = _Back(outer, of_state, tuple(less(whole, part, pool.take(whole.shape)) for whole, part in parts))
        for array in arrays:
            pool.put_back(array)
        backs.append(back)
        return back

    def _go_back(
        self, bucket: Bucket, own: Floats, outside: Floats
    ) -> tuple[Floats, list[tuple[Input, Floats]], list[Floats]]:
        """Compute marginals from one bucket's tables.

        Returns:
            The marginals of the variable's states, those of the cells of the tables that need them, and the arrays that
            these may be views of, to be put back.
        """
        n_both, of_left, of_right = bucket.sizes
        outer = outside.reshape(bucket.sizes)
        results = [[x for x in part if x.table in self._results] for part in (bucket.left, bucket.right)]
        of_group = np.empty(bucket.group.n_classes)
        pool = self.setting.pool
        lefts = pool.take((n_both, of_left, bucket.group.n_classes))
        rights = pool.take((n_both, bucket.group.n_classes, of_right))
        for chunk, left, right in self._halves(bucket, own):
            if results[0] or not results[1]:
                lefts[..., chunk] = left + min_plus(outer, right.transpose(0, 2, 1))
                of_group[chunk] = lefts[..., chunk].min(axis=(0, 1))
            if results[1]:
                rights[:, chunk] = right + min_plus(left.transpose(0, 2, 1), outer)
                if not results[0]:
                    of_group[chunk] = rights[:, chunk].min(axis=(0, 2))
        best = least_of_classes(own, bucket.group)
        of_state = less(of_group, best, of_group)[bucket.group.class_of] + own
        of_inputs = []
        whole = [
            lefts.reshape(*bucket.axes[0], *bucket.axes[1], bucket.group.n_classes),
            rights.reshape(*bucket.axes[0], bucket.group.n_classes, *bucket.axes[2]),
        ]
        for of_part, inputs in zip(whole, results, strict=True):
            for operand in inputs:
                others = tuple(axis for axis, size in enumerate(operand.expanded) if size == 1)
                marginal = of_part.min(axis=others, keepdims=True) if others else of_part
                of_inputs.append((operand, least_of_expanded(marginal, operand)))
        return of_state, of_inputs, [lefts, rights]
