"""Eliminate the variables of a problem on paper: which cells of which tables meet, in which order.

A table has a cell for each allowed combination of the states of its variables, as in :mod:`...tables.table`. A *step*
multiplies two tables, and may sum a variable out of the product. An *arc* is a pair of cells that agree on the variables
that both tables have; its *target* is the cell of the result that it contributes to. Each table is used by one step, and the
last step makes a table with a single cell. What is done along the arcs is up to the caller: sums of weighted costs
(:mod:`.bounds`) or of points (:mod:`.frontiers`).

Along an edge most states of a node have equal costs, as they have the same layout. Such a class of states becomes a variable
of its own, between the node and the edge, so that points are brought together before the edge is crossed.

Order: the variable whose elimination makes the smallest table goes first, those with one neighbour before all others. So a
chain is eliminated from its ends on, and few segments are begun at a time.

Complexity: O(arcs log arcs).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ...problem import INFEASIBLE, InfeasibleError, Ints, Problem
from ...tables.table import States, codes, expand_ranges
from ..segment_memory import Transient

Mask = npt.NDArray[np.bool_]
WORTH = 0.8
"""The share of a variable's states that the classes of states with equal costs along an edge may be for it to pay."""
MEM, TIME, FIRST = 0, 1, 2
"""Rows of a table's costs: saved memory, time, and from FIRST on each segment's memory."""


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """A product of two tables.

    Attributes:
        a, b, result: the numbers of the tables.
        variable: the variable that is summed out; None if there is none.
        a_cell, b_cell, target: int64[A], the arcs, by ascending target.
    """

    a: int
    b: int
    result: int
    variable: int | None
    a_cell: Ints
    b_cell: Ints
    target: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Eliminations:
    """The steps that eliminate all variables of a problem.

    Attributes:
        n_variables, n_segments: the numbers of variables and of segments. The problem's nodes are the first variables; the
            others are classes of states.
        scopes: the variables of each table, ascending.
        states: the states of each table's cells, int32[C, variables].
        costs: the costs of each table of the problem, int64[FIRST + segments, C]; None for the results of steps.
        steps: in the order in which they are done; the last one makes a table with a single cell.
        counts: the number of steps that are node, edge and branch eliminations (Equations 4 to 6).
    """

    n_variables: int
    n_segments: int
    scopes: tuple[tuple[int, ...], ...]
    states: tuple[States, ...]
    costs: tuple[Ints | None, ...]
    steps: tuple[Step, ...]
    counts: Mapping[str, int]

    @classmethod
    def of(cls, problem: Problem, transient: Transient, max_arcs: int) -> Eliminations | None:
        """Return the eliminations of a problem; None where they would have more than ``max_arcs`` arcs.

        Raises:
            InfeasibleError: no strategy is allowed.
        """
        found = _Planner(problem, transient, max_arcs)
        return found.planned() if found.is_small else None

    @property
    def n_arcs(self) -> int:
        """Return the number of arcs of all steps."""
        return sum(len(step.target) for step in self.steps)

    def with_arcs(self, kept: Sequence[Mask]) -> Eliminations | None:
        """Return the eliminations with some of the arcs of each step, and the cells that these need; None if none is left.

        Args:
            kept: for each step, which of its arcs to keep.
        """
        steps = [_with(step, arcs) for step, arcs in zip(self.steps, kept, strict=True)]
        used = [np.zeros(len(states), np.bool_) for states in self.states]
        used[steps[-1].result][:] = True
        while True:
            for i, step in reversed(list(enumerate(steps))):
                steps[i] = step = _with(step, used[step.result][step.target])
                used[step.a][step.a_cell] = used[step.b][step.b_cell] = True
            made = [
                mask.copy() if given is not None else np.zeros_like(mask)
                for mask, given in zip(used, self.costs, strict=True)
            ]
            for i, step in enumerate(steps):
                steps[i] = step = _with(step, made[step.a][step.a_cell] & made[step.b][step.b_cell])
                made[step.result][step.target] = True
            if all(np.array_equal(one, other) for one, other in zip(made, used, strict=True)):
                break
            used = [np.zeros_like(mask) for mask in made]
            used[steps[-1].result][:] = made[steps[-1].result]
        if not used[steps[-1].result].any():
            return None
        number = [np.cumsum(mask) - 1 for mask in used]
        renumbered = (
            replace(
                step,
                a_cell=number[step.a][step.a_cell],
                b_cell=number[step.b][step.b_cell],
                target=number[step.result][step.target],
            )
            for step in steps
        )
        return replace(
            self,
            states=tuple(states[mask] for states, mask in zip(self.states, used, strict=True)),
            costs=tuple(None if costs is None else costs[:, mask] for costs, mask in zip(self.costs, used, strict=True)),
            steps=tuple(renumbered),
        )


