"""Write out when the stages of a plan run their passes, and when what they send is on its way, as a report draws it.

The times are those of :func:`...program.fast_makespan.step_us`: a step ends when the last of these tasks does, or later
where it isn't known which of three or more stages waits for what another sends back at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from operator import add
from typing import Any

from ...program.fast_makespan import PassTimes, Transfers, first_passes_us, pass_ends, step_us
from ...program.passes import BACKWARD, FORWARD, PARAMETERS, Pass, needs
from ...program.schedule import StepOrder, of_submeshes
from ..frontiers.step_views import COMPUTE_LANE, NETWORK_LANE, tasks_text
from .submeshes import Block

BEFORE, BRANCHES, UPDATE = "before", "branches", "update"
SENT_ON, SENT_BACK = "sent_on", "sent_back"
AT_BEGIN, AT_END = "before the first pass", "after the last pass"


def stage_timeline(
    times: Sequence[PassTimes], on_the_way: Transfers, order: StepOrder, blocks: Sequence[Block]
) -> dict[str, Any]:
    """Return a step in stages as JSON, see :func:`..frontiers.step_views.timeline_view`. Each submesh is a class of devices.

    What is sent stands in the lane of the stage that sends it; what is there before the first pass, where it is awaited.

    Args:
        blocks: for each stage its devices, which interleaved stages share.
    """
    submeshes = order.submeshes
    first = first_passes_us(times, on_the_way, submeshes)
    ended, free = pass_ends(times, on_the_way, order)
    deferring = {run.stage for run in ended if run.work == PARAMETERS}
    rows = _Rows(submeshes)
    of_submesh = partial(of_submeshes, submeshes=submeshes)
    before = of_submesh([each.before for each in times], combine=add)
    for stage, way in enumerate(on_the_way.first):
        name = f"{AT_BEGIN}{f', stage {stage}' * rows.names_stages}"
        rows.add(stage, NETWORK_LANE, float(first[stage]) - way, way, name, SENT_ON)
    begin = [float(each) for each in of_submesh(first, combine=max)]
    for submesh, before_us in enumerate(before):
        rows.add(submesh, COMPUTE_LANE, 0.0, before_us, AT_BEGIN, BEFORE)
    for run, end in ended.items():
        submesh = submeshes[run.stage]
        _add_pass(rows, run, (begin[submesh], float(end)), times, on_the_way, run.stage in deferring)
        begin[submesh] = float(end)
    last, after = of_submesh(on_the_way.last, combine=max), of_submesh([each.after for each in times], combine=add)
    sent_back = [end + way for end, way in zip(free, last, strict=True) if way]
    for submesh, (end, way, after_us) in enumerate(zip(free, last, after, strict=True)):
        rows.add(submesh, NETWORK_LANE, float(end), way, AT_END, SENT_BACK)
        update = end if way else max([end, *sent_back])
        rows.add(submesh, COMPUTE_LANE, float(update), after_us, AT_END, UPDATE)
    return {
        "makespan_ns": round(float(step_us(times, on_the_way, order)) * 1e3),
        "devices": [list(block.devices) for block in dict.fromkeys(blocks)],
        "operators": list(rows.operators),
        "kinds": list(rows.kinds),
        "tasks": tasks_text(sorted(rows.rows)),
    }


def _add_pass(
    rows: _Rows, run: Pass, span: tuple[float, float], times: Sequence[PassTimes], on_the_way: Transfers, defers: bool
) -> None:
    """Add a pass, and the message for the pass of another stage that needs it."""
    stage, each, (begin, end) = run.stage, times[run.stage], span
    name = f"micro-batch {run.micro_batch + 1}{f', stage {stage}' * rows.names_stages}"
    backward = each.backward - each.parameters if defers else each.backward
    early = each.early if run.work == FORWARD else 0.0
    took = {FORWARD: each.forward, BACKWARD: backward, PARAMETERS: each.parameters}[run.work] - early
    rows.add(stage, COMPUTE_LANE, begin, early, name, BRANCHES)
    rows.add(stage, COMPUTE_LANE, end - took, took, name, run.work)
    if run.work == PARAMETERS:
        return
    is_backward = run.work == BACKWARD
    other = run._replace(stage=stage - 1 if is_backward else stage + 1)
    if 0 <= other.stage < len(times) and run in needs(other, len(times)):
        sent = end - each.late if is_backward and not defers else end
        way = on_the_way.each[min(stage, other.stage)]
        rows.add(stage, NETWORK_LANE, sent, way, name, SENT_BACK if is_backward else SENT_ON)


class _Rows:
    """The rows of tasks, with the names and kinds that their numbers stand for.

    Attributes:
        names_stages: whether a task's name says of which of several stages on its devices it is.
    """

    def __init__(self, submeshes: Sequence[int]) -> None:
        """Take the number of each stage's submesh."""
        self._submeshes = submeshes
        self.names_stages = len(set(submeshes)) < len(submeshes)
        self.operators: dict[str, int] = {}
        self.kinds: dict[str, int] = {}
        self.rows: list[list[int]] = []

    def add(self, stage: int, lane: int, start_us: float, duration_us: float, operator: str, kind: str) -> None:
        """Add a task; nothing if it takes no time."""
        start_ns, end_ns = round(start_us * 1e3), round((start_us + duration_us) * 1e3)
        if end_ns > start_ns:
            numbers = self.operators.setdefault(operator, len(self.operators)), self.kinds.setdefault(kind, len(self.kinds))
            self.rows.append([self._submeshes[stage], lane, start_ns, end_ns - start_ns, *numbers])
