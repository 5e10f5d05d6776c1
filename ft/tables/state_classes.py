"""Sum out a variable by classes of equal states: an edge's costs are added once per interface, not once per state.

An edge's cost depends only on a producer's produced layout and on a consumer's operand sharding, and there are far fewer of
these interfaces than configs: most rows of an edge's table are equal, and so are most columns. States with equal rows form a
*class*. Summing out v in

    result[x, z] = union over k of  a[x, k] (x) b[k, z]

is then done in three exact steps: merge ``a[x, k]`` over the k of one class (of rows of b), multiply with the table of
classes and sum out, and copy the result to all z of one class (of columns of b). With R classes of rows and C classes of
columns, K K products become R C.

Equal cells may stand in for each other only where they hide nothing. A table with a trace may have equal costs for two
states by *different* states of what was eliminated, so only tables without a trace are divided into classes.
"""

from __future__ import annotations

import numpy as np

from ..problem import Ints
from .contract import combine, merge_states
from .table import Table, codes, expand_ranges


def sum_out(a: Table, b: Table, variable: int) -> Table:
    """Return ``combine(a, b, variable)``, computed by classes of states."""
    if b.trace is None:
        a, b = _merge_by_class(a, b, variable)
    elif a.trace is None:
        b, a = _merge_by_class(b, a, variable)
    copies: list[tuple[int, Ints]] = []
    for outer in sorted((set(a.scope) ^ set(b.scope)) - {variable}):
        owner = a if outer in a.scope else b
        if owner.trace is not None:
            continue
        representative = state_classes(owner, outer)
        if _is_worth_it(owner, outer, representative):
            copies.append((outer, representative))
            reduced = _only_representatives(owner, outer, representative)
            a, b = (reduced, b) if owner is a else (a, reduced)
    result = combine(a, b, variable)
    for outer, representative in copies:
        result = _copy_to_class(result, outer, representative)
    return result


def state_classes(table: Table, variable: int) -> Ints:
    """Return the representative of each state of ``variable``: the lowest state with equal cells in ``table``.

    It is -1 for a state without a cell.
    """
    column = table.column(variable)
    rest = codes([table.column(other) for other in table.scope if other != variable], table.n_cells)
    # Numbers of 16 bits are sorted by counting.
    keys = [code.astype(np.min_scalar_type(int(code.max(initial=0)))) for code in (rest, column)]
    order = np.lexsort(keys).astype(np.int64, copy=False)
    counts = np.diff(table.offsets)[order]
    points = expand_ranges(table.offsets[order], counts)
    mem, time, rest, column = table.mem[points], table.time[points], rest[order], column[order]
    states, first = np.unique(column, return_index=True)
    cell_bounds = np.append(first, table.n_cells)
    point_bounds = np.append(np.concatenate([[0], np.cumsum(counts)])[first], len(points))
    representative = np.full(int(column.max(initial=-1)) + 1, -1, np.int64)
    first_of: dict[tuple[bytes, ...], int] = {}
    for index, state in enumerate(states.tolist()):
        cells = slice(cell_bounds[index], cell_bounds[index + 1])
        of_points = slice(point_bounds[index], point_bounds[index + 1])
        content = rest[cells].tobytes(), counts[cells].tobytes(), mem[of_points].tobytes(), time[of_points].tobytes()
        representative[state] = first_of.setdefault(content, state)
    return representative


def _is_worth_it(table: Table, variable: int, representative: Ints) -> bool:
    """Return whether there are fewer classes than states."""
    return table.n_cells > 0 and len(np.unique(representative)) < len(np.unique(table.column(variable)))


def _merge_by_class(a: Table, b: Table, variable: int) -> tuple[Table, Table]:
    """Return both tables with the states merged that ``b`` does not distinguish: ``a`` has the unions of their cells."""
    if variable not in a.scope or variable not in b.scope or b.n_cells == 0:
        return a, b
    representative = state_classes(b, variable)
    column = a.column(variable)
    has_partner = column < len(representative)
    has_partner[has_partner] = representative[column[has_partner]] >= 0
    if not has_partner.all():
        cells = np.flatnonzero(has_partner)
        a = a.take(cells, a.scope, a.states[cells])
    if _is_worth_it(a, variable, representative[a.column(variable)]):
        a = merge_states(a, variable, representative)
        b = _only_representatives(b, variable, representative)
    return a, b


def _only_representatives(table: Table, variable: int, representative: Ints) -> Table:
    column = table.column(variable)
    cells = np.flatnonzero(representative[column] == column)
    return table.take(cells, table.scope, table.states[cells])


def _copy_to_class(table: Table, variable: int, representative: Ints) -> Table:
    """Return the table with each representative's cells copied to every member of its class."""
    represented = np.flatnonzero(representative >= 0)
    members = represented[np.argsort(representative[represented], kind="stable")]
    of_members = representative[members]
    column = table.column(variable)
    first = np.searchsorted(of_members, column, side="left").astype(np.int64, copy=False)
    count = np.searchsorted(of_members, column, side="right") - first
    cells = np.repeat(np.arange(table.n_cells, dtype=np.int64), count)
    states = table.states[cells]
    states[:, table.scope.index(variable)] = members[expand_ranges(first, count)]
    return table.take(cells, table.scope, states)
