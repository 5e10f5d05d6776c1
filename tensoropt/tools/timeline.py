"""Trace training steps on each rank, for display in a browser, and sum up where their time goes.

The trace file has Chrome's trace format, which Perfetto (ui.perfetto.dev) and chrome://tracing open. Each rank is a process,
with a row of steps, one of collectives (and one of those that only updates wait for), one for each thread that ran
operators, and a curve of allocated memory. Ranks of one machine share a clock; the clocks of several machines are shown as
they are, not aligned.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..lowering.resharding.reshard import Collective
from ..plan.plan import Plan
from ..profiling.trace import MemoryEvent, OperatorEvent, allocated, traced_step
from ..runtime.collectives.timed import TimedCall
from ..runtime.ranks import Processes
from ..search.frontiers.decisions import COMPUTE_LANE, NETWORK_LANE, TaskRows
from ..sharding.model import Model
from .instrumented_run import PlanTrial
from .trace_names import BACKWARD, CALL, FORWARD, TracedName, ran_as

Intervals = npt.NDArray[np.int64]
"""The begin and end of n intervals, int64[n, 2], in nanoseconds."""
STEPS_ROW, COLLECTIVES_ROW, OVERLAPPABLE_ROW, FIRST_THREAD = 1, 2, 3, 4
"""The rows of a rank: its steps, its collectives, those that only updates wait for, and the first of its threads."""
MOST_RANKS = 8
"""How many ranks a report shows: of a large mesh those with the lowest numbers."""


@dataclass(frozen=True, slots=True)
class CollectiveEvent:
    """One execution of a collective on one rank; ``collective`` is None where the calls of a step can't be told apart."""

    collective: Collective | None
    kind: str
    n_bytes: int
    start_ns: int
    duration_ns: int


@dataclass(frozen=True)
class RankTimeline:
    """The trace of one rank; times are the system clock's.

    Attributes:
        steps: when each step began and ended, [n, 2] nanoseconds.
        has_two_chains: whether collectives that only updates wait for have a chain of their own.
    """

    rank: int
    host: str
    steps: Intervals
    operators: tuple[OperatorEvent, ...]
    collectives: tuple[CollectiveEvent, ...]
    memory: tuple[MemoryEvent, ...]
    has_two_chains: bool = False


def trace_steps(
    plan: Plan, model: Model, initial_value: Callable[[str], np.ndarray], processes: Processes, n_steps: int
) -> list[RankTimeline]:
    """Run a plan on synthetic batches and trace ``n_steps`` steps; return the traces of all ranks that take part.

    Every rank must call it.

    Raises:
        InputError: the plan is for another model, or for more devices than there are.
    """
    trial = PlanTrial.of(plan, model, initial_value, processes)
    part, steps, calls = trial.processes, [], []

    def run() -> None:
        for _ in range(n_steps):
            part.barrier()
            started_ns = time.time_ns()
            trial.step()
            steps.append((started_ns, time.time_ns()))
            calls.append(trial.take_calls())

    trial.follow_memory()
    trace = traced_step(run, trial.take_memory)
    events = tuple(event for step in calls for event in collective_events(trial.log, step))
    host = part.hosts[part.rank]
    own = RankTimeline(part.rank, host, np.array(steps), trace.operators, events, trace.memory, len(trial.chains) > 1)
    return part.gather(own)


def collective_events(log: Sequence[Collective], calls: Sequence[TimedCall]) -> tuple[CollectiveEvent, ...]:
    """Return the events of a step's collectives by the system's clock, each with its entry of the log."""
    to_system_ns = time.time_ns() - round(time.perf_counter() * 1e9)
    return tuple(
        CollectiveEvent(
            log[number] if len(log) == len(calls) else None,
            call.kind,
            call.n_bytes,
            to_system_ns + round(call.started_s * 1e9),
            round(call.seconds * 1e9),
        )
        for number, call in enumerate(calls)
    )


