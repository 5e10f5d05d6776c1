"""Do what is done with equal tables once, as the eliminations of equal layers.

Tables are *alike* if they have the very same arrays; they may depend on other variables. What is made of alike tables in
the same way has the same arrays too, so that the next elimination recognises it. Only the back-pointers differ
(:class:`..tables.table.Trace`): they name the variables of each layer, and lead to each layer's own tables. They are
renamed, not made again.

Complexity: O(tables of a step) for a step that is known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ..tables.table import Table, Trace, unit_table

UNIT = unit_table()


@dataclass(frozen=True, slots=True)
class _Done:
    """The result of an operation on some tables, with these tables and all their variables, ascending."""

    tables: tuple[Table, ...]
    variables: tuple[int, ...]
    result: Table

    def with_(self, tables: Sequence[Table], variables: Sequence[int]) -> Table:
        """Return what the same step makes of alike tables of other variables."""
        if self.result is self.tables[0]:  # a step that leaves tables like this one as they are
            return tables[0]
        names = dict(zip(self.variables, variables, strict=True))
        traces = {
            id(own.trace): other.trace
            for own, other in zip(self.tables, tables, strict=True)
            if own.trace is not None and other.trace is not None
        }
        scope = tuple(names[variable] for variable in self.result.scope)
        return self.result.renamed(scope, _renamed(self.result.trace, traces, names))


@dataclass(slots=True)
class Repeated:
    """The steps that were done, by what they do and with which tables.

    Only steps are kept all of whose tables may come again: tables of the problem that are alike, and what is made of them.
    """

    _known: dict[tuple[object, ...], _Done] = field(default_factory=dict)
    _alike: dict[int, Table] = field(default_factory=lambda: {id(UNIT.mem): UNIT})  # by the identity of an array

    def expect(self, table: Table) -> None:
        """Announce that there are several tables with these arrays."""
        self._alike[id(table.mem)] = table

    def __call__(
        self, operation: object, tables: Sequence[Table], compute: Callable[[], Table], variable: int | None = None
    ) -> Table:
        """Return what a step makes of tables: by ``compute``, or as it was made of alike tables.

        Args:
            operation: the step. All that its result depends on beside the tables and the variable must be in it.
            variable: the variable that the step is about, one of the tables'.
        """
        if not all(id(table.mem) in self._alike for table in tables):
            return compute()
        variables = tuple(sorted({v for table in tables for v in table.scope}))
        rank = {v: number for number, v in enumerate(variables)}
        key = operation, -1 if variable is None else rank[variable], *(_key(table, rank) for table in tables)
        entry = self._known.get(key)
        if entry is None:
            entry = self._known[key] = _Done(tuple(tables), variables, compute())
            self.expect(entry.result)
            return entry.result
        return entry.with_(tables, variables)


def _key(table: Table, rank: Mapping[int, int]) -> tuple[object, ...]:
    """Return a key that is equal for alike tables whose variables have the same ranks. A step's tables are kept alive."""
    arrays = table.states, table.offsets, table.mem, table.time
    return (
        *map(id, arrays),
        *[rank[variable] for variable in table.scope],
        table.slack,
        table.n_summed,
        table.trace is None,
    )


def _renamed(trace: Trace | None, traces: Mapping[int, Trace], names: Mapping[int, int]) -> Trace | None:
    """Return a trace with its variables renamed that ends in other tables' traces, given by the identity of its own."""
    if trace is None or id(trace) in traces:
        return None if trace is None else traces[id(trace)]
    parents = []
    for parent, points in trace.parents:
        new = _renamed(parent, traces, names)
        assert new is not None
        parents.append((new, points))
    return Trace(tuple(parents), None if trace.variable is None else names[trace.variable], trace.states)
