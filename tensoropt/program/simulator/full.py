"""The full simulation: FlexFlow's Algorithm 1, on a task graph that is built from nothing.

A task occupies one device in FlexFlow's sense, a device's compute or a link; or none, where it only waits. Tasks become
ready when all tasks that they wait for are complete. They are taken from a queue in the order of their ready times, and
each starts when its device has ended the one before: so each device works first in, first out. Of tasks that are ready at
the same time the one with the smaller key comes first.

Complexity: O(T log T + E) for T tasks with E dependencies.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .actions import Chain
from .network import Network
from .step_graph import StepGraph


class TaskKey(NamedTuple):
    """The node that a task is part of, and its rank among tasks that are ready at the same time.

    Attributes:
        first: the first of the classes of devices that take part.
        action: the number of its action in the node's chain; -1 for the wait that opens a node.
        part: the number of the resource that it uses among those of the action; -1 for the wait that closes it.
    """

    node: int
    first: int
    action: int
    part: int


@dataclass(frozen=True, slots=True)
class SimulatedTask:
    """A task of the task graph: FlexFlow, Table 3.

    Attributes:
        exe_ns: how long it takes.
        device: the number of the resource that performs it; None if it occupies none.
    """

    key: TaskKey
    exe_ns: int
    device: int | None
    waits_for: tuple[int, ...]


class TaskTimes(NamedTuple):
    """The times at which a task was ready, started and ended."""

    ready_ns: int
    start_ns: int
    end_ns: int


def simulate_tasks(tasks: Sequence[SimulatedTask]) -> list[TaskTimes]:
    """Return the times of all tasks: FlexFlow, Algorithm 1."""
    leads_to: list[list[int]] = [[] for _ in tasks]
    for number, task in enumerate(tasks):
        for before in task.waits_for:
            leads_to[before].append(number)
    missing = [len(task.waits_for) for task in tasks]
    ready_ns = [0] * len(tasks)
    times: list[TaskTimes | None] = [None] * len(tasks)
    queue = [(0, task.key, number) for number, task in enumerate(tasks) if not task.waits_for]
    heapq.heapify(queue)
    last_ns: dict[int, int] = {}
    while queue:
        ready, _, number = heapq.heappop(queue)
        task = tasks[number]
        start = ready if task.device is None else max(ready, last_ns.get(task.device, 0))
        end = start + task.exe_ns
        if task.device is not None:
            last_ns[task.device] = end
        times[number] = TaskTimes(ready, start, end)
        for after in leads_to[number]:
            ready_ns[after] = max(ready_ns[after], end)
            missing[after] -= 1
            if not missing[after]:
                heapq.heappush(queue, (ready_ns[after], tasks[after].key, after))
    stuck = [str(task.key) for task, task_times in zip(tasks, times, strict=True) if task_times is None]
    assert not stuck, f"{len(stuck)} tasks wait for each other, such as {stuck[0]}"
    return [task_times for task_times in times if task_times is not None]


def task_graph(graph: StepGraph, chains: Sequence[Chain], network: Network) -> list[SimulatedTask]:
    """Return the tasks of a step: FlexFlow, section 5.1.

    An action is one task on each resource that it uses, and one that waits for them where there are several or a latency.
    """
    tasks: list[SimulatedTask] = []
    n_classes = len(network.classes)
    ends: list[list[tuple[int, ...]]] = []

    def add(key: TaskKey, exe_ns: int, device: int | None, waits_for: Iterable[int]) -> int:
        tasks.append(SimulatedTask(key, exe_ns, device, tuple(dict.fromkeys(waits_for))))
        return len(tasks) - 1

    for node, (before, chain) in enumerate(zip(graph.waits_for, chains, strict=True)):
        at = [tuple(task for source in before for task in ends[source][one]) for one in range(n_classes)]
        for number, action in enumerate(chain):
            after: list[tuple[int, ...]] = [()] * n_classes
            for work in network.works(action):
                waits = tuple(dict.fromkeys(task for one in work.classes for task in at[one]))
                parts = [
                    add(TaskKey(node, work.classes[0], number, part), exe_ns, device, waits)
                    for part, (device, exe_ns) in enumerate(work.uses)
                ]
                if len(parts) != 1 or work.latency_ns:
                    key = TaskKey(node, work.classes[0], number, len(parts))
                    parts = [add(key, work.latency_ns, None, parts or waits)]
                for one in work.classes:
                    after[one] = tuple(parts)
            at = after
        if not chain:
            # A node that does nothing is one task that waits, so that dependencies don't multiply.
            waiting = [tuple(dict.fromkeys(sources)) for sources in at]
            at = [
                sources if len(sources) < 2 else (add(TaskKey(node, one, -1, -1), 0, None, sources),)
                for one, sources in enumerate(waiting)
            ]
        ends.append(at)
    return tasks
