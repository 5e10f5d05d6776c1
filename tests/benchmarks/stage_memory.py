"""Compare the predicted peaks of plans in stages with what their ranks hold, by schedule.

    TF_ENABLE_ONEDNN_OPTS=1 tensoropt run -n 2 tests/benchmarks/stage_memory.py [--models transformer,vgg16,rnn]
        [--stages 2] [--micro-batches 4] [--schedules 1f1b,zero-bubble,gpipe]

Of each schedule the point of least memory runs and the fastest one, where these differ; one thread a rank. Measured is the
largest of a stage's ranks: what TensorFlow's allocator reports at the peak of a step, with variables and slots, and the
arrays that messages and collectives arrive in and leave from. What waits inside of MPI nobody can see: ``seen`` is the
prediction with the messages of one micro-batch alone, as those before have left. Other work on the machine matters little.
"""

from __future__ import annotations

import argparse
import os
import time
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")

import numpy as np
from cost_error import MODELS
from tabulate import tabulate

from tensoropt import zoo
from tensoropt.ft import Budget
from tensoropt.lowering.resharding.backends import CommunicatingBackend, TimedBackend
from tensoropt.lowering.resharding.reshard import Resharder
from tensoropt.plan.find_staged import find_with_stages
from tensoropt.plan.plan import Plan
from tensoropt.plan.request import Request
from tensoropt.plan.stage_memory import messages_of, needed_bytes
from tensoropt.plan.staged_frontier_points import PlanPoint
from tensoropt.profiling.hardware import Hardware
from tensoropt.profiling.trace import MemoryEvent, traced_step
from tensoropt.program.pass_memory import Messages
from tensoropt.program.schedule import SCHEDULES
from tensoropt.reschedule.cross_mesh import CrossMesh, TransferPart
from tensoropt.runtime.collectives.timed import TimedCommunicator
from tensoropt.runtime.execute import MPI
from tensoropt.runtime.execution import execute
from tensoropt.runtime.local_hardware import hardware_here, prepared_processes
from tensoropt.runtime.pipeline.messages import MpiTransfers
from tensoropt.runtime.pipeline.transfers import Message
from tensoropt.runtime.ranks import Processes
from tensoropt.runtime.synthetic_batch import WARM_STEPS, synthetic_step
from tensoropt.tools.offline import record
from tensoropt.tools.plan_check import TRACED_STEPS, _state_bytes
from tensoropt.tools.recorded import Recorded

EVENTS: list[MemoryEvent] = []
"""Allocations and releases of the arrays in which messages between stages are packed and received, since it was cleared."""


def followed(array: np.ndarray) -> np.ndarray:
    """Record an array's memory, and its release once nothing refers to it; return the array."""
    address = array.ctypes.data
    EVENTS.append(MemoryEvent(time.time_ns() * 1000, address, array.nbytes))
    weakref.finalize(array, lambda: EVENTS.append(MemoryEvent(time.time_ns() * 1000, address, 0)))
    return array


@dataclass(frozen=True)
class FollowedWay(CrossMesh):
    """A way whose arrays are recorded."""

    def pack(self, part: TransferPart, shard: np.ndarray) -> np.ndarray:
        return followed(CrossMesh.pack(self, part, shard))

    def unpack(self, rank: int, received: list[np.ndarray]) -> np.ndarray:
        return followed(CrossMesh.unpack(self, rank, [followed(array) for array in received]))


@dataclass
class FollowedTransfers(MpiTransfers):
    """Transfers whose arrays are recorded."""

    def send(self, message: Message, values: list, resharder: Resharder) -> None:
        MpiTransfers.send(self, _on_followed_way(message), values, resharder)

    def receive(self, message: Message, resharder: Resharder, after: Sequence = ()) -> list:
        return MpiTransfers.receive(self, _on_followed_way(message), resharder, after)


def _on_followed_way(message: Message) -> Message:
    way = FollowedWay(**{each.name: getattr(message.way, each.name) for each in fields(CrossMesh)})
    return replace(message, way=way)


