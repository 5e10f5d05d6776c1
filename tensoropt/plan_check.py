"""A plan run and held against what it predicted: step, compute, network, memory, and each operator and edge.

Collectives: a rank that comes early to a collective waits in it for the others, so of each group's members the one that came
last tells what the transfer took; of the groups, which work at the same time, the slowest counts. What the ranks spend in
collectives beyond that is waiting. Copies before and after, to where the parts of a tensor belong, are network too; the
engine's call, and deliveries without a collective, which TensorFlow's operators make, are compute. Operators: from
TensorFlow's profiler, in one step after the timed ones. TensorFlow runs some operators as one (a convolution with its bias
and activation): those are compared as one.
"""

from __future__ import annotations

import math
import re
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from .collectives.timed import TimedCall, TimedCommunicator
from .costing import ALIASES
from .deliveries import PlainCosts
from .engine import Engine, Feed, Fetch
from .execution import MPI, execute
from .frontier import Model, costing_of
from .ir import SOURCES, VARIABLE
from .lowering.backends import CommunicatingBackend, TimedBackend
from .made_up import made_up_batch
from .plan import Plan
from .processes import Processes
from .profiling.costs import CollectiveCosts
from .profiling.hardware import Hardware
from .profiling.trace import StepTrace, traced_step
from .replay import peak_of
from .reschedule.layout import axes_text
from .reschedule.mesh import Mesh
from .strategy import StrategyView

WARM_STEPS = 3
UPDATES, OTHERS, STEP = "updates of variables", "other operators", "training step"
_GRADIENT = re.compile(r"gradients(?:_\d+)?/(?P<operator>.+?)_grad/")


@dataclass(frozen=True, slots=True)
class Compared:
    """What something was predicted to take, and what it took; microseconds, or bytes of memory."""

    name: str
    predicted: float
    measured: float
    count: int = 1

    @property
    def off(self) -> float:
        return abs(self.predicted - self.measured)

    @property
    def error(self) -> float | None:
        """(predicted - measured) / measured; None where nothing was measured."""
        return self.predicted / self.measured - 1 if self.measured else None


