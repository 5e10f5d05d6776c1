"""Write a simulated step as a trace for a browser, in the same form as the measured one of :mod:`.timeline`.

Each class of devices with equal timelines is one process, named after its first rank, with a row for the step, one for
collectives and one for operators. The links are a process of their own, a row for each class of links.
"""

from __future__ import annotations

from typing import Any

from ..plan.simulation import Simulation
from ..program.simulator.full import SimulatedTask
from ..program.simulator.network import COMPUTE, LINK
from ..program.simulator.step_graph import BACKWARD, HALVES, RESHARD_BACK, SHARE_BACK, UPDATE
from ..program.simulator.timeline import StepTimeline
from ..reschedule.layout import axes_text
from .timeline import COLLECTIVES_ROW, FIRST_THREAD, STEPS_ROW, TraceRows


def simulated_trace_json(simulation: Simulation) -> dict[str, Any]:
    """Return the trace as a JSON value; times are microseconds since the step began."""
    timeline = simulation.timeline
    by_name = {op.name: op for op in simulation.plan.operators}
    events: list[dict[str, Any]] = []
    rows = [TraceRows(ranks[0], 0, events) for ranks in timeline.network.classes]
    for row, ranks in zip(rows, timeline.network.classes, strict=True):
        alike = f" and {len(ranks) - 1} alike" if len(ranks) > 1 else ""
        row.named("process", f"rank {ranks[0]}{alike}, simulated", 0)
        row.named("thread", "steps", STEPS_ROW)
        row.named("thread", "collectives", COLLECTIVES_ROW)
        row.named("thread", "operators", FIRST_THREAD)
        row.add(STEPS_ROW, "step 1", "step", 0, timeline.makespan_ns)
    links = TraceRows(simulation.plan.parallelism, 0, events)
    numbers = {i: 1 + i for i, resource in enumerate(timeline.resources) if resource.kind == LINK}
    if numbers:
        links.named("process", "links, simulated", 0)
    for resource, number in numbers.items():
        names = timeline.resources[resource].members
        links.named("thread", f"{names[0]}" + (f" and {len(names) - 1} alike" if len(names) > 1 else ""), number)
    of_collective: dict[tuple[int, int, int], list[int]] = {}
    for number, task in enumerate(timeline.tasks):
        action, times = timeline.action(task), timeline.times[number]
        if action is None:
            continue
        if action.kind != COMPUTE:
            of_collective.setdefault(task.key[:3], []).append(number)
            if task.device in numbers and task.device is not None:
                name = f"{action.kind}({axes_text(action.axes)}) for {_operator(timeline, task)}"
                links.add(numbers[task.device], name, "collective", times.start_ns, times.end_ns - times.start_ns)
            continue
        node = timeline.graph.nodes[task.key.node]
        operator = timeline.operator(node)
        way = timeline.kind(task)
        named = {**dict.fromkeys((BACKWARD, *HALVES), f"{operator} (backward)"), UPDATE: f"update of {operator}"}
        name = named.get(node.kind, operator)
        if node.name != operator:
            name = f"copies of {node.name} for {operator}"
        details: dict[str, Any] = {"what": node.kind}
        if operator in by_name:
            details |= {"config": str(by_name[operator].config), "planned us, both ways": by_name[operator].time_us}
        rows[task.key.first].add(FIRST_THREAD, name, way, times.start_ns, times.end_ns - times.start_ns, details)
    for numbers_of_one in of_collective.values():
        _add_collective(timeline, rows, numbers_of_one)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _add_collective(timeline: StepTimeline, rows: list[TraceRows], numbers: list[int]) -> None:
    """Add a collective to the rows of all classes that take part, from its first transfer to its end."""
    task = timeline.tasks[numbers[0]]
    action = timeline.action(task)
    assert action is not None
    start_ns = min(timeline.times[number].start_ns for number in numbers)
    end_ns = max(timeline.times[number].end_ns for number in numbers)
    node = timeline.graph.nodes[task.key.node]
    operator = _operator(timeline, task)
    is_back = node.kind in (RESHARD_BACK, SHARE_BACK)
    details = {"bytes": action.of_bucket or action.n_bytes, "device partition": axes_text(action.axes)}
    details |= {"operator": operator, "tensor": node.name, "way": "backward" if is_back else node.kind}
    name = f"{action.kind}({axes_text(action.axes)}) for {operator}"
    (classes,) = (work.classes for work in timeline.network.works(action) if work.classes[0] == task.key.first)
    for one in classes:
        rows[one].add(COLLECTIVES_ROW, name, "collective", start_ns, end_ns - start_ns, details)


def _operator(timeline: StepTimeline, task: SimulatedTask) -> str:
    return timeline.operator(timeline.graph.nodes[task.key.node])
