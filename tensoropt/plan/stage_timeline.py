"""Write out when the stages of a plan run their passes, and when what they send is on its way, as a report draws it.

The times are those of :func:`.stage_times.step_us`: a step ends when the last of these tasks does, or later where it isn't
known which of three or more stages waits for what another sends back at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..program.schedule import BACKWARD, FORWARD, PARAMETERS, Pass, StepOrder, needs, pass_ends
from .stage_times import PassTimes, Transfers, first_passes_us, step_us
from .step_views import COMPUTE_LANE, NETWORK_LANE, tasks_text

BEFORE, BRANCHES, UPDATE = "before", "branches", "update"
SENT_ON, SENT_BACK = "sent_on", "sent_back"
AT_BEGIN, AT_END = "before the first pass", "after the last pass"


def stage_timeline(
    times: Sequence[PassTimes], on_the_way: Transfers, order: StepOrder, sizes: Sequence[int]
) -> dict[str, Any]:
    """Return a step in stages as a JSON value; see :func:`.step_views.timeline_view`. Each stage is a class of devices.

    What is sent stands in the lane of the stage that sends it; what is there before the first pass, where it is awaited.

    Args:
        sizes: the number of devices of each stage.
    """
    first = first_passes_us(times, on_the_way)
    ended, free = pass_ends(
        order.orders,
        [each.forward for each in times],
        [each.backward for each in times],
        on_the_way.each,
        first,
        [each.late for each in times],
        [each.parameters for each in times],
        [each.early for each in times],
    )
    deferring = {run.stage for run in ended if run.work == PARAMETERS}
    rows = _Rows()
    for stage, (each, way) in enumerate(zip(times, on_the_way.first, strict=True)):
        rows.add(stage, COMPUTE_LANE, 0.0, each.before, AT_BEGIN, BEFORE)
        rows.add(stage, NETWORK_LANE, float(first[stage]) - way, way, AT_BEGIN, SENT_ON)
    begin = [float(each) for each in first]
    for run, end in ended.items():
        _add_pass(rows, run, (begin[run.stage], float(end)), times, on_the_way, run.stage in deferring)
        begin[run.stage] = float(end)
    sent_back = [end + way for end, way in zip(free, on_the_way.last, strict=True) if way]
    for stage, (end, way, each) in enumerate(zip(free, on_the_way.last, times, strict=True)):
        rows.add(stage, NETWORK_LANE, float(end), way, AT_END, SENT_BACK)
        update = end if way else max([end, *sent_back])
        rows.add(stage, COMPUTE_LANE, float(update), each.after, AT_END, UPDATE)
    starts = [sum(sizes[:stage]) for stage in range(len(sizes))]
    return {
        "makespan_ns": round(float(step_us(times, on_the_way, order)) * 1e3),
        "devices": [list(range(start, start + size)) for start, size in zip(starts, sizes, strict=True)],
        "operators": list(rows.operators),
        "kinds": list(rows.kinds),
        "tasks": tasks_text(sorted(rows.rows)),
    }


def _add_pass(
    rows: _Rows,
    run: Pass,
    span: tuple[float, float],
    times: Sequence[PassTimes],
    on_the_way: Transfers,
    defers: bool,
) -> None:
    """Add a pass, and the message for the pass of another stage that needs it.

    Args:
        span: when the stage is free for it, and when it ends.
        defers: whether the stage computes the gradients of its parameters in passes of their own.
    """
    stage, each, name, (begin, end) = run.stage, times[run.stage], f"micro-batch {run.micro_batch + 1}", span
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
    """The rows of tasks, with the names and kinds that their numbers stand for."""

    def __init__(self) -> None:
        self.operators: dict[str, int] = {}
        self.kinds: dict[str, int] = {}
        self.rows: list[list[int]] = []

    def add(self, stage: int, lane: int, start_us: float, duration_us: float, operator: str, kind: str) -> None:
        """Add a task; nothing if it takes no time."""
        start_ns, end_ns = round(start_us * 1e3), round((start_us + duration_us) * 1e3)
        if end_ns > start_ns:
            numbers = self.operators.setdefault(operator, len(self.operators)), self.kinds.setdefault(kind, len(self.kinds))
            self.rows.append([stage, lane, start_ns, end_ns - start_ns, *numbers])
