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


def problem_for(problem: StrategyProblem, objectives: Objectives) -> Problem:
    """Return the problem whose two costs are the objectives."""
    if objectives == MEMORY_TIME:
        return problem.problem
    first, _ = objectives
    compute = [states.compute_ns for _, states in problem.nodes]
    nodes = [
        Node(
            node.name,
            node.mem_bytes if first == "memory" else node.time_ns,
            node.time_ns - compute[i] if i < len(compute) else node.time_ns,
        )
        for i, node in enumerate(problem.problem.nodes)
    ]
    edges = problem.problem.edges
    if first == "time":
        edges = tuple(Edge(edge.source, edge.target, edge.time_ns, edge.time_ns) for edge in edges)
    return Problem(tuple(nodes), edges)


def costs_of(problem: StrategyProblem, frontier: Frontier, objectives: Objectives) -> StrategyCosts:
    """Return all costs of the points of a frontier that was searched for these objectives."""
    strategies = frontier.strategies
    compute_ns = problem.compute_ns(strategies)
    overlap_ns = problem.overlap_ns(strategies)
    if objectives == MEMORY_TIME:
        return StrategyCosts(frontier.mem_bytes, frontier.time_ns, compute_ns, overlap_ns)
    if objectives == ("memory", "network"):
        return StrategyCosts(frontier.mem_bytes, frontier.time_ns + compute_ns - overlap_ns, compute_ns, overlap_ns)
    mem_bytes = np.zeros(len(frontier), np.int64)
    for i, node in enumerate(problem.problem.nodes):
        mem_bytes += node.mem_bytes[strategies[:, i]]
    for edge in problem.problem.edges:
        mem_bytes += edge.mem_bytes[strategies[:, edge.source], strategies[:, edge.target]]
    mem_bytes += problem.missing_bytes(strategies)
    return StrategyCosts(mem_bytes, frontier.mem_bytes, compute_ns, np.zeros_like(compute_ns))