@dataclass(frozen=True)
class PlanCheck:
    """Attributes:
    steps_us: of each step, the slowest rank's.
    waiting_us: what a rank spends waiting for others in a step, on average; no plan predicts it.
    memory_bytes: the peak of each rank.
    collectives: by kind, device partition and size.
    operators, edges: by name; edges are named by the operator that they lead to.
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


def check_plan(
    plan: Plan,
    model: Model,
    initial_value: Callable[[str], np.ndarray],
    processes: Processes,
    steps: int,
    hardware: Hardware,
) -> PlanCheck:
    """Run a plan on made-up batches and compare; every rank must call it, and those that take part get the same.

    Args:
        steps: that are timed, after a few that are not.
        hardware: whose costs single collectives are held against.

    Raises:
        InputError: the plan is for another model, or for more devices than there are.
    """
    execution = execute(plan, model, initial_value, processes, MPI)
    engine, part = execution.engine, execution.processes
    assert isinstance(engine.backend, CommunicatingBackend)
    timed = TimedCommunicator(engine.backend.communicator)
    engine.backend = paths = TimedBackend(engine.backend.mesh, engine.backend.rank, timed)
    graph = model.graph
    fetch = Fetch(tuple((step.loss, False) for step in graph.train_steps.values()), tuple(graph.train_steps))
    feeds = {Feed(tensor, False): value for tensor, value in made_up_batch(graph).items()}

    def step() -> None:
        engine.run(fetch, feeds)

    for _ in range(WARM_STEPS):
        step()
    own_s, paths_s, calls = [], [], []
    for _ in range(steps):
        timed.take()
        paths.take()
        part.barrier()
        started = time.perf_counter()
        step()
        own_s.append(time.perf_counter() - started)
        paths_s.append(paths.take())
        calls.append(timed.take())
    part.barrier()
    timed.take_memory()
    trace = traced_step(step, timed.take_memory)
    log = [entry.operator for entry in engine.function(fetch, tuple(feeds)).log]
    gathered = part.gather(_Rank(own_s, paths_s, calls, trace, _state_bytes(engine), timed.workspace_bytes))
    return _compared(plan, model, gathered, log, hardware)


@dataclass(frozen=True)
class _Rank:
    """What one rank saw; ``paths_s`` is what deliveries took in each step, with their collectives and copies."""

    steps_s: list[float]
    paths_s: list[float]
    calls: list[tuple[TimedCall, ...]]
    trace: StepTrace
    state_bytes: int
    workspace_bytes: int

    @property
    def calls_s(self) -> np.ndarray:
        """[steps, calls]"""
        return np.array([[call.seconds for call in step] for step in self.calls]).reshape(len(self.calls), -1)

    @property
    def copies_s(self) -> np.ndarray:
        """[steps]: of deliveries, outside of their collectives."""
        return np.array(self.paths_s) - self.calls_s.sum(axis=1)

    @property
    def peak_bytes(self) -> int:
        return self.trace.peak_bytes + self.state_bytes + self.workspace_bytes


def _peak_bytes(plan: Plan, model: Model, hardware: Hardware) -> int:
    view = StrategyView(model.graph, plan.strategy, model.backward.gradients)
    costing = costing_of(model, hardware, plan.mesh)
    return peak_of(view, model.backward, costing, plan.router(PlainCosts())).n_bytes


def _state_bytes(engine: Engine) -> int:
    (rank,) = engine.backend.ranks
    return sum(
        math.prod(entry.layout.local_shape(entry.shape, rank)) * tf.as_dtype(entry.dtype).size for entry in engine.state()
    )


def _compared(
    plan: Plan, model: Model, ranks: Sequence[_Rank], log: Sequence[str], hardware: Hardware
) -> PlanCheck:
    steps_us = np.max([rank.steps_s for rank in ranks], axis=0) * 1e6
    transfers_us = transfers_s(plan.mesh, [call.axes for call in ranks[0].calls[0]], [r.calls_s for r in ranks]) * 1e6
    copies_us = np.max([rank.copies_s for rank in ranks], axis=0) * 1e6
    network_us = float(np.median(transfers_us.sum(axis=1) + copies_us))
    in_paths_us = float(np.median([rank.paths_s for rank in ranks])) * 1e6
    compute_us = max(statistics.median(np.subtract(rank.steps_s, rank.paths_s)) for rank in ranks) * 1e6
    in_graph_us = _in_graph_us(plan, hardware)
    memory = [rank.peak_bytes for rank in ranks]
    each_us = np.median(transfers_us, axis=0)
    return PlanCheck(
        Compared("step", plan.time_us, float(np.median(steps_us))),
        tuple(steps_us.tolist()),
        Compared("compute", plan.compute_time_us + in_graph_us, float(compute_us)),
        Compared("network", plan.time_us - plan.compute_time_us - in_graph_us, network_us),
        max(0.0, in_paths_us - network_us),
        Compared("memory", _peak_bytes(plan, model, hardware), max(memory)),
        tuple(memory),
        _collectives(plan.mesh, ranks, each_us, hardware),
        _operators(plan, model, _slowest([rank.trace.operators_us for rank in ranks])),
        _edges(plan, model, log, each_us),
    )


def _in_graph_us(plan: Plan, hardware: Hardware) -> float:
    """What a plan counts as network and isn't seen there: deliveries by TensorFlow's operators, and calls of collectives."""
    local_us = sum(delivery.time_us for delivery in plan.deliveries if not delivery.n_collectives)
    return local_us + plan.n_collectives * hardware.collective_call_us


def transfers_s(mesh: Mesh, axes_of_calls: Sequence[tuple[int, ...]], seconds: Sequence[np.ndarray]) -> np.ndarray:
    """What each call took without waiting, [steps, calls], from what it took on each rank.

    Args:
        seconds: by rank, [steps, calls].
    """
    result = np.zeros_like(seconds[0])
    for call, axes in enumerate(axes_of_calls):
        others = tuple(axis for axis in mesh.axes if axis not in axes)
        groups: dict[int, list[np.ndarray]] = {}
        for rank, of_rank in enumerate(seconds):
            groups.setdefault(mesh.index_along(others, rank), []).append(of_rank[:, call])
        result[:, call] = np.max([np.min(members, axis=0) for members in groups.values()], axis=0)
    return result


def _collectives(
    mesh: Mesh, ranks: Sequence[_Rank], each_us: np.ndarray, hardware: Hardware
) -> tuple[Compared, ...]:
    found: dict[tuple[str, tuple[int, ...], int], list[float]] = {}
    for number, call in enumerate(ranks[0].calls[0]):
        n_bytes = max(rank.calls[0][number].n_bytes for rank in ranks)
        found.setdefault((call.kind, call.axes, n_bytes), []).append(float(each_us[number]))
    costs = CollectiveCosts(hardware, mesh)
    return tuple(
        Compared(
            f"{kind}({axes_text(axes)}) of {n_bytes:,} bytes",
            len(times_us) * costs.time_ns(kind, mesh, axes, n_bytes) / 1e3,
            sum(times_us),
            len(times_us),
        )
        for (kind, axes, n_bytes), times_us in sorted(found.items())
    )


def _edges(plan: Plan, model: Model, log: Sequence[str], each_us: np.ndarray) -> tuple[Compared, ...]:
    """By the operator that a delivery leads to; none where collectives can't be told apart."""
    if len(log) != len(each_us):
        return ()
    computing = {op.name for op in model.graph.operators.values() if op.type not in SOURCES}

    def called(name: str) -> str:
        return name if name in computing else STEP

    predicted: dict[str, float] = {}
    for delivery in plan.deliveries:
        if delivery.n_collectives:
            name = called(delivery.takers[0])
            predicted[name] = predicted.get(name, 0.0) + delivery.time_us
    measured: dict[str, list[float]] = {}
    for name, time_us in zip(map(called, log), each_us.tolist(), strict=True):
        measured.setdefault(name, []).append(time_us)
    return tuple(
        Compared(name, predicted.get(name, 0.0), sum(measured.get(name, ())), len(measured.get(name, ())))
        for name in dict.fromkeys([*predicted, *measured])
    )


