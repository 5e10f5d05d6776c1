"""Find a plan in stages: cut the model where stages take equally long and little crosses, then search each stage.

Cuts are chosen by the operators' predicted times on a stage's devices, each split as it is fastest, and by the bytes that
cross. Each stage is then a model of its own, searched on its own devices, in micro-batches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ..common.errors import InputError, short
from ..common.memory_units import memory_text
from ..costs.model_costs import costing_of
from ..ir.graph import SOURCES, Operator
from ..profiling.hardware import Hardware
from ..program.schedule import ONE_FORWARD_ONE_BACKWARD, least_in_flight, makespan, pass_orders
from ..rules.registry import rule_of
from ..rules.rule import configs, interface_of
from ..sharding.model import Model
from ..sharding.stages import StageModel, Stages
from .find_frontier import ModelFrontier
from .request import Request, searched
from .staged_plan import PlannedStage, StagedPlan

FORWARD_SHARE = 1 / 3
"""The share of a pass's time that the forward pass takes: a backward pass computes two gradients for each product."""
MOST_MORE_IN_FLIGHT, WORTH_MEMORY = 2, 0.01
"""So many more micro-batches in flight are tried for each stage that follows, which hides what is on its way from one to the
next. They take memory, and so must save this share of a step."""
MICRO_BATCHES_PER_STAGE = 2
"""Without a number of micro-batches there are so many for each stage, where the batch can be divided so."""


def find_staged(request: Request, parallelism: int, n_stages: object, schedule: str | None) -> StagedPlan:
    """Return the fastest plan that was found in a number of stages, within the memory limit.

    Raises:
        InputError: the number of stages doesn't divide that of devices, the model can't be cut into so many, or a stage
            doesn't fit the memory limit.
    """
    count = _checked_stages(n_stages, parallelism)
    hardware, per_stage = request.hardware, parallelism // count
    n = request.micro_batches or _micro_batches(request.model, MICRO_BATCHES_PER_STAGE * count)
    if n == 1:
        raise InputError(f"stages={count} need several micro-batches, got micro_batches=1; give 2 or more")
    request.model.in_micro_batches(n)
    schedule = schedule or ONE_FORWARD_ONE_BACKWARD
    stages = balanced(request.model, hardware, count, per_stage, n)
    if request.force:
        raise InputError("force= and stages= can't be combined; leave one of the two")
    frontiers = [searched(replace(request, model=model, micro_batches=n), per_stage) for model in stages.models]
    transfers = _transfers(stages, hardware, per_stage, n)
    best = _scheduled(frontiers, schedule, n, least_in_flight(count, n), transfers, request.limit_bytes)
    for more in range(1, MOST_MORE_IN_FLIGHT + 1) if schedule == ONE_FORWARD_ONE_BACKWARD else ():
        in_flight = tuple(min(n, 1 + (count - 1 - stage) * (1 + more)) for stage in range(count))
        try:
            other = _scheduled(frontiers, schedule, n, in_flight, transfers, request.limit_bytes)
        except InputError:
            break  # so many don't fit
        if other.time_us < (1 - WORTH_MEMORY) * best.time_us:
            best = other
    time_us, times_us = best.time_us, best.times_us
    planned = tuple(
        PlannedStage(
            devices=tuple(range(number * per_stage, (number + 1) * per_stage)),
            last_operator=(*stages.cuts, "")[number],
            in_flight=most,
            plan=frontier.plan(point, "mini_time"),
            memory_bytes=n_bytes,
            idle_share=1 - times_us[number] * n / time_us,
        )
        for number, (most, frontier, (point, n_bytes)) in enumerate(
            zip(best.in_flight, frontiers, best.points, strict=True)
        )
    )
    return StagedPlan(
        stages=planned,
        schedule=schedule,
        micro_batches=n,
        time_us=time_us,
        model_digest=request.model.graph.digest,
        assumed=dict(request.assumed),
    )


class _Scheduled(NamedTuple):
    """A point of each stage's frontier and its bytes, the micro-batches in flight, and the times that follow.

    Attributes:
        times_us: for each stage, the time of both passes of a micro-batch.
    """

    points: list[tuple[int, int]]
    in_flight: tuple[int, ...]
    times_us: list[float]
    time_us: float


class _Transfers(NamedTuple):
    """The times that transfers between stages take, in microseconds; see :func:`.makespan`.

    Attributes:
        each: for each pair of neighbouring stages, of a micro-batch's tensors.
        first: for each stage, of what it receives before its first pass.
        last: for each stage, of what it sends back after its last pass.
    """

    each: list[float]
    first: list[float]
    last: list[float]


