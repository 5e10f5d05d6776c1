"""Frontier-Tracking: search for the memory-time frontier of a problem given by arrays of costs.

See ``docs/how-it-works/frontier-tracking.md``.
"""

from .budget import BY_DEFAULT, Budget
from .frontier import Frontier
from .lower_bound import LowerBound
from .nonadditive.overlap import Overlap, at_true_times, search_overlapping
from .problem import INFEASIBLE, Edge, InfeasibleError, Node, Problem
from .search import ALGORITHMS, search

__all__ = [
    "ALGORITHMS",
    "BY_DEFAULT",
    "INFEASIBLE",
    "Budget",
    "Edge",
    "Frontier",
    "InfeasibleError",
    "LowerBound",
    "Node",
    "Overlap",
    "Problem",
    "at_true_times",
    "search",
    "search_overlapping",
]
