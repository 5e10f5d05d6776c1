"""Marking the linear graph: which variables FT-LDP keeps out of the eliminations (section 3.2, "LDP").

The paper marks the first operator, and then again and again the only downstream operator of the one marked last, while
it eliminates. Where that ends can be told at once: a variable becomes the only way on exactly if it is a *cut vertex*,
that is if every path from the first operator to the last passes through it; eliminating others never changes this. So
the linear graph is the first operator, the cut vertices between it and the last, and the last, found in O(V + E). In a
chain that is every operator; in a ResNet the operators where residual branches meet.

Cut vertices off that line (a side branch's own line) are not marked, but wait until nothing hangs on them any more.
"""

from __future__ import annotations

from itertools import combinations

import networkx as nx  # type: ignore[import-untyped,unused-ignore]

from .elimination import TableGraph


def components(graph: TableGraph) -> list[tuple[int, ...]]:
    """The variables of each connected part of the graph, in topological order."""
    found = (tuple(sorted(part)) for part in nx.connected_components(_neighbourhood(graph)))
    return sorted(found)


def cut_vertices(graph: TableGraph) -> set[int]:
    """Variables without which their part of the graph falls apart."""
    return set(nx.articulation_points(_neighbourhood(graph)))


def linear_graph(graph: TableGraph, component: tuple[int, ...]) -> tuple[int, ...]:
    """The marked variables of one connected part, first to last."""
    first, last = component[0], component[-1]
    if first == last:
        return (first,)
    part = _neighbourhood(graph).subgraph(component)
    cuts = set(nx.articulation_points(part))
    tree = nx.Graph()
    for index, block in enumerate(nx.biconnected_components(part)):
        tree.add_edges_from((("block", index), variable) for variable in block & (cuts | {first, last}))
    path = nx.shortest_path(tree, first, last)
    return tuple(variable for variable in path if isinstance(variable, int))


def _neighbourhood(graph: TableGraph) -> nx.Graph:
    result = nx.Graph()
    result.add_nodes_from(graph.variables)
    for scope in sorted(graph.tables):
        result.add_edges_from(combinations(scope, 2))
    return result
