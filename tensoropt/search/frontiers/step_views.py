"""The step of a point as a report shows it: what each device does when, and the memory that is alive at each instant."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

from ...common.errors import InputError
from ...program.memory.liveness import SCRATCH, Instruction, Peak, made_text, peak_of_program
from ...program.simulator.full import SimulatedTask
from ...program.simulator.network import COMPUTE
from ...program.simulator.timeline import StepTimeline
from .model_frontier import ModelFrontier

MOST_INSTANTS = 240
COMPUTE_LANE, NETWORK_LANE = 0, 1


class TaskRows:
    """The tasks of a timeline that a report draws: stretches in which a class of devices does one thing for an operator."""

    def __init__(self) -> None:
        self._operators: dict[str, int] = {}
        self._kinds: dict[str, int] = {}
        self._rows: list[list[int]] = []

    def add(self, device: int, lane: int, start_ns: int, duration_ns: int, operator: str, kind: str) -> None:
        """Add a task; nothing if it takes no time."""
        if duration_ns > 0:
            operator_number = self._operators.setdefault(operator, len(self._operators))
            kind_number = self._kinds.setdefault(kind, len(self._kinds))
            self._rows.append([device, lane, start_ns, duration_ns, operator_number, kind_number])

    def to_json(self, makespan_ns: int, devices: list[list[int]]) -> dict[str, Any]:
        """Return the timeline as a JSON value; times are nanoseconds since the step began.

        ``tasks`` is a text with a row for each task: the number of the class, the lane (0 computes, 1 communicates), how
        long after the start of the row before it starts, how long it takes, the number of the operator's name, that of the
        kind. As lists these would be most of a file, and slow to read. Tasks that follow each other without a gap and do
        the same for one operator are one.
        """
        joined: list[list[int]] = []
        for row in sorted(self._rows):
            last = joined[-1] if joined else None
            if last and last[:2] == row[:2] and last[4:] == row[4:] and last[2] + last[3] == row[2]:
                last[3] += row[3]
            else:
                joined.append(list(row))
        starts_ns = [0, *(start_ns for _, _, start_ns, *_ in joined)]
        pairs = zip(joined, starts_ns, strict=False)
        rows = ((device, lane, start_ns - last_ns, *rest) for (device, lane, start_ns, *rest), last_ns in pairs)
        return {
            "makespan_ns": makespan_ns,
            "devices": devices,
            "operators": list(self._operators),
            "kinds": list(self._kinds),
            "tasks": ";".join(",".join(map(str, row)) for row in rows),
        }


def timeline_view(timeline: StepTimeline) -> dict[str, Any]:
    """Return a simulated step as a JSON value; see :meth:`TaskRows.to_json`."""
    rows, spans = TaskRows(), dict[tuple[int, int, int], list[int]]()

    def add(device: int, lane: int, start_ns: int, end_ns: int, task: SimulatedTask, kind: str) -> None:
        rows.add(device, lane, start_ns, end_ns - start_ns, timeline.operator(timeline.graph.nodes[task.key.node]), kind)

    for number, task in enumerate(timeline.tasks):
        action, times = timeline.action(task), timeline.times[number]
        if action is None:
            continue
        if action.kind == COMPUTE:
            add(task.key.first, COMPUTE_LANE, times.start_ns, times.end_ns, task, timeline.kind(task))
        else:
            spans.setdefault(task.key[:3], []).append(number)
    for numbers in spans.values():
        task = timeline.tasks[numbers[0]]
        action = timeline.action(task)
        assert action is not None
        start_ns = min(timeline.times[number].start_ns for number in numbers)
        end_ns = max(timeline.times[number].end_ns for number in numbers)
        (classes,) = (work.classes for work in timeline.network.works(action) if work.classes[0] == task.key.first)
        for device_class in classes:
            add(device_class, NETWORK_LANE, start_ns, end_ns, task, action.kind)
    return rows.to_json(timeline.makespan_ns, [list(ranks) for ranks in timeline.network.classes])


def memory_view(program: list[Instruction]) -> tuple[dict[str, Any], Peak]:
    """Return the memory that is alive over the step as a JSON value, in order of execution, and its peak.

    A long step is thinned: each of ``MOST_INSTANTS`` stretches is shown at the instant at which the most is alive.
    ``by_use`` has a list for each use, with the bytes at each of ``instants``.
    """
    alive_at: list[Counter[str]] = []

    def observe(number: int, alive: Counter[str]) -> None:
        scratch = program[number].scratch_bytes
        alive_at.append(+(alive + Counter({SCRATCH: scratch})))

    peak = peak_of_program(program, observe)
    totals = [alive.total() for alive in alive_at]
    n_stretches = min(MOST_INSTANTS, len(totals))
    edges = [i * len(totals) // n_stretches for i in range(n_stretches + 1)] if totals else []
    instants = [max(range(first, last), key=totals.__getitem__) for first, last in itertools.pairwise(edges)]
    uses = [use for use, _ in peak.by_use.most_common()]
    uses += sorted({use for instant in instants for use in alive_at[instant]} - set(uses))
    view = {
        **peak.to_json(),
        "instants": instants,
        "runs": [made_text(program[instant]) for instant in instants],
        "by_use": {use: [alive_at[instant][use] for instant in instants] for use in uses},
    }
    return view, peak


def step_view(frontier: ModelFrontier, point: int) -> dict[str, Any]:
    """Return the step of a point: its ``timeline``, None where it can't be simulated, and its ``memory``."""
    try:
        timeline: dict[str, Any] | None = timeline_view(frontier.timeline(point))
    except InputError:
        timeline = None  # a model with several passes
    memory, peak = memory_view(frontier.program(point))
    frontier.remember_peak(point, peak)
    return {"timeline": timeline, "memory": memory}
