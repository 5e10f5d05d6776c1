"""Define the two costs that a search trades against each other.

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

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ...common.errors import InputError, short
from ...ft import Edge, Frontier, Node, Problem

if TYPE_CHECKING:
    from .strategy_problem import StrategyProblem

Objectives = tuple[str, str]
MEMORY_TIME: Objectives = ("memory", "time")
PAIRS: tuple[Objectives, ...] = (MEMORY_TIME, ("memory", "network"), ("time", "network"))


@dataclass(frozen=True, slots=True, eq=False)
class StrategyCosts:
    """All costs of P strategies, int64[P] each, whatever pair of costs was searched.

    Attributes:
        time_ns: the time of a step: compute plus network, less their overlap.
        overlap_ns: the overlap: network time during which the device computes.
    """

    mem_bytes: np.ndarray
    time_ns: np.ndarray
    compute_ns: np.ndarray
    overlap_ns: np.ndarray

    @property
    def network_ns(self) -> np.ndarray:
        difference: np.ndarray = self.time_ns + self.overlap_ns - self.compute_ns
        return difference

    def pair(self, objectives: Objectives) -> tuple[np.ndarray, np.ndarray]:
        """Return the two costs that were searched."""
        of_name = {"memory": self.mem_bytes, "time": self.time_ns, "network": self.network_ns}
        first, second = objectives
        return of_name[first], of_name[second]


def parse_objectives(text: str) -> Objectives:
    """Return the pair of costs that a text such as ``memory,network`` names; the order doesn't matter.

    Raises:
        InputError: the text names no pair of costs that can be searched.
    """
    names = {name.strip() for name in text.split(",")}
    for pair in PAIRS:
        if names == set(pair) and text.count(",") == 1:
            return pair
    known = " or ".join(",".join(pair) for pair in PAIRS)
    raise InputError(f"--objectives takes two costs, {known}, got {short(text)}")


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
