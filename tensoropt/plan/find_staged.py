"""Find a plan in stages: cut the model (:mod:`.cuts`), then search each stage as a model of its own, in micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from ..common.errors import InputError, short
from ..common.memory_units import memory_text
from ..ir.graph import Operator
from ..program.schedule import ONE_FORWARD_ONE_BACKWARD, tried_in_flight
from ..sharding.model import Model
from ..sharding.stages import StageModel
from .cuts import balanced
from .find_frontier import ModelFrontier
from .request import Request, searched
from .stage_times import OperatorTimes, PassTimes, Transfers, beside, step_us, transfers, works
from .staged_plan import PlannedStage, StagedPlan

WORTH_MEMORY = 0.01
"""More micro-batches in flight take memory, and so must save this share of a step."""
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
    times = OperatorTimes(request.model.in_micro_batches(n), hardware, hardware.mesh(per_stage))
    stages = balanced(request.model, hardware, count, per_stage, n)
    if request.force:
        raise InputError("force= and stages= can't be combined; leave one of the two")
    frontiers = [searched(replace(request, model=model, micro_batches=n), per_stage) for model in stages.models]
    predicted = _Predicted(
        works(stages, times), beside(stages, hardware, per_stage, times), transfers(stages, hardware, per_stage, n)
    )
    best: _Scheduled | None = None
    for in_flight in tried_in_flight(count, n) if schedule == ONE_FORWARD_ONE_BACKWARD else [(n,) * count]:
        try:
            other = _scheduled(frontiers, schedule, n, in_flight, predicted, request.limit_bytes)
        except InputError:
            if best is None:
                raise
            break  # so many don't fit
        if best is None or other.time_us < (1 - WORTH_MEMORY) * best.time_us:
            best = other
    assert best is not None
    time_us, times_us = best.time_us, best.times_us
    planned = tuple(
        PlannedStage(
            devices=tuple(range(number * per_stage, (number + 1) * per_stage)),
            last_operator=(*stages.cuts, "")[number],
            in_flight=most,
            plan=frontier.plan(point, "mini_time"),
            memory_bytes=n_bytes,
            idle_share=1 - times_us[number] / time_us,
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
        times_us: for each stage, the time of all that it does in a step.
    """

    points: list[tuple[int, int]]
    in_flight: tuple[int, ...]
    times_us: list[float]
    time_us: float


class _Predicted(NamedTuple):
    """What the times of stages follow from, whatever the points: see :mod:`.stage_times`."""

    works: list[PassTimes]
    beside: list[PassTimes]
    transfers: Transfers


def _scheduled(
    frontiers: Sequence[ModelFrontier],
    schedule: str,
    n: int,
    in_flight: tuple[int, ...],
    predicted: _Predicted,
    limit_bytes: int | None,
) -> _Scheduled:
    """Return the fastest points that fit the memory limit with so many micro-batches in flight.

    Raises:
        InputError: a stage doesn't fit.
    """
    points = [_fastest(frontier, most, limit_bytes) for frontier, most in zip(frontiers, in_flight, strict=True)]
    searched_us = [frontier.points[point].time_us for frontier, (point, _) in zip(frontiers, points, strict=True)]
    times = [
        work.scaled(time_us / work.total(n)) + other
        for work, other, time_us in zip(predicted.works, predicted.beside, searched_us, strict=True)
    ]
    time_us = step_us(times, predicted.transfers, schedule, n, in_flight)
    return _Scheduled(points, in_flight, [each.total(n) for each in times], time_us)


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