def _slowest(by_rank: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for each in by_rank for name in each)
    return {name: max(each.get(name, 0.0) for each in by_rank) for name in names}


def _operators(plan: Plan, model: Model, traced_us: Mapping[str, float]) -> tuple[Compared, ...]:
    """Every operator of the training steps, forward and backward; those that TensorFlow ran as one, as one."""
    planned = {op.name: op for op in plan.operators}
    group_of = _groups(model, traced_us)
    predicted: dict[str, float] = {}
    members: dict[str, list[str]] = {}
    for op in model.graph.step_operators:
        if op.name in planned and planned[op.name].time_us:
            group = UPDATES if op.type == VARIABLE else group_of.get(op.name, op.name)
            predicted[group] = predicted.get(group, 0.0) + planned[op.name].time_us
            members.setdefault(group, []).append(op.name)
    measured: dict[str, float] = {}
    for name, time_us in traced_us.items():
        ran_as = _group_of_event(name, group_of)
        if ran_as is not None:
            measured[ran_as] = measured.get(ran_as, 0.0) + time_us
    return tuple(
        Compared(
            group if group in (UPDATES, OTHERS) else " + ".join(members.get(group, [group])),
            predicted.get(group, 0.0),
            measured.get(group, 0.0),
        )
        for group in dict.fromkeys([*predicted, *measured])
    )


def _groups(model: Model, traced_us: Mapping[str, float]) -> dict[str, str]:
    """Operator name to the name under which TensorFlow ran it: its own, or that of an operator that takes its result."""
    groups: dict[str, str] = {}
    takers: dict[str, str] = {}
    for op in model.graph.step_operators:
        for _, tensor in op.operands:
            takers.setdefault(model.graph.producers[tensor.name].name, op.name)
    for op in reversed(model.graph.step_operators):
        ran_by_itself = op.name in traced_us or op.type in ALIASES or op.type in SOURCES
        groups[op.name] = op.name if ran_by_itself else groups.get(takers.get(op.name, ""), op.name)
    return groups


def _group_of_event(name: str, group_of: Mapping[str, str]) -> str | None:
    """None of what isn't compute: callbacks of collectives."""
    if "collective" in name.rpartition("/")[2]:
        return None
    gradient = _GRADIENT.match(name)
    operator = gradient["operator"] if gradient else name
    if operator in group_of:
        return group_of[operator]
    return UPDATES if "Apply" in name else OTHERS


def to_json(check: PlanCheck) -> dict[str, Any]:
    """The comparison as a value, for files."""

    def row(each: Compared) -> dict[str, Any]:
        return {"name": each.name, "predicted": each.predicted, "measured": each.measured, "count": each.count}

    return {
        "format": "tensoropt/check",
        "version": 1,
        "step_us": {**row(check.step), "steps": list(check.steps_us)},
        "compute_us": row(check.compute),
        "network_us": row(check.network),
        "waiting_us": check.waiting_us,
        "memory_bytes": {**row(check.memory), "ranks": list(check.memory_bytes)},
        "collectives_us": [row(each) for each in check.collectives],
        "operators_us": [row(each) for each in check.operators],
        "edges_us": [row(each) for each in check.edges],
    }
