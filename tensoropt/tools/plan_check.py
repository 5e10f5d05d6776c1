"""Run a plan and compare the measurements with its predictions: step, compute, network, memory, each operator and edge.

How each is measured:

- Collectives: a rank that is early to a collective waits in it for the others. So within each group the member that came
  last gives the time of the transfer; of the groups, which work at the same time, the slowest counts. The time that ranks
  spend in collectives beyond that is waiting.
- Network: the collectives, and the copies before and after them that move the parts of a tensor to their places.
- Compute: the rest of the step. The engine's call of a collective, and reshardings without a collective, which TensorFlow
  operators execute, are compute. Where collectives overlap compute, compute time is from TensorFlow's profiler.
- Operators: from TensorFlow's profiler, in a step after the timed ones. TensorFlow runs some operators as one (a
  convolution with its bias and activation): those are compared as one.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..common.files import CHECK
from ..ir.graph import SOURCES, VARIABLE
from ..lowering.resharding.reshard import Collective
from ..plan.plan import Plan
from ..plan.stage_plan import StagePlan
from ..profiling.hardware import Hardware
from ..profiling.hardware_costs import CollectiveCosts
from ..profiling.trace import StepTrace, traced_step
from ..reschedule.layout import axes_text
from ..reschedule.mesh import Mesh
from ..runtime.collectives.timed import TimedCall
from ..runtime.ranks import Processes
from ..sharding.model import Model
from .instrumented_run import PlanTrial
from .timeline import RankTimeline, collective_events, measured_view
from .trace_names import BACKWARD, CALL, FORWARD, UPDATE, TracedName, ran_as

TRACED_STEPS = 5
"""How many steps are traced: the one with the median peak counts.

What a collective received may stay until the next one's callback, if that begins just as TensorFlow lets go of it: on a busy
machine single steps of a VGG16 peak 3 % higher or lower.
"""

FORMAT, VERSION = CHECK
UPDATES, OTHERS, STEP = "updates of variables", "other operators", "training step"


@dataclass(frozen=True, slots=True)
class Compared:
    """A predicted and a measured cost, in microseconds, or in bytes of memory."""

    name: str
    predicted: float
    measured: float
    count: int = 1

    @property
    def off(self) -> float:
        return abs(self.predicted - self.measured)

    @property
    def error(self) -> float | None:
        """Return (predicted - measured) / measured; None where nothing was measured."""
        return self.predicted / self.measured - 1 if self.measured else None


@dataclass(frozen=True, kw_only=True)
class PlanCheck:
    """The predictions of a plan compared with its measurements.

    Attributes:
        steps_us: the time of each step on the slowest rank.
        waiting_us: the time that a rank waits for others in a step (from medians); no plan predicts it.
        memory_bytes: the peak memory of each rank; none where TensorFlow reports no allocations.
        collectives: one entry for each kind, device partition and size.
        operators, edges: one entry for each name; an edge has the name of the operator that it leads to.
        timeline: the traced step, as :func:`.timeline.measured_view` writes it.
    """

    step: Compared
    steps_us: tuple[float, ...]
    compute: Compared
    network: Compared
    waiting_us: float
    memory: Compared
    memory_bytes: tuple[int, ...]
    collectives: tuple[Compared, ...]
    operators: tuple[Compared, ...]
    edges: tuple[Compared, ...]
    timeline: Mapping[str, Any]


def check_plan(
    plan: Plan,
    model: Model,
    initial_value: Callable[[str], np.ndarray],
    processes: Processes,
    steps: int,
    hardware: Hardware,
) -> PlanCheck:
    """Run a plan on synthetic batches and compare the measurements with its predictions.

    Every rank must call it; all that take part get the same result.

    Args:
        steps: how many steps are timed, after a few that are not.
        hardware: the hardware whose costs single collectives are compared with.

    Raises:
        InputError: the plan is for another model, or for more devices than there are.
    """
    trial = PlanTrial.of(plan, model, initial_value, processes)
    part = trial.processes
    own_s, paths_s, calls = [], [], []
    for _ in range(steps):
        part.barrier()
        started = time.perf_counter()
        trial.step()
        own_s.append(time.perf_counter() - started)
        paths_s.append(trial.take_paths_s())
        calls.append(trial.take_calls())
    trial.follow_memory()
    traces = [_traced(trial) for _ in range(TRACED_STEPS)]
    trace, timeline = sorted(traces, key=lambda traced: traced[0].peak_bytes)[TRACED_STEPS // 2]
    peak_bytes = trace.peak_bytes + trial.held_bytes if trace.reports_memory else None
    rank = _Rank(own_s, paths_s, calls, trace.operators_us, peak_bytes, timeline, trial.log)
    return _compared(plan, model, part.gather(rank), hardware)


def _traced(trial: PlanTrial) -> tuple[StepTrace, RankTimeline]:
    """Run a step under TensorFlow's profiler and return its trace, and when everything in it ran."""
    part, times = trial.processes, []

    def run() -> None:
        times.append(time.time_ns())
        trial.step()
        times.append(time.time_ns())

    part.barrier()
    trial.take_calls()
    trace = traced_step(run, trial.take_memory)
    events = collective_events(trial.log, trial.take_calls())
    return trace, RankTimeline(part.rank, part.hosts[part.rank], np.array([times]), trace.operators, events, ())


