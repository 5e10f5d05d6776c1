"""Solve the marked linear graph by linear dynamic programming (LDP, Algorithm 3).

    CF(o_1, k) = F(o_1, k)
    CF(o_i, p) = union over k of  CF(o_{i-1}, k) (x) F(e_{(i-1)i}, k, p)  (x)  F(o_i, p)
    result     = reduce( union over k of CF(o_n, k) )

Node elimination of a chain keeps a frontier per *pair* of states, with K^3 products a step. LDP keeps one per state, with
K^2 products a step: O(n^2 K^2 log K (log n + log K)) in all, against O(n^2 K^3 log K (log n + log K)) (section 3.3).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from ..problem import InfeasibleError
from ..tables.state_classes import sum_out
from ..tables.table import unit_table
from .table_graph import TableGraph


def linear_dynamic_programming(graph: TableGraph, line: tuple[int, ...], on_step: Callable[[], None]) -> None:
    """Replace a line of variables, which must have no other neighbours, by one table with an empty scope.

    Args:
        graph: changed in place.
        line: the variables, first to last; each is a neighbour of the one before and of no other before it.
        on_step: called once for each variable.

    Raises:
        InfeasibleError: no states of two consecutive variables go together.
    """
    cumulative = graph.tables.pop((line[0],), unit_table())
    for previous, variable in pairwise(line):
        scope = (previous, variable) if previous < variable else (variable, previous)
        table = graph.sum_out(cumulative, graph.tables.pop(scope), previous)
        cumulative = graph.thinned(graph.product(table, graph.tables.pop((variable,), unit_table())))
        if cumulative.n_cells == 0:
            names = f"{graph.names[previous]!r} and {graph.names[variable]!r}"
            raise InfeasibleError(f"no strategy is allowed: no states of {names} go together with all before them")
        on_step()
    graph.add(sum_out(cumulative, unit_table(), line[-1]))
    on_step()
