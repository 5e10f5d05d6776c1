"""In which order a weighted search eliminates variables, and what it adds up for each: the same for all weights.

Tables here hold one number per cell, not a frontier, and are dense arrays. A table does not tell all states of a variable
apart: most rows of an edge are equal, so its axes run over *classes* of states. Eliminating variable v takes the tables
that depend on v (its *bucket*), and minimises their sum over v's states, for all combinations of classes of v's
neighbours that any of these tables tells apart:

    result[x, y, ..] = min over states k of v  sum over tables t of v  t[k, x, y, ..]

The order is greedy, the smallest result first (min-fill on states). Where even that has too many cells the bucket is cut
into several that choose v's state apart: the least sum of that relaxed problem is a lower bound (mini-buckets: Dechter and
Rish, J. ACM 50 (2003)). v's own cost is charged once, see :mod:`.least`; tables that cost nothing, and only say what goes
together, are in all of its buckets.

Complexity of planning: O(n^2 + sum over eliminations of K log K); of a bucket: G times cells of its result, with G the
groups of states of v that its tables tell apart.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from .problem import INFEASIBLE, Ints, Problem
from .separable import split_sum

MAX_TOTAL_CELLS = 1 << 26
"""8 bytes each."""
_WORK_PER_CELL = 1 << 8
"""A bucket may take as many steps for each cell that a result may have."""


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """What a table depends on.

    Attributes:
        scope: variables, ascending.
        classes: for each, int64[K]: the class of each state, from 0, all there.
        sizes: how many classes there are.
        is_free: whether all allowed cells cost nothing, whatever the weights.
    """

    scope: tuple[int, ...]
    classes: tuple[Ints, ...]
    sizes: tuple[int, ...]
    is_free: bool = False

    def of(self, variable: int) -> Ints:
        return self.classes[self.scope.index(variable)]


@dataclass(frozen=True, slots=True, eq=False)
class Costs:
    """A table of the problem: zero where it is not allowed.

    Attributes:
        edges: the indices of the edges that were added up; none for a node's own costs.
    """

    mem: Ints
    time: Ints
    forbidden: npt.NDArray[np.bool_]
    edges: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Input:
    """A table in a bucket.

    Attributes:
        table: its number.
        axes: the order of its axes in which the bucket's variable is first.
        selectors: for each axis in that order, which class goes with each group, or with each of the bucket's classes.
        expanded: its shape beside the others: [groups, classes or 1, ..].
    """

    table: int
    axes: tuple[int, ...]
    selectors: tuple[Ints, ...]
    expanded: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Bucket:
    """Tables that choose a state of one variable together.

    Attributes:
        group: int64[K], the group of each state; states of one group differ in the variable's own cost only.
        inputs: tables of several variables, the smallest first.
        shape: of the result, an axis per neighbour.
        result: the number of the table that it makes.
    """

    variable: int
    group: Ints
    n_groups: int
    inputs: tuple[Input, ...]
    shape: tuple[int, ...]
    result: int


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """The elimination of one variable: tables of it alone, and its buckets; more than one is a relaxation."""

    variable: int
    own: tuple[int, ...]
    buckets: tuple[Bucket, ...]


@dataclass(slots=True)
class Plan:
    """The eliminations of a problem, in order.

    Attributes:
        shapes: of all tables, by number; the first ``len(given)`` are the problem's.
    """

    n_states: tuple[int, ...]
    max_cells: int
    shapes: list[Shape] = field(default_factory=list)
    given: list[Costs] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    constants: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, problem: Problem, max_cells: int) -> Plan:
        """Plan to eliminate all nodes with tables of at most ``max_cells`` cells; an edge as given may have more.

        Where all tables together have more than MAX_TOTAL_CELLS they are made smaller.
        """
        given = cls(tuple(node.n_states for node in problem.nodes), max_cells)
        _add_given(given, problem)
        while True:
            plan = cls(given.n_states, max_cells, list(given.shapes), given.given)
            _Planner(plan).run()
            total = sum(math.prod(shape.sizes) for shape in plan.shapes[len(plan.given) :])
            if total <= MAX_TOTAL_CELLS or max_cells == 1:
                return plan
            max_cells = max(max_cells // 8, 1)

    @property
    def exact(self) -> bool:
        return all(len(step.buckets) == 1 for step in self.steps)


def _add_given(plan: Plan, problem: Problem) -> None:
    """The problem's tables: edges between two nodes added up, and those that are sums put into their nodes."""
    own = [[node.mem_bytes.copy(), node.time_ns.copy()] for node in problem.nodes]
    between: dict[tuple[int, int], list[int]] = {}
    for index, edge in enumerate(problem.edges):
        between.setdefault((min(edge.source, edge.target), max(edge.source, edge.target)), []).append(index)
    edges: list[tuple[Shape, Costs]] = []
    for pair, indices in between.items():
        mem, time, forbidden = _added_up(problem, pair, indices)
        parts = split_sum(np.where(forbidden, INFEASIBLE, mem)), split_sum(np.where(forbidden, INFEASIBLE, time))
        if parts[0] is not None and parts[1] is not None:
            for place, variable in enumerate(pair):
                own[variable][0] = np.minimum(own[variable][0], INFEASIBLE) + parts[0][place]
                own[variable][1] = np.minimum(own[variable][1], INFEASIBLE) + parts[1][place]
            continue
        together = np.stack([mem, time, forbidden])
        rows, row_of = _classes(together.transpose(1, 0, 2))
        columns, column_of = _classes(together[:, rows].transpose(2, 0, 1))
        kept = np.ix_(rows, columns)
        is_free = not mem.any() and not time.any()
        shape = Shape(pair, (row_of, column_of), (len(rows), len(columns)), is_free)
        edges.append((shape, Costs(mem[kept], time[kept], forbidden[kept], tuple(indices))))
    for variable, (mem, time) in enumerate(own):
        forbidden = (mem >= INFEASIBLE) | (time >= INFEASIBLE)
        plan.shapes.append(Shape((variable,), (np.arange(len(mem)),), (len(mem),)))
        plan.given.append(Costs(np.where(forbidden, 0, mem), np.where(forbidden, 0, time), forbidden))
    for shape, costs in edges:
        plan.shapes.append(shape)
        plan.given.append(costs)