@dataclass(frozen=True)
class _Rank:
    """The measurements of one rank.

    ``paths_s`` holds the time of the reshardings in each step, collectives and copies included; ``peak_bytes`` is None where
    TensorFlow reports no allocations.
    """

    steps_s: list[float]
    paths_s: list[float]
    calls: list[tuple[TimedCall, ...]]
    operators_us: dict[str, float]
    peak_bytes: int | None
    timeline: RankTimeline
    log: tuple[Collective, ...]

    @property
    def calls_s(self) -> np.ndarray:
        """Return the seconds of each collective, [steps, calls]."""
        return np.array([[call.seconds for call in step] for step in self.calls]).reshape(len(self.calls), -1)


@dataclass(frozen=True)
class _Submesh:
    """The stages on some devices, and what was measured of these.

    Attributes:
        transfers_us: the time of each collective, [steps, calls].
    """

    stages: tuple[StagePlan, ...]
    ranks: Sequence[_Rank]
    transfers_us: np.ndarray

    @classmethod
    def of(cls, plan: Plan, devices: tuple[int, ...], ranks: Sequence[_Rank]) -> _Submesh:
        own, stages = [ranks[device] for device in devices], tuple(s for s in plan.stages if s.devices == devices)
        axes = [call.axes for call in own[0].calls[0]]
        return cls(stages, own, transfers_s(stages[0].mesh, axes, [rank.calls_s for rank in own]) * 1e6)

    @property
    def network_us(self) -> float:
        copies_us = np.max([np.array(rank.paths_s) - rank.calls_s.sum(axis=1) for rank in self.ranks], axis=0) * 1e6
        return float(np.median(self.transfers_us.sum(axis=1) + copies_us))

    @property
    def each_us(self) -> np.ndarray:
        return np.median(self.transfers_us, axis=0)

    def predicted_us(self, hardware: Hardware) -> tuple[float, float]:
        """Return the predicted time of compute and of the network, as they are measured.

        A plan counts as network what is measured as compute: reshardings that TensorFlow operators execute, and the engine's
        calls of collectives, of which there are fewer than the plan's reshardings have where small sums are bucketed.
        """
        reshardings = (resharding for stage in self.stages for resharding in stage.reshardings)
        local_us = sum(resharding.time_us for resharding in reshardings if not resharding.n_collectives)
        in_graph_us = local_us + self.transfers_us.shape[1] * hardware.collective_call_us
        of_stages = ((stage.compute_time_us, stage.network_time_us) for stage in self.stages)
        compute_us, network_us = map(sum, zip(*of_stages, strict=True))
        return compute_us + in_graph_us, network_us - in_graph_us