def measured_bytes(plan: Plan, recorded: Recorded, processes: Processes) -> list[int]:
    """Return for each stage the most bytes that one of its ranks holds in a step; every rank must call it."""
    engine = execute(plan, recorded.model, recorded.first_values(), processes, MPI).engine
    ((stage, own),) = engine.engines.items()
    made = engine.transfers

    def transfers() -> FollowedTransfers:
        plain = made()
        return FollowedTransfers(**{each.name: getattr(plain, each.name) for each in fields(MpiTransfers)})

    engine.transfers = transfers
    communicators = []
    if isinstance(own.backend, CommunicatingBackend):
        chains = [own.backend, *([] if own.backend.overlappable is None else [own.backend.overlappable])]
        communicators = [TimedCommunicator(each.communicator) for each in chains]
        timed = [
            TimedBackend(each.mesh, each.rank, communicator, each.waiting)
            for each, communicator in zip(chains, communicators, strict=True)
        ]
        own.backend = replace(timed[0], overlappable=timed[1]) if timed[1:] else timed[0]
    fetch, feeds = synthetic_step(recorded.model.graph)
    for _ in range(WARM_STEPS):
        engine.run(fetch, feeds)
    for communicator in communicators:
        communicator.take_memory()
        communicator.follows_memory = True

    def of_others() -> Iterator[MemoryEvent]:
        yield from [event for communicator in communicators for event in communicator.take_memory()]
        yield from EVENTS

    peaks = []
    for _ in range(TRACED_STEPS):
        processes.barrier()
        EVENTS.clear()
        trace = traced_step(lambda: engine.run(fetch, feeds), of_others)
        assert trace.reports_memory, "TensorFlow reports no allocations here; set TF_ENABLE_ONEDNN_OPTS=1"
        peaks.append(trace.peak_bytes)
    workspace = sum(communicator.workspace_bytes for communicator in communicators)
    found = processes.gather((stage, sorted(peaks)[TRACED_STEPS // 2] + _state_bytes(own) + workspace))
    return [max(n_bytes for at, n_bytes in found if at == number) for number in range(len(plan.stages))]


@dataclass(frozen=True, slots=True)
class SeenMessages(Messages):
    """Messages of which those of one micro-batch alone wait where they can be seen."""

    def waiting_bytes(self, in_flight: int, others: int) -> int:
        of_one = Messages(self.sent, tuple((n_bytes, min(most, in_flight + 1)) for n_bytes, most in self.received))
        return of_one.waiting_bytes(in_flight, min(1, others))


def seen_bytes(point: PlanPoint) -> list[int]:
    """Return for each stage the predicted bytes without messages that wait inside of MPI."""
    order, found = point.order, []
    for stage, (frontier, number) in enumerate(zip(point.searched.frontiers, point.numbers, strict=True)):
        messages = messages_of(frontier, number, stage, order)
        seen = SeenMessages(messages.sent, messages.received)
        found.append(needed_bytes(frontier, number, stage, order, seen))
    return found


def chosen(
    recorded: Recorded, hardware: Hardware, n_devices: int, n_stages: int, n: int, schedule: str
) -> list[tuple[str, dict, list[int]]]:
    """Return the plans that are run, with what each stage is predicted to hold that can be seen."""
    request = Request(recorded.model, hardware, None, micro_batches=n, budget=Budget(seconds=0.0))
    frontier = find_with_stages(request, n_devices, (n_stages,), schedule)
    found = []
    for kind, number in {"fastest": len(frontier) - 1, "least": 0}.items():
        plan, point = frontier.plan(number), frontier.points_of[number]
        assert isinstance(point, PlanPoint)
        if number or not found or len(frontier) > 1:
            found.append((kind, plan.to_json(), seen_bytes(point)))
    return found


def rows_of(
    name: str, hardware: Hardware, processes: Processes, n_stages: int, n: int, schedule: str
) -> list[list[object]]:
    """Return a line for each stage of each plan; every rank must call it."""
    function, sizes = MODELS[name]
    recorded = record(lambda: getattr(zoo, function)(**sizes), name, "momentum")
    plans = []
    if processes.rank == 0:
        plans = chosen(recorded, hardware, processes.size, n_stages, n, schedule)
    rows: list[list[object]] = []
    for kind, value, all_seen in processes.broadcast(plans):
        plan = Plan.from_json(value)
        measured = measured_bytes(plan, recorded, processes)
        for number, (stage, seen, n_bytes) in enumerate(zip(plan.stages, all_seen, measured, strict=True)):
            told = [stage.peak_bytes, seen, n_bytes]
            off = [f"{each / n_bytes - 1:+.1%}" for each in told[:2]]
            counts = f"{stage.in_flight} in flight, {stage.deferred} deferred"
            rows.append([name, schedule, kind, number, counts, *(f"{each / 1e6:.2f}" for each in told), *off])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="transformer,vgg16,rnn")
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--micro-batches", type=int, default=4)
    parser.add_argument("--schedules", default=",".join(SCHEDULES))
    given = parser.parse_args()
    processes = prepared_processes()
    hardware = hardware_here(processes)
    headers = ["model", "schedule", "plan", "stage", "micro-batches", "predicted MB", "seen MB", "measured MB", "", "seen"]
    for name in given.models.split(","):
        for schedule in given.schedules.split(","):
            rows = rows_of(name, hardware, processes, given.stages, given.micro_batches, schedule)
            if processes.rank == 0:
                print(tabulate(rows, headers, disable_numparse=True), flush=True)


if __name__ == "__main__":
    main()
