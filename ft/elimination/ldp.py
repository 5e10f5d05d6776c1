"""Mark the linear graph, and solve it by linear dynamic programming (LDP, section 3.2 and Algorithm 3).

The paper marks the first operator. Then, while it eliminates, it marks the only downstream operator of the one marked last,
again and again. The end result can be computed at once. A variable becomes the only way on exactly if it is a *cut vertex*,
that is, if every path from the first operator to the last passes through it, and eliminating other variables never changes
this. So the linear graph is the first operator, the cut vertices between it and the last, and the last, found in O(V + E).
In a chain that is every operator; in a ResNet, the operators where residual branches meet. Cut vertices off that line (on a
side branch's own line) are not marked, but wait until no branch hangs on them any more.

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


def held_variables(graph: TableGraph) -> set[int]:
    """Return the variables that FT-LDP doesn't eliminate yet: cut vertices, the first and the last of each connected part.

    The variables that are marked are among them.
    """
    parts, parents, cut_off = _visited(graph)
    cut = {parents[variable] for variable in cut_off}  # a part's first variable may be there without a cut
    return cut.union(*((part[0], max(part)) for part in parts))


def linear_graphs(graph: TableGraph) -> list[tuple[int, ...]]:
    """Return the marked variables of each connected part, first to last; parts in topological order.

    On the way on which the last was reached, those are marked that cut off the one after them.
    """
    parts, parents, cut_off = _visited(graph)
    lines = []
    for part in parts:
        line = [variable := max(part)]
        while variable != part[0]:
            line += [parents[variable]] if variable in cut_off else []
            variable = parents[variable]
        lines.append(tuple(reversed(line)))
    return lines


def _visited(graph: TableGraph) -> tuple[list[list[int]], dict[int, int], set[int]]:
    """Search a graph, depth first (Hopcroft and Tarjan, 1973).

    Returns:
        The connected parts, each in the order of the search, from its first variable on; the variable from which each was
        reached, a part's first from itself; and those that only this one joins, with all after them, to what was met before.
    """
    parts, parents, number, cut_off = list[list[int]](), dict[int, int](), dict[int, int](), set[int]()
    for first in graph.variables:
        parts += [] if first in number else [[]]
        pending = [(first, first)]
        while pending:
            variable, parent = pending.pop()
            if variable not in number:
                number[variable], parents[variable] = len(number), parent
                parts[-1].append(variable)
                pending += ((other, variable) for other in graph.neighbours(variable))
    earliest = dict(number)  # that a variable, or what was reached from it, joins
    for variable in reversed(number):
        parent = parents[variable]
        joined = (number[other] for other in graph.neighbours(variable) if other != parent)
        earliest[variable] = min(earliest[variable], min(joined, default=earliest[variable]))
        earliest[parent] = min(earliest[parent], earliest[variable])
        if parent != variable and earliest[variable] >= number[parent]:
            cut_off.add(variable)
    return parts, parents, cut_off


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