def _added_up(problem: Problem, pair: tuple[int, int], indices: Sequence[int]) -> tuple[Ints, Ints, npt.NDArray[np.bool_]]:
    shape = tuple(problem.nodes[variable].n_states for variable in pair)
    mem, time = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    for index in indices:
        edge = problem.edges[index]
        is_turned = edge.source != pair[0]
        for total, costs in ((mem, edge.mem_bytes), (time, edge.time_ns)):
            total += np.minimum(costs.T if is_turned else costs, INFEASIBLE)
            np.minimum(total, INFEASIBLE, out=total)
    forbidden = (mem >= INFEASIBLE) | (time >= INFEASIBLE)
    mem[forbidden] = time[forbidden] = 0
    return mem, time, forbidden


def _classes(rows: Ints) -> tuple[Ints, Ints]:
    """The first of each kind of row, and the kind of each row."""
    kinds: dict[bytes, int] = {}
    kind_of = [kinds.setdefault(row.tobytes(), len(kinds)) for row in rows]
    result = np.array(kind_of, np.int64)
    first = np.unique(result, return_index=True)[1]
    return first.astype(np.int64, copy=False), result


@dataclass(frozen=True, slots=True, eq=False)
class _Partition:
    """What several tables tell apart of a variable's states."""

    class_of: Ints
    representative: Ints

    @classmethod
    def of(cls, classes: Sequence[Ints]) -> _Partition:
        code = classes[0]
        for more in classes[1:]:
            code = np.unique(code, return_inverse=True)[1] * (int(more.max()) + 1) + more
        _, first, class_of = np.unique(code, return_index=True, return_inverse=True)
        return cls(class_of.astype(np.int64, copy=False), first.astype(np.int64, copy=False))

    def __len__(self) -> int:
        return len(self.representative)


@dataclass(frozen=True, slots=True, eq=False)
class _Effort:
    """What eliminating a variable from some tables takes."""

    variable: int
    tables: tuple[int, ...]
    partitions: dict[int, _Partition]

    @property
    def neighbours(self) -> tuple[int, ...]:
        """Those of which the tables tell any states apart."""
        return tuple(v for v, part in sorted(self.partitions.items()) if v != self.variable and len(part) > 1)

    @property
    def cells(self) -> float:
        return math.prod(float(len(self.partitions[v])) for v in self.neighbours)

    @property
    def work(self) -> float:
        return self.cells * len(self.partitions[self.variable])