def _compared(plan: Plan, model: Model, ranks: Sequence[_Rank], hardware: Hardware) -> PlanCheck:
    steps_us = np.max([rank.steps_s for rank in ranks], axis=0) * 1e6
    peaks = [rank.peak_bytes for rank in ranks]
    submeshes = [_Submesh.of(plan, devices, ranks) for devices in plan.submeshes]
    compute_us = max(_compute_us(rank, model, plan.overlap_time_us > 0 or len(submeshes) > 1) for rank in ranks)
    memory = tuple(n_bytes for n_bytes in peaks if n_bytes is not None) if None not in peaks else ()
    predicted = [part.predicted_us(hardware) for part in submeshes]
    return PlanCheck(
        step=Compared("step", plan.time_us, float(np.median(steps_us))),
        steps_us=tuple(steps_us.tolist()),
        compute=Compared("compute", max(compute for compute, _ in predicted), compute_us),
        network=Compared("network", max(network for _, network in predicted), max(part.network_us for part in submeshes)),
        waiting_us=max(0.0, *(1e6 * float(np.median([r.paths_s for r in s.ranks])) - s.network_us for s in submeshes)),
        memory=Compared("memory", plan.needed_bytes, max(memory, default=0)),
        memory_bytes=memory,
        collectives=tuple(row for part in submeshes for row in _collectives(part, hardware)),
        operators=_operators(plan, model, _slowest([rank.operators_us for rank in ranks])),
        edges=tuple(row for part in submeshes for row in _edges(part, model)),
        timeline=measured_view([rank.timeline for rank in ranks], model.graph.operators),
    )


def _compute_us(rank: _Rank, model: Model, overlaps: bool) -> float:
    """Return the median time of a step outside of reshardings; with overlap, the profiler's sum over operators."""
    if not overlaps:
        return float(statistics.median(np.subtract(rank.steps_s, rank.paths_s))) * 1e6
    group_of = ran_as(model, rank.operators_us)
    return sum(time_us for name, time_us in rank.operators_us.items() if _group_of_event(name, group_of) is not None)


def transfers_s(mesh: Mesh, axes_of_calls: Sequence[tuple[int, ...]], seconds: Sequence[np.ndarray]) -> np.ndarray:
    """Return the time of each collective call without waiting for other ranks, [steps, calls].

    It is the time of the fastest member, the one that came last, of the slowest group.

    Args:
        axes_of_calls: the mesh axes of each call.
        seconds: the time of each call on each rank: for every rank, [steps, calls].
    """
    result = np.zeros_like(seconds[0])
    for call, axes in enumerate(axes_of_calls):
        others = tuple(axis for axis in mesh.axes if axis not in axes)
        groups: dict[int, list[np.ndarray]] = {}
        for rank, of_rank in enumerate(seconds):
            groups.setdefault(mesh.index_along(others, rank), []).append(of_rank[:, call])
        result[:, call] = np.max([np.min(members, axis=0) for members in groups.values()], axis=0)
    return result


def _collectives(submesh: _Submesh, hardware: Hardware) -> tuple[Compared, ...]:
    times_by_call: dict[tuple[str, tuple[int, ...], int], list[float]] = {}
    mesh, ranks, each_us = submesh.stages[0].mesh, submesh.ranks, submesh.each_us
    for number, call in enumerate(ranks[0].calls[0]):
        n_bytes = max(rank.calls[0][number].n_bytes for rank in ranks)
        times_by_call.setdefault((call.kind, call.axes, n_bytes), []).append(float(each_us[number]))
    costs = CollectiveCosts(hardware, mesh)
    beside_us = hardware.collective_call_us + hardware.collective_path_us
    return tuple(
        Compared(
            f"{kind}({axes_text(axes)}) of {n_bytes:,} bytes",
            len(times_us) * max(0.0, costs.time_ns(kind, mesh, axes, n_bytes) / 1e3 - beside_us),
            sum(times_us),
            len(times_us),
        )
        for (kind, axes, n_bytes), times_us in sorted(times_by_call.items())
    )


