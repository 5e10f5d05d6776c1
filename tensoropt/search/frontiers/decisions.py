"""Collect what a report needs beside a plan: its step, the user's operators, and the plan's costliest decisions, each with
the cheapest other choice and what that would change.

A decision is the state of one of the problem's nodes: the configs of an operator, or of a few that were fused. Its cost is
what depends on it: the node's own and that of its edges. Another choice is costed with everything else as it is, except the
copies around the node (shared or regathered), which follow it: each takes its cheapest state. What is cheapest weighs memory
against time as the frontier does at the point. A step is what each device does when, and the memory that is alive at each
instant.
"""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import numpy as np

from ...common.errors import InputError
from ...ft.problem import INFEASIBLE, Edge, Node
from ...ir.graph import Graph, Operator
from ...program.memory.liveness import SCRATCH, Instruction, Peak, made_text, peak_of_program
from ...program.simulator.full import SimulatedTask
from ...program.simulator.network import COMPUTE
from ...program.simulator.timeline import StepTimeline
from ...report.sentences import config_words
from ..problem.node_states import States
from .model_frontier import ModelFrontier

MOST_DECISIONS = 10
Floats = np.ndarray


def view_of(frontier: ModelFrontier, point: int) -> dict[str, Any]:
    """Return the step of a point and its decisions."""
    return {**step_view(frontier, point), "decisions": decisions(frontier, point)}


def of_operators(graph: Graph) -> dict[str, Any]:
    """Return the user's lines, and the shapes of results, by operator."""
    ops = [op for op in graph.operators.values() if op.updates is None]
    return {
        "sources": {op.name: user_source(op) for op in ops if user_source(op)},
        "shapes": {op.name: list(op.result.shape) for op in ops if op.outputs},
    }


def decisions(frontier: ModelFrontier, point: int) -> list[dict[str, Any]]:
    """Return the decisions of a point that cost the most time, the costliest first, as a JSON value.

    Equal layers have equal decisions: operators of one type, config and cost are told once, with how many others are alike.
    """
    changes = _PointChanges(frontier, point)
    order = sorted(range(len(frontier.built.nodes)), key=changes.time_ns_of, reverse=True)
    groups: dict[tuple[str, str, int], list[int]] = {}
    for node in order:
        if frontier.built.problem.nodes[node].n_states > 1 and changes.time_ns_of(node):
            op = frontier.built.nodes[node][0].operators[0]
            key = op.type, str(changes.strategy.configs[op.name]), changes.time_ns_of(node)
            groups.setdefault(key, []).append(node)
    costliest = list(groups.values())[:MOST_DECISIONS]
    return [{**_decision(frontier, changes, nodes[0]), "alike": len(nodes) - 1} for nodes in costliest]


def _decision(frontier: ModelFrontier, changes: _PointChanges, node: int) -> dict[str, Any]:
    group, states = frontier.built.nodes[node]
    alternative = changes.cheapest_other(node)
    op = group.operators[0]
    entry: dict[str, Any] = {
        "operator": op.name,
        "type": op.type,
        "fused_with": [fused.name for fused in group.operators[1:]],
        "source": user_source(op),
        "time_us": changes.time_ns_of(node) / 1e3,
        "config": str(changes.strategy.configs[op.name]),
        "words": _words(op, states, changes.states[node], str(changes.strategy.configs[op.name])),
        "other": None,
    }
    if alternative is not None:
        mem_bytes, time_ns = frontier.built.problem.cost(alternative)
        strategy = frontier.built.strategy(alternative)
        config = strategy.configs[op.name]
        entry["other"] = {
            "config": str(config),
            "words": _words(op, states, alternative[node], str(config)),
            "is_rematerialized": op.name in strategy.rematerialized,
            "sum_bytes": mem_bytes - changes.cost[0],
            "time_us": (time_ns - changes.cost[1]) / 1e3,
        }
    return entry


def user_source(op: Operator) -> str:
    """Return the line of the user's code that made an operator; nothing if it was made by Python itself, as by ``-m``."""
    return "" if op.source.startswith("<") else op.source


