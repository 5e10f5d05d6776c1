"""Build the problem of the two costs that a search trades against each other.

The TensorOpt paper's section 3 has memory and time, and allows any pair. The search has two arrays of costs and doesn't know
what they are. So another pair is another :class:`Problem` of the same states:

| searched | a node | an edge |
|---|---|---|
| memory, time | memory, time | memory, time |
| memory, network | memory, time - compute | memory, time |
| time, network | time, time - compute | time, time |

since the reshardings of tensors, along edges and to shared copies, are all network. A search of time against memory takes
overlap into account (:mod:`...ft.nonadditive.overlap`); one of time against network adds both up. A strategy's costs beside
the pair are computed from the problem as it was built (:func:`costs_of`, O(points x (nodes + edges))).
"""

from __future__ import annotations

import numpy as np

from ...costs.objectives import MEMORY_TIME, Objectives, StrategyCosts
from ...ft import Edge, Frontier, Node, Problem
from .strategy_problem import StrategyProblem


def problem_for(built: StrategyProblem, objectives: Objectives) -> Problem:
    """Return the problem whose two costs are the objectives."""
    if objectives == MEMORY_TIME:
        return built.problem
    first, _ = objectives
    compute = [states.compute_ns for _, states in built.nodes]
    nodes = [
        Node(
            node.name,
            node.mem_bytes if first == "memory" else node.time_ns,
            node.time_ns - compute[i] if i < len(compute) else node.time_ns,
        )
        for i, node in enumerate(built.problem.nodes)
    ]
    edges = built.problem.edges
    if first == "time":
        edges = tuple(Edge(edge.source, edge.target, edge.time_ns, edge.time_ns) for edge in edges)
    return Problem(tuple(nodes), edges)


def costs_of(built: StrategyProblem, found: Frontier, objectives: Objectives) -> StrategyCosts:
    """Return all costs of the points of a frontier that was searched for these objectives."""
    chosen = found.strategies
    compute_ns = built.compute_ns(chosen)
    overlap_ns = built.overlap_ns(chosen)
    if objectives == MEMORY_TIME:
        return StrategyCosts(found.mem_bytes, found.time_ns, compute_ns, overlap_ns)
    if objectives == ("memory", "network"):
        return StrategyCosts(found.mem_bytes, found.time_ns + compute_ns - overlap_ns, compute_ns, overlap_ns)
    mem_bytes = np.zeros(len(found), np.int64)
    for i, node in enumerate(built.problem.nodes):
        mem_bytes += node.mem_bytes[chosen[:, i]]
    for edge in built.problem.edges:
        mem_bytes += edge.mem_bytes[chosen[:, edge.source], chosen[:, edge.target]]
    mem_bytes += built.missing_bytes(chosen)
    return StrategyCosts(mem_bytes, found.mem_bytes, compute_ns, np.zeros_like(compute_ns))
