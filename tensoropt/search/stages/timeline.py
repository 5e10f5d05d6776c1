"""Write out when the stages of a plan run their passes, and when what they send is on its way, as a report draws it.

The times are those of :func:`...program.orders.fast_makespan.step_us`: a step ends when the last of these tasks does, or
later where it isn't known which of three or more stages waits for what another sends back at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from operator import add
from typing import Any

from ...program.orders.fast_makespan import PassTimes, Transfers, first_passes_us, pass_ends, step_us
from ...program.orders.passes import BACKWARD, FORWARD, PARAMETERS, Pass, needs
from ...program.orders.schedule import StepOrder, of_submeshes
from ..frontiers.step_views import COMPUTE_LANE, NETWORK_LANE, TaskRows
from .submeshes import Block

BEFORE, BRANCHES, UPDATE = "before", "branches", "update"
SENT_ON, SENT_BACK = "sent_on", "sent_back"
AT_BEGIN, AT_END = "before the first pass", "after the last pass"


def stage_timeline(
    times: Sequence[PassTimes], transfers: Transfers, order: StepOrder, blocks: Sequence[Block]
) -> dict[str, Any]:
    """Return a step in stages as JSON, see :meth:`.TaskRows.to_json`. Each submesh is a class of devices.

    What is sent stands in the lane of the stage that sends it; what is there before the first pass, where it is awaited.

    Args:
        blocks: for each stage its devices, which interleaved stages share.
    """
    submeshes = order.submeshes
    first = first_passes_us(times, transfers, submeshes)
    ends, free_us = pass_ends(times, transfers, order)
    deferring_stages = {run.stage for run in ends if run.work == PARAMETERS}
    rows = _Rows(submeshes)
    per_submesh = partial(of_submeshes, submeshes=submeshes)
    starts_us = per_submesh([passes.before for passes in times], combine=add)
    for stage, way_us in enumerate(transfers.first):
        name = f"{AT_BEGIN}{f', stage {stage}' * rows.names_stages}"
        rows.add_us(stage, NETWORK_LANE, float(first[stage]) - way_us, way_us, name, SENT_ON)
    begin = [float(us) for us in per_submesh(first, combine=max)]
    for submesh, before_us in enumerate(starts_us):
        rows.add_us(submesh, COMPUTE_LANE, 0.0, before_us, AT_BEGIN, BEFORE)
    for run, end in ends.items():
        submesh = submeshes[run.stage]
        _add_pass(rows, run, (begin[submesh], float(end)), times, transfers, run.stage in deferring_stages)
        begin[submesh] = float(end)
    last, updates_us = per_submesh(transfers.last, combine=max), per_submesh([passes.after for passes in times], combine=add)
    sent_back = [end + way_us for end, way_us in zip(free_us, last, strict=True) if way_us]
    for submesh, (end, way_us, after_us) in enumerate(zip(free_us, last, updates_us, strict=True)):
        rows.add_us(submesh, NETWORK_LANE, float(end), way_us, AT_END, SENT_BACK)
        update = end if way_us else max([end, *sent_back])
        rows.add_us(submesh, COMPUTE_LANE, float(update), after_us, AT_END, UPDATE)
    devices = [list(block.devices) for block in dict.fromkeys(blocks)]
    return rows.to_json(round(float(step_us(times, transfers, order)) * 1e3), devices)


def _add_pass(
    rows: _Rows, run: Pass, span: tuple[float, float], times: Sequence[PassTimes], transfers: Transfers, is_deferring: bool
) -> None:
    """Add a pass, and the message for the pass of another stage that needs it."""
    stage, pass_times, (begin, end) = run.stage, times[run.stage], span
    name = f"micro-batch {run.micro_batch + 1}{f', stage {stage}' * rows.names_stages}"
    backward = pass_times.backward - pass_times.parameters if is_deferring else pass_times.backward
    early_us = pass_times.early if run.work == FORWARD else 0.0
    took = {FORWARD: pass_times.forward, BACKWARD: backward, PARAMETERS: pass_times.parameters}[run.work] - early_us
    rows.add_us(stage, COMPUTE_LANE, begin, early_us, name, BRANCHES)
    rows.add_us(stage, COMPUTE_LANE, end - took, took, name, run.work)
    if run.work == PARAMETERS:
        return
    is_backward = run.work == BACKWARD
    next_pass = run._replace(stage=stage - 1 if is_backward else stage + 1)
    if 0 <= next_pass.stage < len(times) and run in needs(next_pass, len(times)):
        sent_us = end - pass_times.late if is_backward and not is_deferring else end
        way_us = transfers.each[min(stage, next_pass.stage)]
        rows.add_us(stage, NETWORK_LANE, sent_us, way_us, name, SENT_BACK if is_backward else SENT_ON)


class _Rows(TaskRows):
    """Tasks by the number of their stage.

    Attributes:
        names_stages: whether a task's name says of which of several stages on its devices it is.
    """

    def __init__(self, submeshes: Sequence[int]) -> None:
        """Take the number of each stage's submesh."""
        super().__init__()
        self._submeshes, self.names_stages = submeshes, len(set(submeshes)) < len(submeshes)

    def add_us(self, stage: int, lane: int, start_us: float, duration_us: float, operator: str, kind: str) -> None:
        """Add a task; nothing if it takes no time."""
        start_ns, end_ns = round(start_us * 1e3), round((start_us + duration_us) * 1e3)
        self.add(self._submeshes[stage], lane, start_ns, end_ns - start_ns, operator, kind)
