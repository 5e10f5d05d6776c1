"""Mark the linear graph: the variables that FT-LDP keeps out of the eliminations (section 3.2, "LDP").

The paper marks the first operator. Then, while it eliminates, it marks the only downstream operator of the one marked last,
again and again. The end result can be computed at once. A variable becomes the only way on exactly if it is a *cut vertex*,
that is, if every path from the first operator to the last passes through it, and eliminating other variables never changes
this. So the linear graph is the first operator, the cut vertices between it and the last, and the last, found in O(V + E).
In a chain that is every operator; in a ResNet, the operators where residual branches meet.

Cut vertices off that line (on a side branch's own line) are not marked, but wait until no branch hangs on them any more.
"""

from __future__ import annotations

from itertools import combinations

import networkx as nx  # type: ignore[import-untyped,unused-ignore]

from .table_graph import TableGraph


def held_variables(graph: TableGraph) -> set[int]:
    """Return the variables that FT-LDP doesn't eliminate yet: cut vertices, the first and the last of each connected part.

    The variables that are marked are among them.
    """
    neighbourhood = _neighbourhood(graph)
    ends = {end for part in nx.connected_components(neighbourhood) for end in (min(part), max(part))}
    return ends | set(nx.articulation_points(neighbourhood))


def linear_graphs(graph: TableGraph) -> list[tuple[int, ...]]:
    """Return the marked variables of each connected part, first to last; parts in topological order.

    All parts are done at once, since they are many: a part's line is the path from its first variable to its last in the
    tree of biconnected components (``block``) and cut vertices.
    """
    neighbourhood = _neighbourhood(graph)
    parts = sorted(tuple(sorted(part)) for part in nx.connected_components(neighbourhood))
    marks = {variable for part in parts for variable in (part[0], part[-1])} | set(nx.articulation_points(neighbourhood))
    tree = nx.Graph()
    tree.add_nodes_from(marks)
    for index, block in enumerate(nx.biconnected_components(neighbourhood)):
        tree.add_edges_from((("block", index), variable) for variable in block & marks)
    paths = (nx.shortest_path(tree, part[0], part[-1]) for part in parts)
    return [tuple(variable for variable in path if isinstance(variable, int)) for path in paths]


def _neighbourhood(graph: TableGraph) -> nx.Graph:
    """Return the graph in which two variables are joined if a table depends on both."""
    result = nx.Graph()
    result.add_nodes_from(graph.variables)
    for scope in sorted(graph.tables):
        result.add_edges_from(combinations(scope, 2))
    return result