def _edges(submesh: _Submesh, model: Model) -> tuple[Compared, ...]:
    """Return the comparison for each operator that reshardings lead to; none where collectives can't be told apart.

    The time of a collective for several operators is shared among them by their numbers of elements.
    """
    log, each_us = submesh.ranks[0].log, submesh.each_us
    if len(log) != len(each_us):
        return ()
    computing = {op.name for op in model.graph.operators.values() if op.type not in SOURCES}

    def called(name: str) -> str:
        return name if name in computing else STEP

    predicted: dict[str, float] = {}
    for resharding in (resharding for stage in submesh.stages for resharding in stage.reshardings):
        if resharding.n_collectives:
            name = called(resharding.consumers[0])
            predicted[name] = predicted.get(name, 0.0) + resharding.time_us
    measured: dict[str, list[float]] = {}
    for entry, time_us in zip(log, each_us.tolist(), strict=True):
        sizes = [math.prod(shape) for _, shape in entry.parts]
        for (operator, _), size in zip(entry.parts, sizes, strict=True):
            measured.setdefault(called(operator), []).append(time_us * size / max(1, sum(sizes)))
    return tuple(
        Compared(name, predicted.get(name, 0.0), sum(measured.get(name, ())), len(measured.get(name, ())))
        for name in dict.fromkeys([*predicted, *measured])
    )


def _slowest(by_rank: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for rank_us in by_rank for name in rank_us)
    return {name: max(rank_us.get(name, 0.0) for rank_us in by_rank) for name in names}


def _operators(plan: Plan, model: Model, traced_us: Mapping[str, float]) -> tuple[Compared, ...]:
    """Return the comparison for each operator of the training steps, forward plus backward.

    Operators that TensorFlow ran as one are compared as one.
    """
    by_name = {op.name: op for op in plan.operators}
    group_of = ran_as(model, traced_us)
    predicted: dict[str, float] = {}
    members: dict[str, list[str]] = {}
    for op in model.graph.step_operators:
        if op.name in by_name and by_name[op.name].time_us:
            group = UPDATES if op.type == VARIABLE else group_of.get(op.name, op.name)
            predicted[group] = predicted.get(group, 0.0) + by_name[op.name].time_us
            members.setdefault(group, []).append(op.name)
    measured: dict[str, float] = {}
    for name, time_us in traced_us.items():
        of_event = _group_of_event(name, group_of)
        if of_event is not None:
            measured[of_event] = measured.get(of_event, 0.0) + time_us
    return tuple(
        Compared(
            group if group in (UPDATES, OTHERS) else " + ".join(members.get(group, [group])),
            predicted.get(group, 0.0),
            measured.get(group, 0.0),
        )
        for group in dict.fromkeys([*predicted, *measured])
    )


def _group_of_event(name: str, group_of: Mapping[str, str]) -> str | None:
    """Return the name under which a TensorFlow operator's time is compared; None for callbacks of collectives."""
    operator, way = TracedName.of(name, group_of)
    if way == CALL:
        return None
    return group_of[operator] if way in (FORWARD, BACKWARD) else UPDATES if way == UPDATE else OTHERS


def comparison_json(check: PlanCheck) -> dict[str, Any]:
    def row(cost: Compared) -> dict[str, Any]:
        return {"name": cost.name, "predicted": cost.predicted, "measured": cost.measured, "count": cost.count}

    return {
        "format": FORMAT,
        "version": VERSION,
        "step_us": {**row(check.step), "steps": list(check.steps_us)},
        "compute_us": row(check.compute),
        "network_us": row(check.network),
        "waiting_us": check.waiting_us,
        "memory_bytes": {**row(check.memory), "ranks": list(check.memory_bytes)},
        "collectives_us": [row(cost) for cost in check.collectives],
        "operators_us": [row(cost) for cost in check.operators],
        "edges_us": [row(cost) for cost in check.edges],
        "timeline": dict(check.timeline),
    }
