"""Find OptCNN's strategy: the least time, whatever memory that takes. :mod:`...ft.reference.optcnn` is the search itself."""

from __future__ import annotations

from ...ft.reference.optcnn import least_time
from ..task import BaselineResult, BaselineTask


def search(task: BaselineTask) -> BaselineResult:
    """Return OptCNN's one point, among all strategies of the space."""
    problem = task.full_problem()
    frontier = least_time(problem.problem, task.report)
    note = "" if frontier.exact else f"not proven the fastest: {frontier.worst_gap:.2%} above a lower bound at most"
    return BaselineResult(problem, frontier, note)
