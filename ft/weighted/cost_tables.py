"""Build the tables that a weighted search begins with: a problem's costs by classes of states.

A table does not distinguish all states of a variable: most rows of an edge are equal, so the table's axes run over *classes*
of states. Edges between the same two nodes are one table. An edge whose cost is the sum of a cost of either end needs no
table.

Layers that are alike share the very same arrays, so the table of one is the table of all.

Complexity: O(cells of edges that differ).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..problem import INFEASIBLE, Ints, Problem, identity, split_sum


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """The variables that a table depends on, with the classes of their states.

    Attributes:
        scope: the variables; ascending in the tables of the problem itself.
        classes: for each variable, int64[K]: the class of each state, from 0, without gaps.
        sizes: for each variable, the number of classes.
        is_free: whether all allowed cells cost nothing, whatever the weights.
    """

    scope: tuple[int, ...]
    classes: tuple[Ints, ...]
    sizes: tuple[int, ...]
    is_free: bool = False

    def of(self, variable: int) -> Ints:
        """Return the class of each state of a variable: int64[K]."""
        return self.classes[self.scope.index(variable)]


@dataclass(frozen=True, slots=True, eq=False)
class TableCosts:
    """The costs of a table of the problem; they are zero where it is not allowed.

    Attributes:
        mem, time: int64, an axis per variable of the table.
        forbidden: bool, of the same shape: the cells that are not allowed.
    """

    mem: Ints
    time: Ints
    forbidden: npt.NDArray[np.bool_]


def problem_tables(problem: Problem) -> tuple[list[Shape], list[TableCosts]]:
    """Return the problem's tables: the nodes' own, then one for every two nodes with edges between them.

    Edges whose costs are sums of a cost of either end are added to their nodes' own costs.
    """
    own = [[node.mem_bytes.copy(), node.time_ns.copy()] for node in problem.nodes]
    edges_of: dict[tuple[int, int], list[int]] = {}
    for index, edge in enumerate(problem.edges):
        edges_of.setdefault((min(edge.source, edge.target), max(edge.source, edge.target)), []).append(index)
    edges: list[tuple[Shape, TableCosts]] = []
    kinds: dict[tuple[object, ...], _Kind] = {}  # layers that are alike share arrays, which the problem keeps alive
    for pair, indices in edges_of.items():
        given_edges = (problem.edges[index] for index in indices)
        key = tuple((e.source != pair[0], identity(e.mem_bytes), identity(e.time_ns)) for e in given_edges)
        if key not in kinds:
            kinds[key] = _Kind.of(*_added_up(problem, pair, indices))
        kind = kinds[key]
        if kind.of_ends is not None:
            for variable, (mem, time) in zip(pair, kind.of_ends, strict=True):
                own[variable][0] = np.minimum(own[variable][0], INFEASIBLE) + mem
                own[variable][1] = np.minimum(own[variable][1], INFEASIBLE) + time
        else:
            edges.append((Shape(pair, kind.classes, kind.costs.mem.shape, kind.is_free), kind.costs))
    shapes: list[Shape] = []
    costs_of_nodes: list[TableCosts] = []
    states = {len(mem): np.arange(len(mem)) for mem, _ in own}
    for variable, (mem, time) in enumerate(own):
        forbidden = (mem >= INFEASIBLE) | (time >= INFEASIBLE)
        shapes.append(Shape((variable,), (states[len(mem)],), (len(mem),)))
        costs_of_nodes.append(TableCosts(np.where(forbidden, 0, mem), np.where(forbidden, 0, time), forbidden))
    return shapes + [shape for shape, _ in edges], costs_of_nodes + [costs for _, costs in edges]


def first_equal(tables: Sequence[TableCosts]) -> list[int]:
    """Return for each table the index of the first table that is equal to it."""
    first: dict[tuple[object, ...], int] = {}
    same: dict[int, int] = {}  # by identity, since edges of alike layers have the very same costs
    for number, costs in enumerate(tables):
        if id(costs) not in same:
            parts = costs.mem, costs.time, costs.forbidden
            same[id(costs)] = first.setdefault((costs.mem.shape, *(part.tobytes() for part in parts)), number)
    return [same[id(costs)] for costs in tables]


@dataclass(frozen=True, slots=True, eq=False)
class _Kind:
    """The costs of one or several edges between two nodes, by classes of their states.

    Attributes:
        of_ends: the memory and time of each end's states if the costs are just their sums; else None.
    """

    classes: tuple[Ints, ...]
    costs: TableCosts
    is_free: bool
    of_ends: tuple[tuple[Ints, Ints], ...] | None = None

    @classmethod
    def of(cls, mem: Ints, time: Ints, forbidden: npt.NDArray[np.bool_]) -> _Kind:
        """Divide costs by states into classes of equal rows and columns, or into costs of either end where they are sums."""
        masked = [np.where(forbidden, INFEASIBLE, costs) for costs in (mem, time)]
        of_mem, of_time = map(split_sum, masked)
        if of_mem is not None and of_time is not None:
            return cls((), TableCosts(mem, time, forbidden), False, tuple(zip(of_mem, of_time, strict=True)))
        rows, row_of = _classes(*masked)
        columns, column_of = _classes(*(np.ascontiguousarray(costs[rows].T) for costs in masked))
        indices = np.ix_(rows, columns)
        costs = TableCosts(mem[indices], time[indices], forbidden[indices])
        return cls((row_of, column_of), costs, not mem.any() and not time.any())


def _added_up(problem: Problem, pair: tuple[int, int], indices: Sequence[int]) -> tuple[Ints, Ints, npt.NDArray[np.bool_]]:
    """Return the sums of the edges' memory and time, [states of pair[0], states of pair[1]], and what is forbidden."""
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


def _classes(mem: Ints, time: Ints) -> tuple[Ints, Ints]:
    """Return the index of the first row of each class of rows that are equal in both costs, and the class of each row."""
    kinds: dict[tuple[bytes, bytes], int] = {}
    kind_of = [kinds.setdefault((one.tobytes(), other.tobytes()), len(kinds)) for one, other in zip(mem, time, strict=True)]
    result = np.array(kind_of, np.int64)
    first = np.unique(result, return_index=True)[1]
    return first.astype(np.int64, copy=False), result
