"""The least weighted cost  a mem + b time  of all strategies, exact or from below, and of those with a given state.

A weighted sum turns a frontier into one number, so that a table is a plain array of numbers, and the algebra (min, +).

- ``least``: variables are eliminated in the order of :mod:`.buckets`; going back, each takes its best state.
- ``marginals``: going back, every bucket also gets what all tables outside of it cost at least. So for every state of
  every node, and for every pair of states of an edge, there is the least cost of a strategy that has it (*min-marginals*).

Where the plan had to cut buckets the results are lower bounds. A variable's own cost is then shared out over its buckets
such that all would like each state equally well (the sum of the shares is its cost, whatever they are; this is
"max-marginal matching": Ihler, Flerova, Dechter and Otten, UAI 2012). The strategy is real in any case, and no longer
proven the best.

Numbers are float64. With integer weights such that no sum can exceed 2^52 all of them are integers and exact; else bounds
are lowered by more than rounding can have added.

Complexity: O(sum over buckets of groups x cells) for ``least``, three to four times that for ``marginals``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .buckets import Bucket, Input, Plan, Step
from .problem import INFEASIBLE, InfeasibleError, Problem

Floats = npt.NDArray[np.float64]
EXACT = 1 << 52
"""Integers up to this, and sums and differences of two, are exact in float64."""
MAX_CELLS = 1 << 20
_CHUNK = 1 << 16
"""Cells that are added up together: they stay in the cache."""


class TimeIsUpError(Exception):
    """A weighted search was not ready by its deadline."""


@dataclass(frozen=True, slots=True, eq=False)
class Least:
    """What a weighted search found.

    Attributes:
        weights: of memory and of time.
        bound: no strategy has a lower weighted cost.
        exact: whether ``strategy`` has just this cost, so that it is the best.
        strategy: int32[n_nodes], a real one; None if none was found.
        mem_bytes, time_ns: its costs; 0 if there is none.
    """

    weights: tuple[float, float]
    bound: float
    exact: bool
    strategy: npt.NDArray[np.int32] | None
    mem_bytes: int
    time_ns: int


@dataclass(frozen=True, slots=True, eq=False)
class Marginals:
    """Lower bounds on the weighted cost of strategies with a given state; exact where ``least.exact``.

    Attributes:
        nodes: float64[K] for each node; infinite where no strategy has the state.
        edges: float64[K source, K target] for each edge, None for those whose ends do not interact; empty if not asked for.
            Pairs that the edge does not tell apart share the least of theirs.
    """

    least: Least
    nodes: tuple[Floats, ...]
    edges: tuple[Floats | None, ...]


class WeightedSearch:
    """Searches one problem for the least weighted cost, for any weights.

    Args:
        max_cells: of a table that an elimination makes; with more, results are lower bounds.
        deadline: of all its searches, by ``time.monotonic``.
    """

    def __init__(self, problem: Problem, max_cells: int = MAX_CELLS, deadline: float = math.inf) -> None:
        self.problem = problem
        self.plan = Plan.of(problem, max_cells)
        self.deadline = deadline
        self.most = (sum(int(c.mem.max()) for c in self.plan.given), sum(int(c.time.max()) for c in self.plan.given))

    def integer_weights(self, mem: float, time: float) -> tuple[int, int]:
        """Integers with nearly this ratio, large, but not so large that sums are rounded."""
        most = mem * max(self.most[0], 1) + time * max(self.most[1], 1)
        scale = (EXACT >> 1) / most if most > 0 else 1.0
        weights = math.floor(mem * scale), math.floor(time * scale)
        divisor = math.gcd(*weights) or 1
        return (weights[0] // divisor, weights[1] // divisor) if any(weights) else (int(mem > 0), int(time > 0))

    def least(self, weights: tuple[float, float]) -> Least:
        """The least of ``weights[0] * mem + weights[1] * time``.

        Raises:
            ValueError: a weight is negative or not finite.
            InfeasibleError: no strategy is allowed.
            TimeIsUpError: the deadline has passed.
        """
        return _Run(self, weights).least()

    def marginals(self, weights: tuple[float, float], with_edges: bool = False) -> Marginals:
        """The least weighted cost with each state of each node, and for each edge with each pair of states.

        Raises:
            as ``least``.
        """
        return _Run(self, weights).marginals(with_edges)


class _Run:
    """One elimination for one pair of weights."""

    def __init__(self, search: WeightedSearch, weights: tuple[float, float]) -> None:
        if not all(0 <= weight < math.inf for weight in weights):
            raise ValueError(f"weights of memory and time must be finite and at least 0, got {weights}")
        self.search, self.plan, self.weights = search, search.plan, weights
        mem, time_ns = weights
        self.tables: dict[int, Floats] = {}
        for number, costs in enumerate(self.plan.given):
            table = costs.mem * float(mem) + costs.time * float(time_ns)
            table[costs.forbidden] = np.inf
            self.tables[number] = table
        most = mem * search.most[0] + time_ns * search.most[1]
        is_integral = float(mem).is_integer() and float(time_ns).is_integer() and most <= EXACT
        self.margin = 0.0 if is_integral else float(most) * 2.0**-50 * (len(self.plan.shapes) + 8)
        self.own: dict[int, list[Floats]] = {}  # of each bucket of a variable, its share of the variable's own cost
        self.total = 0.0
        for step in self.plan.steps:
            self._eliminate(step)
        self.total = sum(float(self.tables[number]) for number in self.plan.constants)
        if math.isinf(self.total):
            raise InfeasibleError("no strategy is allowed: every combination of states is infeasible")

    def _eliminate(self, step: Step) -> None:
        if time.monotonic() > self.search.deadline:
            raise TimeIsUpError
        own = np.zeros(self.plan.n_states[step.variable])
        for number in step.own:
            own += self.tables[number][self.plan.shapes[number].of(step.variable)]
        expanded = [[_expand(self.tables[each.table], each) for each in bucket.inputs] for bucket in step.buckets]
        self.own[step.variable] = self._shares(step, own, expanded)
        for bucket, inputs, share in zip(step.buckets, expanded, self.own[step.variable], strict=True):
            result = np.full(bucket.shape, np.inf)
            for _, joint in self._chunks(bucket, share, inputs):
                np.minimum(result, joint.min(axis=0), out=result)
            self.tables[bucket.result] = result

    def _shares(self, step: Step, own: Floats, expanded: list[list[Floats]]) -> list[Floats]:
        if len(step.buckets) == 1:
            return [own]
        likes = []  # what each bucket's tables cost at least with each state
        for bucket, inputs in zip(step.buckets, expanded, strict=True):
            of_group = np.empty(bucket.n_groups)
            for chunk, joint in self._chunks(bucket, np.zeros_like(own), inputs):
                of_group[chunk] = joint.reshape(len(joint), -1).min(axis=1)
            likes.append(of_group[bucket.group])
        total = own + sum(likes)
        possible = np.isfinite(total)
        result = [np.where(possible, 0.0, np.inf) for _ in likes]
        each = np.floor(total[possible] / len(likes))
        for share, like in zip(result[1:], likes[1:], strict=True):
            share[possible] = each - like[possible]
        result[0][possible] = own[possible] - sum(share[possible] for share in result[1:])
        return result

    def _chunks(self, bucket: Bucket, own: Floats, inputs: Sequence[Floats]) -> Iterator[tuple[slice, Floats]]:
        """The bucket's sum for some groups after others: (which groups, [groups, classes of the neighbours])."""
        of_group = np.full(bucket.n_groups, np.inf)
        np.minimum.at(of_group, bucket.group, own)
        column = of_group.reshape(-1, *[1] * len(bucket.shape))
        size = max(1, _CHUNK // math.prod(bucket.shape))
        for start in range(0, bucket.n_groups, size):
            if time.monotonic() > self.search.deadline:
                raise TimeIsUpError
            chunk = slice(start, start + size)
            joint = column[chunk]
            for table in inputs:
                joint = joint + table[chunk]
            yield chunk, joint

    def least(self) -> Least:
        strategy = self._strategy()
        mem, time_ns = self.search.problem.cost(strategy.tolist())
        bound = self.total - self.margin
        if mem >= INFEASIBLE or time_ns >= INFEASIBLE:
            return Least(self.weights, bound, False, None, 0, 0)
        cost = self.weights[0] * mem + self.weights[1] * time_ns
        return Least(self.weights, bound, cost <= bound, strategy, mem, time_ns)

    def _strategy(self) -> npt.NDArray[np.int32]:
        """Each variable's best state, from the last eliminated to the first; all of its buckets have their say."""
        states = np.zeros(len(self.plan.n_states), np.int32)
        for step in reversed(self.plan.steps):
            costs = sum(self.own[step.variable])
            for bucket in step.buckets:
                for each in bucket.inputs:
                    shape = self.plan.shapes[each.table]
                    at = [
                        class_of if v == step.variable else class_of[states[v]]
                        for v, class_of in zip(shape.scope, shape.classes, strict=True)
                    ]
                    costs = costs + self.tables[each.table][tuple(at)]
            states[step.variable] = int(np.argmin(costs))
        return states

    def marginals(self, with_edges: bool) -> Marginals:
        nodes: list[Floats] = [np.empty(0)] * len(self.plan.n_states)
        edges: list[Floats | None] = [None] * len(self.search.problem.edges) if with_edges else []
        outside: dict[int, Floats] = {n: self.total - self.tables[n] for n in self.plan.constants}
        for step in reversed(self.plan.steps):
            if time.monotonic() > self.search.deadline:
                raise TimeIsUpError
            of_buckets = []
            for bucket, own in zip(step.buckets, self.own[step.variable], strict=True):
                inputs = [each for each in bucket.inputs if with_edges or each.table >= len(self.plan.given)]
                of_state, of_inputs = self._go_back(bucket, own, outside.pop(bucket.result), inputs)
                of_buckets.append(of_state)
                for each, marginal in zip(inputs, of_inputs, strict=True):
                    if each.table < len(self.plan.given):
                        self._put_edge(edges, each.table, marginal)
                    else:
                        outside[each.table] = _less(marginal, self.tables[each.table])
            nodes[step.variable] = np.max(of_buckets, axis=0)
            for number in step.own:
                if number >= len(self.plan.given):
                    class_of = self.plan.shapes[number].of(step.variable)
                    marginal = np.full(len(self.tables[number]), np.inf)
                    np.minimum.at(marginal, class_of, of_buckets[0])
                    outside[number] = _less(marginal, self.tables[number])
        return Marginals(self.least(), tuple(m - self.margin for m in nodes), tuple(edges))

    def _go_back(self, bucket: Bucket, own: Floats, outside: Floats, inputs: Sequence[Input]) -> tuple[Floats, list[Floats]]:
        """Marginals of the variable's states as a bucket sees them: float64[K], and of the cells of some of its tables."""
        all_inputs = [_expand(self.tables[each.table], each) for each in bucket.inputs]
        of_group = np.empty(bucket.n_groups)
        of_inputs = [np.empty(each.expanded) for each in inputs]
        others = [tuple(axis for axis, size in enumerate(each.expanded) if size == 1 and axis) for each in inputs]
        for chunk, joint in self._chunks(bucket, own, all_inputs):
            joint = joint + outside
            of_group[chunk] = joint.reshape(len(joint), -1).min(axis=1)
            for result, axes in zip(of_inputs, others, strict=True):
                result[chunk] = joint.min(axis=axes, keepdims=True) if axes else joint
        best = np.full(bucket.n_groups, np.inf)
        np.minimum.at(best, bucket.group, own)
        of_state = _less(of_group, best)[bucket.group] + own
        contracted = zip(of_inputs, inputs, strict=True)
        return of_state, [_contract(marginal, each, self.tables[each.table].shape) for marginal, each in contracted]

    def _put_edge(self, edges: list[Floats | None], table: int, marginal: Floats) -> None:
        shape, costs = self.plan.shapes[table], self.plan.given[table]
        full = marginal[np.ix_(*shape.classes)] - self.margin
        for index in costs.edges:
            known = edges[index]
            turned = full if self.search.problem.edges[index].source == shape.scope[0] else full.T
            edges[index] = turned if known is None else np.maximum(known, turned)


def _expand(table: Floats, each: Input) -> Floats:
    """A table by groups of the bucket's variable and classes of its neighbours."""
    result = table.transpose(each.axes)
    for axis, selector in enumerate(each.selectors):
        if len(selector) != result.shape[axis] or (selector[1:] <= selector[:-1]).any():
            result = result.take(selector, axis)
    return np.ascontiguousarray(result).reshape(each.expanded)


def _contract(expanded: Floats, each: Input, shape: tuple[int, ...]) -> Floats:
    """The least of all cells that a table's cell was expanded to, in the table's own order."""
    result: Floats = expanded.reshape([len(selector) for selector in each.selectors])
    for axis, selector in enumerate(each.selectors):
        if len(selector) == shape[each.axes[axis]] and (selector[1:] > selector[:-1]).all():
            continue
        order = np.argsort(selector, kind="stable")
        starts = np.searchsorted(selector[order], np.arange(shape[each.axes[axis]]))
        result = np.minimum.reduceat(result.take(order, axis), starts, axis)
    turned: Floats = result.transpose(np.argsort(each.axes))
    return turned


def _less(whole: Floats, part: Floats) -> Floats:
    """What is left without a part; infinite where the part is."""
    possible = np.isfinite(part)
    result: Floats = np.where(possible, whole - np.where(possible, part, 0.0), np.inf)
    return result