def _scheduled(
    frontiers: Sequence[ModelFrontier],
    schedule: str,
    n: int,
    in_flight: tuple[int, ...],
    transfers: _Transfers,
    limit_bytes: int | None,
) -> _Scheduled:
    """Return the fastest points that fit the memory limit with so many micro-batches in flight.

    Raises:
        InputError: a stage doesn't fit.
    """
    if schedule != ONE_FORWARD_ONE_BACKWARD:
        in_flight = (n,) * len(frontiers)
    points = [_fastest(frontier, most, limit_bytes) for frontier, most in zip(frontiers, in_flight, strict=True)]
    times_us = [frontier.points[point].time_us / n for frontier, (point, _) in zip(frontiers, points, strict=True)]
    forward, backward = ([share * each for each in times_us] for share in (FORWARD_SHARE, 1 - FORWARD_SHARE))
    time_us = makespan(pass_orders(schedule, n, in_flight), forward, backward, *transfers)
    return _Scheduled(points, in_flight, times_us, time_us)


def _transfers(stages: Stages, hardware: Hardware, per_stage: int, n_micro_batches: int) -> _Transfers:
    """Return how long what stages send each other takes on its way.

    Before its first pass a stage waits for what is sent once a step, and for the first micro-batch's rows of a table that is
    looked up ahead; after its last pass the gradients of these are still on their way. The rows of other micro-batches share
    the link with what these send.
    """
    graph = stages.whole.in_micro_batches(n_micro_batches).graph
    forms = graph.micro_batching.forms if graph.micro_batching is not None else {}
    per_us = _bytes_per_us(hardware, per_stage)
    each, first, last = [0.0] * (stages.n - 1), [0.0] * stages.n, [0.0] * stages.n
    for crossing in stages.crossings:
        time_us = graph.tensors[crossing.tensor].mem_bytes / per_us
        if crossing.tensor in forms:
            for stage in range(*sorted((crossing.source, crossing.target))):
                each[stage] += time_us
        if crossing.is_ahead or crossing.tensor not in forms:
            first[crossing.target] += time_us
            last[crossing.target] += time_us if crossing.has_gradient else 0.0
    return _Transfers(each, first, last)


def _checked_stages(given: object, parallelism: int) -> int:
    """Return the number of stages that a user gave.

    Raises:
        InputError: it isn't a whole number from 2 up that divides the number of devices.
    """
    if isinstance(given, bool) or not isinstance(given, int) or given < 2:
        raise InputError(f"stages takes a whole number from 2 up, or 1 for none, got {short(given)}")
    if parallelism % given:
        raise InputError(
            f"{given} stages on {parallelism} devices: each takes equally many; give a divisor of {parallelism}"
        )
    return given


def _micro_batches(model: Model, wanted: int) -> int:
    """Return the largest number of micro-batches up to ``wanted`` in which the model can be trained."""
    for n in range(wanted, 1, -1):
        try:
            model.in_micro_batches(n)
        except InputError:
            continue
        return n
    model.in_micro_batches(2)  # says why not
    return 1


def _fastest(frontier: ModelFrontier, in_flight: int, limit_bytes: int | None) -> tuple[int, int]:
    """Return the fastest point of a stage that fits the memory limit with its micro-batches in flight, and its bytes.

    Raises:
        InputError: none fits.
    """
    for point in reversed(range(len(frontier.points))):
        n_bytes = needed_bytes(frontier, point, in_flight)
        if limit_bytes is None or n_bytes <= limit_bytes:
            return point, n_bytes
    least = min(needed_bytes(frontier, point, in_flight) for point in range(len(frontier.points)))
    raise InputError(
        f"a stage needs {memory_text(least)} per device at least, above the limit of "
        f"{memory_text(limit_bytes or 0)}; ask for more stages, more micro-batches or more memory"
    )


def needed_bytes(frontier: ModelFrontier, point: int, in_flight: int) -> int:
    """Return the peak of a stage: that of one micro-batch, and what the others in flight save for the backward pass.

    Rows of the whole batch that it looks up ahead are held twice, whole and cut, and so are their gradients later.
    """
    of_one = frontier.needed_bytes(point) + (in_flight - 1) * saved_bytes(frontier, point)
    return of_one + 2 * _ahead_bytes(frontier.model)