def shares(rank: RankTimeline, operators: Iterable[str]) -> tuple[float, ...]:
    """Return the average microseconds of a rank's step, and of these parts of it.

    They are: an operator computes; the rank is in a collective; both at once; neither.

    Args:
        operators: the names of the model's operators, by which operators are told from calls of collectives.
    """
    names = frozenset(operators)
    computing = _intervals(
        (event.start_ps // 1000, event.duration_ps // 1000)
        for event in rank.operators
        if TracedName.of(event.name, names).way != CALL
    )
    communicating = _intervals((event.start_ns, event.duration_ns) for event in rank.collectives)
    step, operators_ns, collectives_ns, any_ns = (
        covered(spans) for spans in (rank.steps, computing, communicating, np.concatenate([computing, communicating]))
    )
    overlap_ns = operators_ns + collectives_ns - any_ns
    totals = (step, operators_ns, collectives_ns, overlap_ns, max(0, step - any_ns))
    return tuple(total / len(rank.steps) / 1e3 for total in totals)


def _intervals(events: Iterable[tuple[int, int]]) -> Intervals:
    rows = np.array(list(events), np.int64).reshape(-1, 2)
    return np.stack([rows[:, 0], rows.sum(axis=1)], axis=1)


def covered(intervals: Intervals) -> int:
    """Return the nanoseconds that lie in at least one of the intervals."""
    if not len(intervals):
        return 0
    start, end = intervals[np.argsort(intervals[:, 0])].T
    reached = np.maximum.accumulate(end)
    # Count the part of each interval that lies beyond the end of all that began before it.
    before = np.concatenate([[start[0]], reached[:-1]])
    return int(np.maximum(0, end - np.maximum(start, before)).sum())


@dataclass(frozen=True, slots=True)
class TraceRows:
    """The events of one rank, which are added to a list."""

    rank: int
    start_ns: int
    events: list[dict[str, Any]]

    def named(self, subject: str, name: str, row: int) -> None:
        for kind, value in (("name", {"name": name}), ("sort_index", {"sort_index": row or self.rank})):
            self.events.append({"ph": "M", "pid": self.rank, "tid": row, "name": f"{subject}_{kind}", "args": value})

    def add(
        self, row: int, name: str, category: str, start_ns: float, duration_ns: float, details: dict[str, Any] | None = None
    ) -> None:
        event = {"ph": "X", "pid": self.rank, "tid": row, "name": name, "cat": category}
        times = {"ts": (start_ns - self.start_ns) / 1e3, "dur": duration_ns / 1e3}
        self.events.append({**event, **times, "args": details or {}})

    def count(self, name: str, time_ns: float, n_bytes: int) -> None:
        event = {"ph": "C", "pid": self.rank, "name": name, "ts": (time_ns - self.start_ns) / 1e3}
        self.events.append({**event, "args": {"bytes": n_bytes}})


def trace_json(ranks: Sequence[RankTimeline], plan: Plan, model: Model) -> dict[str, Any]:
    """Return the trace as a JSON value; times are microseconds since the first step of these ranks began."""
    members: dict[str, list[str]] = {}
    for name, group in ran_as(model, {event.name for rank in ranks for event in rank.operators}).items():
        members.setdefault(group, []).append(name)
    start_ns = min(int(rank.steps[0, 0]) for rank in ranks)
    events: list[dict[str, Any]] = []
    for rank in ranks:
        stages = [stage for stage in plan.stages if rank.rank in stage.devices]
        by_name = {op.name: op for stage in stages for op in stage.operators if not op.is_stand_in}
        row = TraceRows(rank.rank, start_ns, events)
        row.named("process", f"rank {rank.rank} on {rank.host}", 0)
        row.named("thread", "steps", STEPS_ROW)
        row.named("thread", "collectives", COLLECTIVES_ROW)
        if rank.has_two_chains:
            row.named("thread", "collectives that only updates wait for", OVERLAPPABLE_ROW)
        for number, (start, end) in enumerate(rank.steps.tolist()):
            row.add(STEPS_ROW, f"step {number + 1}", "step", start, end - start)
        for collective in rank.collectives:
            entry = collective.collective
            details: dict[str, Any] = {"bytes": collective.n_bytes}
            if entry is not None:
                details |= {"device partition": entry.axes, "dtype": entry.dtype, "shape": list(entry.shape)}
                details |= {"operator": entry.operator}
            name = collective.kind if entry is None else f"{entry.kind}({entry.axes}) for {entry.operator}"
            is_overlappable = entry is not None and entry.is_overlappable and rank.has_two_chains
            place = OVERLAPPABLE_ROW if is_overlappable else COLLECTIVES_ROW
            row.add(place, name, "collective", collective.start_ns, collective.duration_ns, details)
        threads = {thread: number for number, thread in enumerate(sorted({event.thread for event in rank.operators}))}
        for thread in threads.values():
            row.named("thread", f"operators, thread {thread + 1}", FIRST_THREAD + thread)
        for event in rank.operators:
            operator, way = TracedName.of(event.name, by_name)
            details = {"type": event.type, "TensorFlow's name": event.name}
            name = f"{operator} (backward)" if way == BACKWARD else operator
            if way == FORWARD and operator in members:
                # Operators that TensorFlow ran as one are shown by all their names, in program order.
                name = " + ".join(member for member in reversed(members[operator]) if member in by_name)
            if operator in by_name:
                details |= {"config": str(by_name[operator].config), "planned us, both ways": by_name[operator].time_us}
            place = FIRST_THREAD + threads[event.thread]
            row.add(place, name, way, event.start_ps / 1e3, event.duration_ps / 1e3, details)
        for time_ps, n_bytes in allocated(rank.memory):
            row.count("allocated in the steps", time_ps / 1e3, n_bytes)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def measured_view(ranks: Sequence[RankTimeline], operators: Iterable[str]) -> dict[str, Any]:
    """Return the first traced step of each rank, to show beside the predicted one; see :meth:`.TaskRows.to_json`.

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
