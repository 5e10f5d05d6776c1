"""Frontier-Tracking: the search over costs alone. Arrays in, arrays out; see ``docs/ft.md``."""

from .frontier import Frontier
from .problem import INFEASIBLE, Edge, InfeasibleError, Node, Problem
from .search import ALGORITHMS, MAX_TABLE_CELLS, search

__all__ = [
    "ALGORITHMS",
    "INFEASIBLE",
    "MAX_TABLE_CELLS",
    "Edge",
    "Frontier",
    "InfeasibleError",
    "Node",
    "Problem",
    "search",
]