def _ahead_bytes(model: Model) -> int:
    """Return the bytes of all rows that a stage looks up for others."""
    assert isinstance(model, StageModel)
    ahead = {each.tensor for each in model.stages.crossings if each.is_ahead and each.source == model.index}
    return sum(model.stages.whole.graph.tensors[name].mem_bytes for name in ahead)


def saved_bytes(frontier: ModelFrontier, point: int) -> int:
    """Return the bytes that a micro-batch saves for its backward pass, at most: all that isn't held for the whole step."""
    graph, record = frontier.model.graph, frontier.plan(point)
    held = sum(op.memory_bytes for op in record.operators if graph.n_runs(_result(graph.operators[op.name])) == 1)
    return max(0, record.memory_bytes - held)


def _result(op: Operator) -> str:
    return op.outputs[0].name if op.outputs else ""


# Where to cut


@dataclass(frozen=True)
class _Cuts:
    """The places where a model may be cut: after each operator, in program order.

    Attributes:
        names: the operators.
        time_us: the time of all operators up to each of them.
        crossing_us: the time that it takes to send what crosses there, forward and back.
        trained: how many variables are used up to each of them.
    """

    names: Sequence[str]
    time_us: Sequence[float]
    crossing_us: Sequence[float]
    trained: Sequence[int]


def balanced(model: Model, hardware: Hardware, n_stages: int, parallelism: int, n_micro_batches: int) -> Stages:
    """Return a model cut such that the longest stage, with what it sends, takes the least time.

    Raises:
        InputError: there are fewer places to cut at than stages need.
    """
    cuts = _cuts(model, hardware, parallelism, n_micro_batches)
    n = len(cuts.names)
    best: list[list[float]] = [[math.inf] * n for _ in range(n_stages)]
    before: list[list[int]] = [[-1] * n for _ in range(n_stages)]
    for end in range(n):
        if cuts.trained[end]:
            best[0][end] = cuts.time_us[end] + cuts.crossing_us[end]
    for stage in range(1, n_stages):
        for end in range(n):
            for start in range(end):
                if cuts.trained[end] == cuts.trained[start]:
                    continue
                own = cuts.time_us[end] - cuts.time_us[start] + cuts.crossing_us[start] + cuts.crossing_us[end]
                longest = max(best[stage - 1][start], own)
                if longest < best[stage][end]:
                    best[stage][end], before[stage][end] = longest, start
    if math.isinf(best[-1][-1]):
        raise InputError(
            f"the model can't be cut into {n_stages} stages: each needs a variable that is trained; ask for fewer stages"
        )
    at = n - 1
    found: list[str] = []
    for stage in range(n_stages - 1, 0, -1):
        at = before[stage][at]
        found.insert(0, cuts.names[at])
    return Stages(model, tuple(found))


def _cuts(model: Model, hardware: Hardware, parallelism: int, n_micro_batches: int) -> _Cuts:
    mesh = hardware.mesh(parallelism)
    sliced = model.in_micro_batches(n_micro_batches)
    graph, costing = sliced.graph, costing_of(sliced, hardware, mesh)
    in_step = {op.name for op in graph.step_operators}
    last_use = {
        tensor.name: number
        for number, op in enumerate(graph.operators.values())
        if op.name in in_step
        for _, tensor in op.operands
    }
    per_us = _bytes_per_us(hardware, parallelism)
    names, times, crossings, trained = [], [], [], []
    total_us = 0.0
    alive: dict[str, int] = {}
    used: set[str] = set()
    for number, op in enumerate(graph.operators.values()):
        if op.name not in in_step or op.type in SOURCES or op.updates is not None:
            continue
        rule = rule_of(op)
        total_us += min(costing.compute_time_ns(op, rule, c, interface_of(rule, c)) for c in configs(rule, mesh)) / 1e3
        used.update(t.name for _, t in op.operands if graph.producers[t.name].is_trainable)
        alive.update({t.name: t.mem_bytes for t in op.outputs if last_use.get(t.name, -1) > number})
        alive = {name: n_bytes for name, n_bytes in alive.items() if last_use[name] > number}
        names.append(op.name)
        times.append(total_us)
        crossings.append(2 * sum(alive.values()) / per_us)
        trained.append(len(used))
    return _Cuts(names, times, crossings, trained)


def _bytes_per_us(hardware: Hardware, parallelism: int) -> float:
    """Return how fast the devices of a stage send to the next one, by the slowest link."""
    speeds = [level.bytes_per_s for level in hardware.levels if level.count > 1]
    return parallelism * min(speeds, default=hardware.device.memory_bytes_per_s) / 1e6
