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
from itertools import combinations, pairwise
from typing import Any

from ..problem import InfeasibleError
from ..tables.state_classes import sum_out
from ..tables.table import unit_table
from .table_graph import TableGraph


def held_variables(graph: TableGraph) -> set[int]:
    """Return the variables that FT-LDP doesn't eliminate yet: cut vertices, the first and the last of each connected part.

    The variables that are marked are among them.
    """
    import networkx as nx  # type: ignore[import-untyped,unused-ignore]  # here, since loading it takes .2 s

    neighbourhood = _neighbourhood(graph)
    ends = {end for part in nx.connected_components(neighbourhood) for end in (min(part), max(part))}
    return ends | set(nx.articulation_points(neighbourhood))


def linear_graphs(graph: TableGraph) -> list[tuple[int, ...]]:
    """Return the marked variables of each connected part, first to last; parts in topological order.

    All parts are done at once, since they are many: a part's line is the path from its first variable to its last in the
    tree of biconnected components (``block``) and cut vertices.
    """
    import networkx as nx  # type: ignore[import-untyped,unused-ignore]

    neighbourhood = _neighbourhood(graph)
    parts = sorted(tuple(sorted(part)) for part in nx.connected_components(neighbourhood))
    marks = {variable for part in parts for variable in (part[0], part[-1])} | set(nx.articulation_points(neighbourhood))
    tree = nx.Graph()
    tree.add_nodes_from(marks)
    for index, block in enumerate(nx.biconnected_components(neighbourhood)):
        tree.add_edges_from((("block", index), variable) for variable in block & marks)
    paths = (nx.shortest_path(tree, part[0], part[-1]) for part in parts)
    return [tuple(variable for variable in path if isinstance(variable, int)) for path in paths]


def _neighbourhood(graph: TableGraph) -> Any:
    """Return NetworkX's graph in which two variables are joined if a table depends on both."""
    import networkx as nx  # type: ignore[import-untyped,unused-ignore]

    result = nx.Graph()
    result.add_nodes_from(graph.variables)
    for scope in sorted(graph.tables):
        result.add_edges_from(combinations(scope, 2))
    return result


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
