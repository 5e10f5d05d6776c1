"""The simulated timeline of a step: what each device and link does when, how long each is busy, and the critical path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from ...ir.graph import Operator
from ...profiling.hardware_costs import CollectiveCosts
from ..tasks import OPERAND
from .actions import Chain
from .full import SimulatedTask, TaskTimes, simulate_tasks, task_graph
from .network import COMPUTE, MESSAGE, Action, Network, Resource
from .step_graph import FORWARD, RESHARDED, ROWS, SHARE, UPDATE, WRITE, StepGraph, StepNode


class PathPart(NamedTuple):
    """A part of the critical path: one task, from when it starts to when the next part does."""

    task: str
    operator: str
    kind: str
    start_ns: int
    end_ns: int


@dataclass(frozen=True, eq=False)
class StepTimeline:
    """A simulated step.

    Attributes:
        producers: the operator that computes each tensor, by the tensor's name.
        times: when each task was ready, started and ended.
    """

    producers: Mapping[str, Operator]
    graph: StepGraph
    chains: tuple[Chain, ...]
    network: Network
    tasks: tuple[SimulatedTask, ...]
    times: tuple[TaskTimes, ...]

    @property
    def makespan_ns(self) -> int:
        """The time from the beginning of the step to the end of its last task."""
        return max((times.end_ns for times in self.times), default=0)

    @property
    def resources(self) -> tuple[Resource, ...]:
        return self.network.resources

    @cached_property
    def busy_ns(self) -> tuple[int, ...]:
        """The nanoseconds that each resource is busy; one number stands for all its members."""
        busy = [0] * len(self.resources)
        for task in self.tasks:
            if task.device is not None:
                busy[task.device] += task.exe_ns
        return tuple(busy)

    def action(self, task: SimulatedTask) -> Action | None:
        """Return the action that a task is part of; None for a wait."""
        return self.chains[task.key.node][task.key.action] if task.key.action >= 0 else None

    def operator(self, node: StepNode) -> str:
        """Return the name of the operator, or of the training step, for which a node is."""
        if node.site.kind == OPERAND or not node.tensor:
            return node.site.name
        return self.producers[node.tensor].name

    def title(self, task: SimulatedTask) -> str:
        node, action = self.graph.nodes[task.key.node], self.action(task)
        kind = node.kind if action is None or action.kind == COMPUTE else action.kind
        return f"{kind} {node.name} for {self.operator(node)}" if node.tensor else f"{kind} {node.name}"

    def critical_path(self) -> list[PathPart]:
        """Return the tasks of which each had to wait for the one before, from the beginning to the end of the step.

        A task that started as soon as it was ready had waited for the last of those that it depends on; another one for the
        task before it on its device.
        """
        if not self.tasks:
            return []
        on_device: dict[int, list[int]] = {}
        for number in sorted(range(len(self.tasks)), key=lambda n: (self.times[n].ready_ns, self.tasks[n].key)):
            device = self.tasks[number].device
            if device is not None:
                on_device.setdefault(device, []).append(number)
        before = {after: first for numbers in on_device.values() for first, after in pairwise(numbers)}
        at: int | None = max(range(len(self.tasks)), key=lambda n: (self.times[n].end_ns, -n))
        parts: list[PathPart] = []
        while at is not None:
            task, times = self.tasks[at], self.times[at]
            if task.exe_ns:
                node = self.graph.nodes[task.key.node]
                parts.append(PathPart(self.title(task), self.operator(node), self.kind(task), times.start_ns, times.end_ns))
            if times.start_ns == 0:
                break
            if times.start_ns == times.ready_ns:
                at = next(source for source in task.waits_for if self.times[source].end_ns == times.ready_ns)
            else:
                at = before[at]
        return parts[::-1]

    def kind(self, task: SimulatedTask) -> str:
        """Return the part of the step in which a task is: forward, backward, update or network."""
        node, action = self.graph.nodes[task.key.node], self.action(task)
        if action is not None and action.kind != COMPUTE:
            return "network"
        if node.kind in (UPDATE, ROWS):
            return "update"
        return "forward" if node.kind in (FORWARD, SHARE, RESHARDED, WRITE) else "backward"


def additive_ns(action: Action, costs: CollectiveCosts) -> int:
    if action.kind in (COMPUTE, MESSAGE):
        return action.time_ns
    return action.share(costs.time_ns(action.kind, costs.mesh, action.axes, action.n_bytes))


def timeline_of(
    producers: Mapping[str, Operator], graph: StepGraph, chains: Sequence[Chain], network: Network
) -> StepTimeline:
    """Simulate a step whose nodes and chains are known; see :class:`StepTimeline`."""
    tasks = task_graph(graph, chains, network)
    return StepTimeline(producers, graph, tuple(chains), network, tuple(tasks), tuple(simulate_tasks(tasks)))