def _words(op: Operator, states: States, state: int, config: str) -> str:
    """Return the config of a node's first operator in words."""
    interface = states.interfaces[0][int(states.index[0][state])]
    return config_words(op.type, config, tuple(map(str, interface.results)))


class _PointChanges:
    """A point's states, and the costs of changing one of them."""

    def __init__(self, frontier: ModelFrontier, point: int) -> None:
        self.problem, self.n_operators = frontier.built.problem, len(frontier.built.nodes)
        self.states = [int(state) for state in frontier.found.strategies[point]]
        self.strategy = frontier.built.strategy(self.states)
        self.cost = self.problem.cost(self.states)
        self._ns_per_byte = _slope(frontier, point)
        self.edges: list[list[Edge]] = [[] for _ in self.problem.nodes]
        for edge in self.problem.edges:
            self.edges[edge.source].append(edge)
            self.edges[edge.target].append(edge)

    def _weighed(self, costs: Node | Edge) -> Floats:
        """Return costs in nanoseconds, a byte being worth the frontier's slope at the point; infinite if not allowed."""
        weighed: Floats = costs.time_ns + self._ns_per_byte * costs.mem_bytes
        return np.where((costs.mem_bytes >= INFEASIBLE) | (costs.time_ns >= INFEASIBLE), np.inf, weighed)

    def time_ns_of(self, node: int) -> int:
        """Return the time that depends on a node's state."""
        base = int(self.problem.nodes[node].time_ns[self.states[node]])
        return base + sum(int(edge.time_ns[self.states[edge.source], self.states[edge.target]]) for edge in self.edges[node])

    def cheapest_other(self, node: int) -> list[int] | None:
        """Return the states with the cheapest other state of a node; None if no other is allowed."""
        costs = self._weighed(self.problem.nodes[node])
        copies: dict[int, list[Edge]] = {}
        for edge in self.edges[node]:
            neighbour = edge.target if edge.source == node else edge.source
            if neighbour >= self.n_operators:
                copies.setdefault(neighbour, []).append(edge)
            else:
                costs = costs + self._facing(edge, node)[:, self.states[neighbour]]
        copy_states: dict[int, np.ndarray] = {}
        for copy, edges in copies.items():
            joint_costs = self._alone(copy, node)[None, :] + sum(self._facing(edge, node) for edge in edges)
            copy_states[copy] = joint_costs.argmin(axis=1)
            costs = costs + joint_costs.min(axis=1)
        costs[self.states[node]] = np.inf
        for best in map(int, np.argsort(costs, kind="stable")[: int(np.isfinite(costs).sum())]):
            states_after = list(self.states)
            states_after[node] = best
            for copy, states in copy_states.items():
                states_after[copy] = int(states[best])
            # Two copies that depend on each other may not be allowed together.
            if max(self.problem.cost(states_after)) < INFEASIBLE:
                return states_after
        return None

    def _facing(self, edge: Edge, node: int) -> Floats:
        """Return an edge's weighed costs, by the node's state first."""
        costs = self._weighed(edge)
        return costs if edge.source == node else costs.T

    def _alone(self, copy: int, node: int) -> Floats:
        """Return the weighed costs of a copy's states, with those of its edges to all nodes but one."""
        costs = self._weighed(self.problem.nodes[copy])
        for edge in self.edges[copy]:
            neighbour = edge.target if edge.source == copy else edge.source
            if neighbour != node:
                costs = costs + self._facing(edge, copy)[:, self.states[neighbour]]
        return costs


def _slope(frontier: ModelFrontier, point: int) -> float:
    """Return the nanoseconds that a byte buys between the points beside a point; 0 on a frontier of one point."""
    costs = frontier.costs
    order = np.argsort(costs.mem_bytes, kind="stable")
    position = int(np.flatnonzero(order == point)[0])
    low, high = order[max(position - 1, 0)], order[min(position + 1, len(order) - 1)]
    n_bytes = int(costs.mem_bytes[high]) - int(costs.mem_bytes[low])
    return max(0.0, (int(costs.time_ns[low]) - int(costs.time_ns[high])) / n_bytes) if n_bytes else 0.0


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
