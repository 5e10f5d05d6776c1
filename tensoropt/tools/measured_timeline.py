"""Write a measured step in the form of the predicted one, so that a report shows one above the other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..search.frontiers.step_views import COMPUTE_LANE, NETWORK_LANE, TaskRows
from .timeline import RankTimeline
from .trace_names import CALL, TracedName

MOST_RANKS = 8
"""How many ranks are shown: of a large mesh those with the lowest numbers."""


def measured_view(ranks: Sequence[RankTimeline], operators: Iterable[str]) -> dict[str, Any]:
    """Return the first traced step of each rank as a JSON value; see :meth:`.TaskRows.to_json`.

    Times are nanoseconds since the rank's own step began: ranks begin together, and clocks of several machines differ.

    Args:
        operators: the names of the model's operators.
    """
    operator_names = frozenset(operators)
    rows, first_ranks = TaskRows(), ranks[:MOST_RANKS]
    for number, rank in enumerate(first_ranks):
        begin_ns = int(rank.steps[0, 0])
        for event in rank.operators:
            name, way = TracedName.of(event.name, operator_names)
            if way != CALL:
                rows.add(number, COMPUTE_LANE, event.start_ps // 1000 - begin_ns, event.duration_ps // 1000, name, way)
        for call in rank.collectives:
            leads_to = "" if call.collective is None else call.collective.operator
            rows.add(number, NETWORK_LANE, call.start_ns - begin_ns, call.duration_ns, leads_to, call.kind)
    makespan_ns = max(int(rank.steps[0, 1] - rank.steps[0, 0]) for rank in first_ranks)
    return rows.to_json(makespan_ns, [[rank.rank] for rank in first_ranks])
