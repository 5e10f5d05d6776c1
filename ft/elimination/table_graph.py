"""Eliminate variables from a graph of tables, by the paper's four eliminations in the Pareto semiring (section 3.2).

The graph is a set of tables, at most one per scope; two variables are neighbours if a table depends on both.

- *Node elimination* (Eq. 4: o_i with one input o_h and one output o_j becomes an edge e_hj): ``eliminate`` multiplies the
  tables of a variable and sums it out. With two neighbours that is Eq. 4, in whichever direction the edges point. With one
  neighbour the variable is summed into it; with none it becomes a constant.
- *Edge elimination* (Eq. 5: parallel edges become one): ``add`` multiplies a table into the one of the same scope.
- *Branch elimination* (Eq. 6: o_i is joined with o_h, their states concatenated): ``eliminate`` of a variable with three or
  more neighbours joins these; the cells of the resulting table are their concatenated states. A part of a joined variable is
  summed out as soon as nothing else depends on it, because a table names the parts that it depends on.
- *Heuristic elimination* (Eq. 7: o_i gets one state, and its neighbours the costs of its edges): ``restrict``, which may
  leave a variable several states instead of one, so that it fits what exact elimination may take.

Order: the variable whose elimination makes the smallest table goes first (min-fill on states); the estimate knows which
combinations are not allowed. Variables whose tables are within a factor of four are ordered by which tables they bring
together (see ``TableGraph.cheapest``), then by the combinations looked at, then topologically.

Complexity: eliminating v with neighbours N looks at sum_k prod_{n in N} (states of n allowed with state k of v)
combinations, K^3 for node elimination, each a product of frontiers.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Collection
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from ..problem import Floats, InfeasibleError, Ints
from ..tables.contract import combine
from ..tables.state_classes import sum_out
from ..tables.table import Table
from ..tables.thinning import Thinning
from .repeated import UNIT, Repeated

_WEIGHTS = (0.5, 0.0, 1.0, 0.25, 0.75)
_Order = tuple[int, int, bool, float, int]
"""The key by which eliminations are compared, least first; the variable is last."""


class TooLargeError(Exception):
    """Raised where exact elimination would take more cells or more work than it may."""


@dataclass(frozen=True, slots=True)
class Effort:
    """An estimate of the size and the work of eliminating a variable."""

    variable: int
    cells: float
    """Number of cells of the resulting table, at most."""
    joined: float
    """Combinations of states that are looked at, at most."""

    @property
    def magnitude(self) -> int:
        """Return the size class of the resulting table: the same for sizes within a factor of four."""
        return math.frexp(self.cells)[1] // 2


@dataclass(slots=True)
class TableGraph:
    """The tables that are left, and a record of what was done so far. Tables are never changed, so that ``copy`` is cheap.

    Attributes:
        names: names of the variables, for messages.
        sizes: number of states of each variable.
        thinning: how tables that eliminations make are thinned.
        max_work: the most sums of points that may be looked at in all, as estimated.
        tables: the tables by scope. The product of all is the problem.
        n_left: number of states of the variables that were restricted.
        fixed: states of variables that had only one.
        counts: eliminations done, by kind.
        work: sums of points looked at so far, as estimated.
        repeated: does once what is done with alike tables.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    thinning: Thinning
    max_work: float = math.inf
    tables: dict[tuple[int, ...], Table] = field(default_factory=dict)
    n_left: dict[int, int] = field(default_factory=dict)
    fixed: dict[int, int] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    work: float = 0.0
    repeated: Repeated = field(default_factory=Repeated)
    _efforts: dict[int, Effort] = field(default_factory=dict)
    _neighbours: dict[int, tuple[int, ...]] = field(default_factory=dict)
    _scopes: dict[int, dict[tuple[int, ...], None]] = field(default_factory=dict)
    _orders: dict[int, _Order] = field(default_factory=dict)
    _queue: list[_Order] = field(default_factory=list)  # a heap; entries no longer in ``_orders`` are void
    _stale: set[int] = field(default_factory=set)  # variables without an order, and others that are eliminated
    _ordered: Collection[int] = ()

    def __post_init__(self) -> None:
        for scope in self.tables:
            self._file(scope)

    def copy(self) -> TableGraph:
        """Return a graph that can be changed without changing this one."""
        own = ("tables", "n_left", "fixed", "counts", "_efforts", "_neighbours")
        copies = {name: copy(getattr(self, name)) for name in own}
        return replace(self, **copies, _scopes={}, _orders={}, _queue=[], _stale=set(), _ordered=())

    @property
    def variables(self) -> tuple[int, ...]:
        """Return the variables that are not yet eliminated, in topological order."""
        return tuple(sorted({variable for scope in self.tables for variable in scope}))

    def neighbours(self, variable: int) -> tuple[int, ...]:
        result = self._neighbours.get(variable)
        if result is None:
            scopes = self._scopes.get(variable, ())
            result = self._neighbours[variable] = tuple(sorted({other for scope in scopes for other in scope} - {variable}))
        return result

    def add(self, table: Table) -> None:
        """Multiply a table into the graph, thinned if need be.

        If there is a table of its scope already, that is edge elimination (Eq. 5).

        Raises:
            InfeasibleError: no combination of states is allowed.
        """
        factor = self.tables.get(table.scope)
        if factor is not None:
            self.counts["edge"] += len(table.scope) > 1
            table = self.product(factor, table)
        if table.n_cells == 0:
            names = " and ".join(repr(self.names[variable]) for variable in table.scope) or "the whole problem"
            raise InfeasibleError(f"no strategy is allowed: every combination of states of {names} is infeasible")
        self.tables[table.scope] = self.thinned(table)
        self._file(table.scope)
        self._forget(table.scope)

    def effort(self, variable: int) -> Effort:
        """Estimate what eliminating ``variable`` would take, from the number of cells that each of its states has."""
        effort = self._efforts.get(variable)
        if effort is None:
            joined = np.ones(self.sizes[variable], np.float64)
            for table in self._tables_of(variable):
                joined *= np.bincount(table.column(variable), minlength=len(joined))
            dense = math.prod(float(self.n_states(other)) for other in self.neighbours(variable))
            n_joined = float(joined.sum())
            effort = self._efforts[variable] = Effort(variable, min(dense, n_joined), n_joined)
        return effort

    def n_states(self, variable: int) -> int:
        """Return how many states a variable may still take."""
        return self.n_left.get(variable, self.sizes[variable])

    def cheapest(self, candidates: Collection[int]) -> Effort | None:
        """Return the elimination to do next, None if there is nothing to choose from.

        A table made by an elimination has no interfaces to save work by (see :mod:`..tables.state_classes`) and has long
        frontiers. So among tables of one magnitude, the order avoids that two such tables meet in a variable that is yet to
        be eliminated, and it goes on with such tables before it starts others.

        Args:
            candidates: the variables to choose from; the same object from call to call while it only shrinks.
        """
        if candidates is not self._ordered:
            self._ordered, self._stale = candidates, set(candidates)
            self._orders.clear()
            self._queue.clear()
        for variable in self._stale.intersection(candidates):
            order = self._orders[variable] = self._order(variable, candidates)
            heapq.heappush(self._queue, order)
        self._stale.clear()
        while self._queue:
            order = self._queue[0]
            *_, variable = order
            if variable in candidates and self._orders.get(variable) == order:
                return self.effort(variable)
            heapq.heappop(self._queue)
        return None

    def _order(self, variable: int, candidates: Collection[int]) -> _Order:
        """Return the key by which ``cheapest`` compares variables, least first."""
        effort, scopes = self.effort(variable), self._result_scopes(variable)
        result = set(self.neighbours(variable))
        meeting = sum(
            any(variable not in scope and not result.issuperset(scope) for scope in self._result_scopes(other))
            for other in result.intersection(candidates)
        )
        collisions = max(len(scopes) - 1, 0) + meeting
        return effort.magnitude, collisions, not scopes, effort.joined, variable

    def _result_scopes(self, variable: int) -> list[tuple[int, ...]]:
        """Return the scopes of those of a variable's tables that eliminations made."""
        scopes = self._scopes.get(variable, ())
        return [scope for scope in scopes if len(scope) > 1 and self.tables[scope].trace is not None]

    def eliminate(self, variable: int) -> None:
        """Sum a variable out, exactly (Eq. 4, Eq. 6).

        Raises:
            InfeasibleError: every state of the variable conflicts with its neighbours.
            TooLargeError: it would be more work than is left.
        """
        n_neighbours = len(self.neighbours(variable))
        self.counts["branch" if n_neighbours > 2 else "node"] += 1
        tables = self._pop_tables_of(variable)
        tables.sort(key=lambda table: (table.trace is None and len(table.scope) > 1, table.n_points, table.scope))
        last = tables.pop()  # an edge of the problem itself, if there is one: it has interfaces
        others = sorted(tables, key=lambda table: (table.n_points, table.scope))
        product = others[0] if others else UNIT
        for table in others[1:]:
            product = self.product(product, table)
        result = self.sum_out(product, last, variable)
        if result.n_cells == 0:
            raise InfeasibleError(
                f"no strategy is allowed: every state of {self.names[variable]!r} is infeasible together with "
                f"those of its neighbours {', '.join(repr(self.names[v]) for v in result.scope) or '(none)'}"
            )
        self.add(result)

    def sum_out(self, a: Table, b: Table, variable: int) -> Table:
        """Return the product of two tables with a variable summed out, and add to the work done.

        Raises:
            TooLargeError: it would be more work than is left.
        """
        self.work += a.n_points * b.n_points / self.n_states(variable)
        if self.work > self.max_work:
            raise TooLargeError(f"eliminating {self.names[variable]!r} would take more than the work allowed")
        return self.repeated("sum", (a, b), lambda: sum_out(a, b, variable), variable)

    def product(self, a: Table, b: Table) -> Table:
        return self.repeated("product", (a, b), lambda: combine(a, b))

    def thinned(self, table: Table) -> Table:
        return self.repeated("thinned", (table,), lambda: self.thinning.apply(table))

    def settle(self, variable: int) -> None:
        """Eliminate a variable that has a single state."""
        (self.fixed[variable],) = np.unique(np.concatenate([t.column(variable) for t in self._tables_of(variable)]))
        for table in self._pop_tables_of(variable):
            self.add(self.repeated("settled", (table,), partial(_without, table, variable), variable))

    def restrict(self, variable: int, states: Collection[int]) -> None:
        """Restrict a variable to some of its states (heuristic elimination, Eq. 7): not exact.

        Raises:
            InfeasibleError: a neighbour has no state that goes with them.
        """
        sorted_states = np.array(sorted(states), np.int64)
        self.n_left[variable] = len(sorted_states)
        for table in self._pop_tables_of(variable):
            operation = "restricted", sorted_states.tobytes()
            self.add(self.repeated(operation, (table,), partial(_with_states, table, variable, sorted_states), variable))

    def states_by_promise(self, variable: int) -> tuple[int, ...]:
        """Return the variable's states in the order in which ``restrict`` should keep them, the most promising first.

        Each of the variable's tables has a least memory and a least time with a state. Their sums over the tables, each
        normalised over the states, are weighted five ways: all on one cost, all on the other, and between. The orders by
        these weights take turns, equal weights first.
        """
        n_states = self.sizes[variable]
        mem, time = np.zeros(n_states), np.zeros(n_states)
        for table in self._tables_of(variable):
            state = table.column(variable)[table.cell_of_point]
            mem += _least(table.mem, state, n_states)
            time += _least(table.time, state, n_states)
        possible = np.flatnonzero(np.isfinite(mem))
        mem, time = _normalised(mem[possible]), _normalised(time[possible])
        ranks = np.empty((len(possible), len(_WEIGHTS)))
        for column, weight in enumerate(_WEIGHTS):
            order = np.argsort(weight * mem + (1 - weight) * time, kind="stable")
            ranks[order, column] = np.arange(len(order)) * len(_WEIGHTS) + column
        return tuple(possible[np.argsort(ranks.min(axis=1), kind="stable")].tolist())

    def _tables_of(self, variable: int) -> list[Table]:
        return [self.tables[scope] for scope in self._scopes.get(variable, ())]

    def _pop_tables_of(self, variable: int) -> list[Table]:
        tables = self._tables_of(variable)
        for table in tables:
            self._forget(table.scope)
            for other in table.scope:
                del self._scopes[other][table.scope]
            del self.tables[table.scope]
        return tables

    def _file(self, scope: tuple[int, ...]) -> None:
        """Record the scope of a table with each of its variables."""
        for variable in scope:
            self._scopes.setdefault(variable, {})[scope] = None

    def _forget(self, scope: tuple[int, ...]) -> None:
        """Forget estimates about these variables; the order of their neighbours depends on them too."""
        for variable in scope:
            for other in (variable, *self.neighbours(variable)):
                if self._orders.pop(other, None) is not None:
                    self._stale.add(other)
            self._efforts.pop(variable, None)
        for variable in scope:
            self._neighbours.pop(variable, None)


def _without(table: Table, variable: int) -> Table:
    scope = tuple(other for other in table.scope if other != variable)
    cells = np.arange(table.n_cells, dtype=np.int64)
    return table.take(cells, scope, np.delete(table.states, table.scope.index(variable), axis=1))


def _with_states(table: Table, variable: int, states: Ints) -> Table:
    """Return the cells of a table in which a variable has one of the chosen states."""
    cells = np.flatnonzero(np.isin(table.column(variable), states)).astype(np.int64, copy=False)
    return table.take(cells, table.scope, table.states[cells])


def _least(costs: Ints, state: npt.NDArray[np.int32], n_states: int) -> Floats:
    """Return the least cost of the points of each state; infinite for a state without points."""
    least = np.full(n_states, np.inf)
    np.minimum.at(least, state, costs)
    return least


def _normalised(values: Floats) -> Floats:
    """Return the values scaled to [0, 1]; zeros if all are equal."""
    span = float(np.ptp(values)) if len(values) else 0.0
    return (values - values.min()) / span if span else np.zeros_like(values)