class _Planner:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.live: dict[int, set[int]] = {v: set() for v in range(len(plan.n_states))}
        for number, shape in enumerate(plan.shapes):
            self._enter(number, shape)
        self.efforts: dict[int, _Effort] = {}
        self.queue: list[tuple[float, float, int, int, _Effort]] = []  # what is not in efforts any more is void
        self.n_queued = 0

    def run(self) -> None:
        for variable in self.live:
            self._estimate(variable)
        while self.live:
            *_, effort = heapq.heappop(self.queue)
            if self.efforts.get(effort.variable) is effort:
                self._eliminate(effort)

    def _estimate(self, variable: int) -> None:
        effort = self.efforts[variable] = self._effort(variable, self._joint_tables(variable))
        self.n_queued += 1
        heapq.heappush(self.queue, (effort.cells, effort.work, variable, self.n_queued, effort))

    def _joint_tables(self, variable: int) -> tuple[int, ...]:
        return tuple(sorted(t for t in self.live[variable] if len(self.plan.shapes[t].scope) > 1))

    def _enter(self, number: int, shape: Shape) -> None:
        for variable in shape.scope:
            self.live[variable].add(number)

    def _effort(self, variable: int, tables: Sequence[int]) -> _Effort:
        classes: dict[int, list[Ints]] = {variable: [np.zeros(self.plan.n_states[variable], np.int64)]}
        for table in tables:
            shape = self.plan.shapes[table]
            for other, class_of in zip(shape.scope, shape.classes, strict=True):
                classes.setdefault(other, []).append(class_of)
        return _Effort(variable, tuple(tables), {v: _Partition.of(those) for v, those in classes.items()})

    def _fits(self, effort: _Effort) -> bool:
        return effort.cells <= self.plan.max_cells and effort.work <= self.plan.max_cells * _WORK_PER_CELL

    def _eliminate(self, effort: _Effort) -> None:
        variable = effort.variable
        own = tuple(sorted(t for t in self.live[variable] if len(self.plan.shapes[t].scope) == 1))
        parts = [effort] if self._fits(effort) else self._parted(effort)
        changed = {v for table in effort.tables for v in self.plan.shapes[table].scope}
        for table in effort.tables:
            for other in self.plan.shapes[table].scope:
                self.live[other].discard(table)
        del self.live[variable]
        self.plan.steps.append(Step(variable, own, tuple(self._bucket(part) for part in parts)))
        del self.efforts[variable]
        for other in sorted(changed - {variable}):
            self._estimate(other)

    def _parted(self, effort: _Effort) -> list[_Effort]:
        """The tables in groups that fit, the largest table first, each with the first group that it fits into.

        A table that does not fit alone is alone.
        """
        shapes = self.plan.shapes
        free = [table for table in effort.tables if shapes[table].is_free]
        charged = [table for table in effort.tables if not shapes[table].is_free]
        parts: list[_Effort] = []
        for table in sorted(charged, key=lambda t: (-math.prod(shapes[t].sizes), t)) or free[:1]:
            for place, part in enumerate(parts):
                joined = self._effort(effort.variable, [*part.tables, table])
                if self._fits(joined):
                    parts[place] = joined
                    break
            else:
                parts.append(self._effort(effort.variable, [table]))
        for table in free:  # where it fits, but somewhere
            n_in = 0
            for place, part in enumerate(parts):
                joined = part if table in part.tables else self._effort(effort.variable, [*part.tables, table])
                if joined is part or self._fits(joined):
                    parts[place] = joined
                    n_in += 1
            if not n_in:
                parts.append(self._effort(effort.variable, [table]))
        return parts

    def _bucket(self, effort: _Effort) -> Bucket:
        plan, variable, neighbours = self.plan, effort.variable, effort.neighbours
        inputs = []
        for table in effort.tables:
            shape = plan.shapes[table]
            order = [variable, *(v for v in shape.scope if v != variable)]
            parts = [effort.partitions[v] for v in order]
            selectors = tuple(shape.of(v)[part.representative] for v, part in zip(order, parts, strict=True))
            expanded = [len(parts[0]), *(len(effort.partitions[v]) if v in shape.scope else 1 for v in neighbours)]
            inputs.append(Input(table, tuple(shape.scope.index(v) for v in order), selectors, tuple(expanded)))
        inputs.sort(key=lambda each: (math.prod(each.expanded), each.table))
        sizes = tuple(len(effort.partitions[v]) for v in neighbours)
        number = len(plan.shapes)
        plan.shapes.append(Shape(neighbours, tuple(effort.partitions[v].class_of for v in neighbours), sizes))
        if neighbours:
            self._enter(number, plan.shapes[number])
        else:
            plan.constants.append(number)
        of_variable = effort.partitions[variable]
        return Bucket(variable, of_variable.class_of, len(of_variable), tuple(inputs), sizes, number)
