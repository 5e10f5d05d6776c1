"""Plan the order in which a weighted search eliminates variables, and what it adds up for each: the same for all weights.

The tables here hold one number per cell, not a frontier, and are dense arrays by classes of states (:mod:`.cost_tables`).
Eliminating variable v takes the tables that depend on v (its *bucket*), and minimises their sum over v's states, for all
combinations of those classes of v's neighbours that any of these tables distinguishes:

    result[x, y, ..] = min over states k of v  sum over tables t of v  t[k, x, y, ..]

The order is greedy, the smallest result first (min-fill on states). Where even the smallest result has too many cells, the
bucket is split into several that choose v's state independently. The least sum of that relaxed problem is a lower bound
(mini-buckets: Dechter and Rish, J. ACM 50 (2003)). v's own cost is charged once, see :mod:`.weighted_search`. Tables that
cost nothing, and only say which states go together, are in all of its buckets.

Layers that are alike have eliminations that are alike. A bucket that does the same with the same tables as an earlier one is
recognised by the identities of its arrays, and is not searched again.

Complexity of planning: O(n^2 + sum over eliminations of K log K). Complexity of a bucket: G times the cells of its result,
where G is the number of groups of v's states that its tables distinguish.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ..problem import Ints, Problem
from .cost_tables import Shape, TableCosts, first_equal, problem_tables
from .elimination_steps import Bucket, EliminationStep, Grouping, Input

MAX_TOTAL_CELLS = 1 << 26
"""The most cells of all tables together: 8 bytes each."""
_MOST_KINDS = 6
"""The largest number of different scopes in a bucket for which all ways to put its tables in two parts are tried."""
_WORK_PER_CELL = 1 << 8
"""Steps that a bucket may take for each cell that a result may have."""


@dataclass(slots=True)
class EliminationPlan:
    """The eliminations of a problem, in order.

    Attributes:
        max_cells: the most cells of a table that an elimination may make.
        shapes: the shapes of all tables, by number; the first ``len(costs)`` are the problem's.
        costs: the costs of the problem's tables.
        constants: the numbers of the results that depend on no variable.
        same: for each table, the number of the first that is equal to it whatever the weights; often its own.
        variable_of: for each result of a bucket the variable that was eliminated.
        neighbours: for each variable the other variables of its step's tables, in the tables' order.
        n_equal: for each number in ``same``, how many tables have it.
        above_split: the split variables, and those whose tables follow from what eliminating such a variable made.
    """

    n_states: tuple[int, ...]
    max_cells: int
    shapes: list[Shape] = field(default_factory=list)
    costs: list[TableCosts] = field(default_factory=list)
    steps: list[EliminationStep] = field(default_factory=list)
    constants: list[int] = field(default_factory=list)
    same: list[int] = field(default_factory=list)
    variable_of: dict[int, int] = field(default_factory=dict)
    neighbours: dict[int, tuple[int, ...]] = field(default_factory=dict)
    n_equal: Counter[int] = field(default_factory=Counter)
    above_split: set[int] = field(default_factory=set)

    @classmethod
    def of(cls, problem: Problem, max_cells: int) -> EliminationPlan:
        """Plan to eliminate all nodes with tables of at most ``max_cells`` cells.

        An edge of the problem itself may have more cells. Where all tables together have more than MAX_TOTAL_CELLS, planning
        is repeated with a smaller ``max_cells``.
        """
        shapes, tables = problem_tables(problem)
        same = first_equal(tables)
        while True:
            plan = cls(tuple(node.n_states for node in problem.nodes), max_cells, list(shapes), tables, same=list(same))
            _Planner(plan).run()
            plan.n_equal.update(plan.same)
            if plan.total_cells <= MAX_TOTAL_CELLS or max_cells == 1:
                return plan
            max_cells = max(max_cells // 8, 1)

    @property
    def total_cells(self) -> int:
        """Return the number of cells of all tables; equal tables count once."""
        return sum(math.prod(shape.sizes) for number, shape in enumerate(self.shapes) if self.same[number] == number)

    @property
    def alike(self) -> list[list[int]]:
        """Return the variables, those whose eliminations are equal together."""
        groups: dict[int, list[int]] = {}
        for step in self.steps:
            groups.setdefault(self.same[step.buckets[0].result], []).append(step.variable)
        return list(groups.values())

    @property
    def is_exact(self) -> bool:
        """Return whether no bucket was split, so that the least sum is exact and not just a lower bound."""
        return all(len(step.buckets) == 1 for step in self.steps)


@dataclass(frozen=True, slots=True, eq=False)
class _Effort:
    """An estimate of what eliminating a variable from some tables takes.

    Attributes:
        tables: the tables of several variables that the elimination adds up.
        partitions: for each variable of these tables, the groups of its states that they distinguish.
        neighbours: the variables, except the eliminated one, of which the tables distinguish any states.
        work: the number of sums that the elimination compares.
    """

    variable: int
    tables: tuple[int, ...]
    partitions: dict[int, Grouping]
    neighbours: tuple[int, ...]
    cells: float
    work: float

    @classmethod
    def of(cls, variable: int, tables: Sequence[int], partitions: dict[int, Grouping]) -> _Effort:
        sizes = {v: partitions[v].n_classes for v in sorted(partitions)}
        neighbours = tuple(v for v, size in sizes.items() if v != variable and size > 1)
        cells = math.prod(float(sizes[v]) for v in neighbours)
        return cls(variable, tuple(tables), partitions, neighbours, cells, cells * sizes[variable])

    def cells_of(self, scope: frozenset[int]) -> float:
        """Return the number of combinations of groups of these variables."""
        return math.prod(float(self.partitions[v].n_classes) for v in scope)


class _Planner:
    """The planning of one plan.

    Attributes:
        live: for each variable that is left, the numbers of the tables that depend on it.
        efforts: the current estimate for each variable.
        queue: estimates, least first.
        partitions: known partitions, by the identities of the classes that they come from.
        selectors: known classes of the first states of partitions' groups, by the identities of both.
        done: known eliminations, by key.
    """

    def __init__(self, plan: EliminationPlan) -> None:
        self.plan = plan
        self.live: dict[int, set[int]] = {v: set() for v in range(len(plan.n_states))}
        for number, shape in enumerate(plan.shapes):
            self._record(number, shape)
        self.efforts: dict[int, _Effort] = {}
        self.queue: list[tuple[float, float, int, int, _Effort]] = []  # entries no longer in ``efforts`` are void
        self.n_queued = 0
        self.partitions: dict[tuple[int, ...], Grouping] = {}  # by the identities of arrays, all of which are kept
        self.selectors: dict[tuple[int, int], Grouping] = {}
        self.done: dict[tuple[object, ...], EliminationStep] = {}

    def run(self) -> None:
        """Eliminate all variables, the cheapest first."""
        for variable in self.live:
            self._estimate(variable)
        while self.live:
            *_, effort = heapq.heappop(self.queue)
            if self.efforts.get(effort.variable) is effort:
                self._eliminate(effort)

    def _estimate(self, variable: int) -> None:
        of_others = sorted(t for t in self.live[variable] if len(self.plan.shapes[t].scope) > 1)
        effort = self.efforts[variable] = self._effort(variable, of_others)
        self.n_queued += 1
        heapq.heappush(self.queue, (effort.cells, effort.work, variable, self.n_queued, effort))

    def _record(self, number: int, shape: Shape) -> None:
        """Record a table with each variable that it depends on."""
        for variable in shape.scope:
            self.live[variable].add(number)

    def _effort(self, variable: int, tables: Sequence[int]) -> _Effort:
        classes: dict[int, list[Ints]] = {variable: []}
        for table in tables:
            shape = self.plan.shapes[table]
            for other, class_of in zip(shape.scope, shape.classes, strict=True):
                classes.setdefault(other, []).append(class_of)
        return _Effort.of(variable, tables, {v: self._partition(v, kinds) for v, kinds in classes.items()})

    def _partition(self, variable: int, classes: Sequence[Ints]) -> Grouping:
        n_states = self.plan.n_states[variable]
        key = (n_states, *sorted({id(kinds) for kinds in classes}))
        if key not in self.partitions:
            self.partitions[key] = Grouping.of(classes or [np.zeros(n_states, np.int64)])
        return self.partitions[key]

    def _fits(self, effort: _Effort) -> bool:
        """Return whether an elimination is within the limits of cells and work."""
        return effort.cells <= self.plan.max_cells and effort.work <= self.plan.max_cells * _WORK_PER_CELL

    def _eliminate(self, effort: _Effort) -> None:
        """Add a variable's elimination to the plan, in several buckets if it doesn't fit in one; update the estimates."""
        variable = effort.variable
        own = tuple(sorted(t for t in self.live[variable] if len(self.plan.shapes[t].scope) == 1))
        parts = [effort] if self._fits(effort) else self._parted(effort)
        changed = {v for table in effort.tables for v in self.plan.shapes[table].scope}
        for table in effort.tables:
            for other in self.plan.shapes[table].scope:
                self.live[other].discard(table)
        del self.live[variable]
        step = EliminationStep(variable, own, tuple(self._bucket(part) for part in parts))
        self.plan.steps.append(step)
        scopes = (self.plan.shapes[operand.table].scope for bucket in step.buckets for operand in bucket.inputs)
        self.plan.neighbours[variable] = tuple(other for scope in scopes for other in scope if other != variable)
        first = self.done.setdefault(self._key(step, parts), step)
        for bucket, first_bucket in zip(step.buckets, first.buckets, strict=True):
            self.plan.same.append(first_bucket.result)
            self.plan.variable_of[bucket.result] = variable
        makers = {self.plan.variable_of.get(table) for table in (*own, *effort.tables)}
        if len(parts) > 1 or not makers.isdisjoint(self.plan.above_split):
            self.plan.above_split.add(variable)
        del self.efforts[variable]
        for other in sorted(changed - {variable}):
            self._estimate(other)

    def _parted(self, effort: _Effort) -> list[_Effort]:
        """Divide an elimination's tables into groups that fit.

        The largest table comes first; each goes into the first group that it fits into. A table that does not fit alone is
        alone. Tables that cost nothing go into all groups where they fit.
        """
        shapes = self.plan.shapes
        free = [table for table in effort.tables if shapes[table].is_free]
        charged = [table for table in effort.tables if not shapes[table].is_free]
        parts: list[_Effort] = []
        for table in sorted(charged, key=lambda t: (-math.prod(shapes[t].sizes), t)) or free[:1]:
            for index, part in enumerate(parts):
                joined = self._effort(effort.variable, [*part.tables, table])
                if self._fits(joined):
                    parts[index] = joined
                    break
            else:
                parts.append(self._effort(effort.variable, [table]))
        for table in free:  # into every part that it fits into, or else into one of its own
            n_in = 0
            for index, part in enumerate(parts):
                joined = part if table in part.tables else self._effort(effort.variable, [*part.tables, table])
                if joined is part or self._fits(joined):
                    parts[index] = joined
                    n_in += 1
            if not n_in:
                parts.append(self._effort(effort.variable, [table]))
        return parts

    def _bucket(self, effort: _Effort) -> Bucket:
        """Build the bucket of an elimination, and the shape of its result."""
        plan, variable, parts = self.plan, effort.variable, effort.partitions
        left, right, axes = self._halves(effort)
        neighbours = tuple(v for axis in axes for v in axis)
        of_both, of_left, of_right = (tuple(parts[v].n_classes for v in axis) for axis in axes)
        number = len(plan.shapes)
        bucket = Bucket(
            variable,
            parts[variable],
            tuple(self._input(effort, table, (*axes[0], *axes[1], variable)) for table in left),
            tuple(self._input(effort, table, (*axes[0], variable, *axes[2])) for table in right),
            (of_both, of_left, of_right),
            number,
        )
        plan.shapes.append(Shape(neighbours, tuple(parts[v].class_of for v in neighbours), bucket.shape))
        if neighbours:
            self._record(number, plan.shapes[number])
        else:
            plan.constants.append(number)
        return bucket

    def _key(self, step: EliminationStep, parts: Sequence[_Effort]) -> tuple[object, ...]:
        """Return a key that is equal for steps that do the same with the same tables."""
        plan = self.plan
        key: list[object] = [(plan.same[table], id(plan.shapes[table].of(step.variable))) for table in step.own]
        key.append(plan.n_states[step.variable])
        for bucket, effort in zip(step.buckets, parts, strict=True):
            key.append((bucket.axes, len(bucket.left), id(effort.partitions[step.variable])))
            for operand in bucket.inputs:
                shape = plan.shapes[operand.table]
                of_axes = tuple((id(shape.classes[a]), id(effort.partitions[shape.scope[a]])) for a in operand.axes)
                key.append((plan.same[operand.table], operand.axes, of_axes, operand.expanded))
        return tuple(key)

    def _input(self, effort: _Effort, table: int, order: tuple[int, ...]) -> Input:
        """Return how a table lines up with the axes of a part of a bucket, given in ``order``."""
        shape, parts = self.plan.shapes[table], effort.partitions
        order_of = [v for v in order if v in shape.scope]
        order_of += [v for v in shape.scope if v not in order]  # a neighbour of which no states are distinguished
        axes = tuple(shape.scope.index(v) for v in order_of)
        selectors = tuple(self._selector(shape, axis, parts[shape.scope[axis]]) for axis in axes)
        sizes = tuple(parts[v].n_classes if v in shape.scope else 1 for v in order)
        return Input(table, axes, selectors, sizes)

    def _selector(self, shape: Shape, axis: int, part: Grouping) -> Grouping:
        """Return the class of the first state of each group."""
        key = id(shape.classes[axis]), id(part)  # both are kept: by the plan's shapes, and in ``partitions``
        if key not in self.selectors:
            order, starts = part.by_class
            self.selectors[key] = Grouping(shape.classes[axis][order[starts]], shape.sizes[axis])
        return self.selectors[key]

    def _halves(self, effort: _Effort) -> tuple[tuple[int, ...], tuple[int, ...], tuple[tuple[int, ...], ...]]:
        """Divide an elimination's tables into two parts that are cheap to add up.

        Returns:
            The tables of the left part, those of the right part, and the neighbours of both, of the left alone and of the
            right alone.
        """
        neighbours = set(effort.neighbours)
        scopes: dict[frozenset[int], list[int]] = {}
        for table in effort.tables:
            adjacent = frozenset(v for v in self.plan.shapes[table].scope if v in neighbours)
            scopes.setdefault(adjacent, []).append(table)
        kinds = sorted(scopes, key=lambda scope: (effort.cells_of(scope), sorted(scope)))

        def cost(mask: int) -> tuple[float, int]:
            total = 0.0
            for group in ([k for i, k in enumerate(kinds) if mask >> i & 1 == side] for side in (0, 1)):
                total += effort.cells_of(frozenset().union(*group)) * sum(len(scopes[k]) for k in group)
            return total, mask

        whole = (1 << len(kinds)) - 1
        masks = range(1 << len(kinds) >> 1) if len(kinds) <= _MOST_KINDS else [whole >> 1]
        mask = min(masks, key=cost) if kinds else 0
        sides = [[k for i, k in enumerate(kinds) if mask >> i & 1 == side] for side in (1, 0)]
        left, right = (frozenset[int]().union(*side) for side in sides)
        if effort.cells_of(left - right) > effort.cells_of(right - left):
            sides, left, right = sides[::-1], right, left
        tables = [tuple(table for kind in side for table in scopes[kind]) for side in sides]
        axes = tuple(tuple(sorted(group)) for group in (left & right, left - right, right - left))
        return tables[0], tables[1], axes
