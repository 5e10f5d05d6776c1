"""Frontier-Tracking: the search over costs alone. Arrays in, arrays out; see ``docs/ft.md``."""

from .bound import LowerBound
from .budget import Budget
from .frontier import Frontier
from .problem import INFEASIBLE, Edge, InfeasibleError, Node, Problem
from .search import ALGORITHMS, search

__all__ = [
    "ALGORITHMS",
    "INFEASIBLE",
    "Budget",
    "Edge",
    "Frontier",
    "InfeasibleError",
    "LowerBound",
    "Node",
    "Problem",
    "search",
]