def _with(step: Step, kept: Mask) -> Step:
    """Return the step with some of its arcs."""
    if kept.all():
        return step
    return replace(step, a_cell=step.a_cell[kept], b_cell=step.b_cell[kept], target=step.target[kept])


class _Planner:
    """Chooses the order of a problem's eliminations, and finds their arcs until there are too many.

    Attributes:
        is_small: whether there are no more than ``max_arcs`` arcs.
    """

    def __init__(self, problem: Problem, transient: Transient, max_arcs: int) -> None:
        self.problem, self.left, self.is_small = problem, max_arcs, True
        self.n_segments = len(transient.segments)
        self.n_states = [node.n_states for node in problem.nodes]
        self.scopes: list[tuple[int, ...]] = []
        self.states: list[States] = []
        self.costs: list[Ints | None] = []
        self.steps: list[Step] = []
        self.counts = dict.fromkeys(("node", "edge", "branch"), 0)
        self._tables: dict[int, set[int]] = defaultdict(set)  # of each variable, those that no step has used
        self._add_given(transient)
        self._eliminate_all()

    def planned(self) -> Eliminations:
        """Return the eliminations without the cells that nothing goes together with."""
        everything = Eliminations(
            len(self.n_states),
            self.n_segments,
            tuple(self.scopes),
            tuple(self.states),
            tuple(self.costs),
            tuple(self.steps),
            self.counts,
        )
        supported = everything.with_arcs([np.ones(len(step.target), np.bool_) for step in self.steps])
        assert supported is not None, "each step has an arc"
        return supported

    def _add_given(self, transient: Transient) -> None:
        """Make the tables of nodes and edges; parallel edges are one."""
        problem, known = self.problem, dict[tuple[int, ...], Ints]()

        def add(scope: tuple[int, ...], mem: Ints, time_ns: Ints, of_segments: Iterable[tuple[int, Ints]]) -> None:
            costs = np.zeros((FIRST + self.n_segments, *mem.shape), np.int64)
            costs[MEM], costs[TIME] = np.minimum(mem, INFEASIBLE), np.minimum(time_ns, INFEASIBLE)
            for index, n_bytes in of_segments:
                costs[FIRST + index] += n_bytes
            costs = costs if scope[0] <= scope[-1] else costs.transpose(0, 2, 1)
            scope = tuple(sorted(scope))
            self.counts["edge"] += scope in known
            known[scope] = np.minimum(known[scope] + costs, INFEASIBLE) if scope in known else costs

        segments = list(enumerate(transient.segments))
        for i, node in enumerate(problem.nodes):
            add((i,), node.mem_bytes, node.time_ns, ((k, each.nodes[i]) for k, each in segments if i in each.nodes))
        for i, edge in enumerate(problem.edges):
            of_segments = ((k, each.edges[i]) for k, each in segments if i in each.edges)
            add((edge.source, edge.target), edge.mem_bytes, edge.time_ns, of_segments)
        for scope, costs in known.items():
            if len(scope) == 2:
                for end in range(2):
                    scope, costs = self._by_class(scope, costs, end)
            allowed = (costs[:FIRST] < INFEASIBLE).all(axis=0)
            self._add(scope, np.argwhere(allowed).astype(np.int32), costs[:, allowed])

    def _by_class(self, scope: tuple[int, ...], costs: Ints, end: int) -> tuple[tuple[int, ...], Ints]:
        """Return an edge's scope and costs with a variable's states joined to classes, if many have equal costs.

        The class becomes a variable of its own, and a table says which class each of the states is in.
        """
        of_states = np.moveaxis(costs, 1 + end, 0)
        seen: dict[bytes, int] = {}
        of_class = np.array([seen.setdefault(row.tobytes(), len(seen)) for row in of_states], np.int32)
        if len(seen) > WORTH * len(of_class):
            return scope, costs
        variable = len(self.n_states)
        self.n_states.append(len(seen))
        members = np.stack([np.arange(len(of_class), dtype=np.int32), of_class], axis=1)
        self._add((scope[end], variable), members, np.zeros((len(costs), len(members)), np.int64))
        _, representatives = np.unique(of_class, return_index=True)
        costs = costs.take(representatives, axis=1 + end)
        return (scope[0], variable) if end else (scope[1], variable), costs if end else costs.transpose(0, 2, 1)

    def _add(self, scope: tuple[int, ...], states: States, costs: Ints | None) -> int:
        """Add a table and return its number.

        Raises:
            InfeasibleError: it has no cell.
        """
        if not len(states):
            nodes = [self.problem.nodes[variable] for variable in scope if variable < len(self.problem.nodes)]
            names = " and ".join(repr(node.name) for node in nodes) or "the whole problem"
            raise InfeasibleError(f"no strategy is allowed: every combination of states of {names} is infeasible")
        self.scopes.append(scope)
        self.states.append(states)
        self.costs.append(costs)
        for variable in scope:
            self._tables[variable].add(len(self.scopes) - 1)
        return len(self.scopes) - 1

    def _eliminate_all(self) -> None:
        order = {variable: self._order(variable) for variable in range(len(self.n_states))}
        ends = []
        while order and self.is_small:
            variable = min(order, key=order.__getitem__)
            neighbours = self._neighbours(variable)
            self.counts["branch" if len(neighbours) > 2 else "node"] += 1
            result = self._eliminate(variable)
            if not neighbours:
                ends.append(result)
            del order[variable]
            order.update((other, self._order(other)) for other in neighbours)
        for other in ends[1:]:
            ends[0] = self._multiplied(ends[0], other, None)

    def _neighbours(self, variable: int) -> set[int]:
        return {other for table in self._tables[variable] for other in self.scopes[table]} - {variable}

    def _order(self, variable: int) -> tuple[bool, int, int]:
        """Return the key by which variables are eliminated, least first."""
        neighbours = self._neighbours(variable)
        return len(neighbours) > 1, math.prod(self.n_states[other] for other in neighbours), variable

    def _eliminate(self, variable: int) -> int:
        """Multiply a variable's tables, small ones first, and sum it out; return the number of the result."""
        tables = sorted(self._tables[variable], key=lambda table: (len(self.scopes[table]), len(self.states[table]), table))
        if len(tables) == 1:
            unit = np.zeros((FIRST + self.n_segments, 1), np.int64)
            tables.append(self._add((), np.zeros((1, 0), np.int32), unit))
        product = tables[0]
        for table in tables[1:-1]:
            product = self._multiplied(product, table, None)
        return self._multiplied(product, tables[-1], variable)

    def _multiplied(self, a: int, b: int, variable: int | None) -> int:
        """Add the step that multiplies two tables, and return the number of its result."""
        a_scope, b_scope, a_states, b_states = self.scopes[a], self.scopes[b], self.states[a], self.states[b]
        for table in (a, b):
            for other in self.scopes[table]:
                self._tables[other].discard(table)
        scope = tuple(sorted({*a_scope, *b_scope} - {variable}))
        shared = [other for other in a_scope if other in b_scope]
        columns = [np.concatenate([a_states[:, a_scope.index(v)], b_states[:, b_scope.index(v)]]) for v in shared]
        key = codes(columns, len(a_states) + len(b_states))
        a_key, b_key = key[: len(a_states)], key[len(a_states) :]
        b_order = np.argsort(b_key, kind="stable")
        first = np.searchsorted(b_key[b_order], a_key, side="left")
        count = np.searchsorted(b_key[b_order], a_key, side="right") - first
        self.left -= int(count.sum())
        self.is_small &= self.left >= 0
        if not self.is_small:
            return self._add(scope, np.zeros((1, len(scope)), np.int32), None)  # nobody will look at it
        a_cell, b_cell = np.repeat(np.arange(len(count)), count), b_order[expand_ranges(first, count)]
        columns = [a_states[a_cell, a_scope.index(v)] if v in a_scope else b_states[b_cell, b_scope.index(v)] for v in scope]
        code = codes(columns, len(a_cell))
        order = np.argsort(code, kind="stable")
        is_new = np.diff(code[order], prepend=-1) > 0
        states = np.zeros((int(is_new.sum()), len(scope)), np.int32)
        for i, column in enumerate(columns):
            states[:, i] = column[order[is_new]]
        result = self._add(scope, states, None)
        self.steps.append(Step(a, b, result, variable, a_cell[order], b_cell[order], np.cumsum(is_new) - 1))
        return result
