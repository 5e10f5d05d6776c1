"""The three options of the TensorOpt paper's section 4.1: mini_time, mini_parallelism, profiling."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from numbers import Integral
from typing import Any

from .choices import ACCUMULATE, checked_choices
from .curve import Curve, CurvePoint
from .dump import dump
from .errors import InputError, short
from .forcing import Force
from .frontier import Model, ModelFrontier, Progress, find_frontier
from .ft import Budget, InfeasibleError
from .ir import PLACEHOLDER
from .liveness import Peak
from .memory_limit import default_limit, memory_text, parse_memory
from .micro_batches import checked_count
from .objectives import MEMORY_TIME, Objectives
from .plan import Plan
from .planning import plan_of
from .profiling.hardware import Hardware, LinkLevel
from .profiling.work import Measured

logger = logging.getLogger("tensoropt")
OPTIONS = ("mini_time", "mini_parallelism", "profiling")
MOST_DEVICES_TRIED = 16
OF_CURVE = Budget(seconds=1.0, gap=0.01)


@dataclasses.dataclass(frozen=True)
class Request:
    """What is asked of a search.

    Attributes:
        limit_bytes: per device; None without a limit.
        force: degrees of factors, by operator.
        assumed: what a plan records of its assumptions.
        algorithm: of the search.
        space: that is searched; None to go by the size of the full one.
        objectives: the two costs to search.
        budget: how hard to search; None for the default, which is less for each point of a curve.
        progress: is told (stage, done, total).
        measured: operators that were timed, by the key of their work.
        without: choices that strategies don't have, see :mod:`.choices`.
        micro_batches: in how many slices a step takes its batch; None to choose, where the memory limit asks for it.
    """

    model: Model
    hardware: Hardware
    limit_bytes: int | None
    force: Force = dataclasses.field(default_factory=dict)
    assumed: dict[str, object] = dataclasses.field(default_factory=dict)
    algorithm: str = "ft-ldp"
    progress: Progress | None = None
    space: str | None = None
    objectives: Objectives = MEMORY_TIME
    budget: Budget | None = None
    measured: Mapping[str, Measured] = dataclasses.field(default_factory=dict)
    without: frozenset[str] = frozenset()
    micro_batches: int | None = None


def check_option(option: object) -> None:
    """Refuse what is none of the options.

    Raises:
        InputError: it isn't.
    """
    if option not in OPTIONS:
        raise InputError(f"unknown option {short(option)}; expected one of {', '.join(map(repr, OPTIONS))}")


def request_of(
    model: Model,
    hardware: Hardware,
    memory: int | str | None,
    force: object,
    without: object = (),
    micro_batches: object = None,
) -> Request:
    """What a user asks of a search, checked.

    Raises:
        InputError: the memory or the forced degrees are none, there is no such choice to do without, or the model can't be
            trained in so many micro-batches.
    """
    limit = default_limit(hardware.device.memory_bytes) if memory is None else parse_memory(memory)
    forced, left_out = checked_force(force), checked_choices(without)
    return Request(
        model,
        hardware,
        limit,
        forced,
        assumptions(hardware),
        without=left_out,
        micro_batches=checked_slices(model, micro_batches, left_out),
    )


def checked_slices(model: Model, asked: object, without: Container[str]) -> int | None:
    """A number of micro-batches that a user asked for, if any.

    Raises:
        InputError: it is no number of micro-batches, or none that the model can be trained in.
    """
    if asked is None:
        return None
    count = checked_count(asked)
    if count > 1 and ACCUMULATE in without:
        raise InputError(f"micro_batches={count} is asked for, and to do without '{ACCUMULATE}'; leave one of the two")
    model.in_slices(count)
    return count


def find(option: str, request: Request, parallelism: int | Sequence[int] | None) -> Plan | Curve:
    """One of the options, for the parallelism asked for or all that the hardware has.

    Raises:
        InputError: nothing fits, or ``mini_time`` is asked for several parallelisms.
    """
    available = request.hardware.parallelisms()
    counts = list(available) if parallelism is None else parallelisms(parallelism)
    if option == "profiling":
        return profiling(request, counts)
    if option == "mini_parallelism":
        plan = mini_parallelism(request, counts)
    elif parallelism is None:
        plan = mini_time(request, max(available))
    elif len(counts) == 1:
        plan = mini_time(request, counts[0])
    else:
        raise InputError(
            f"option 'mini_time' takes one parallelism, got {counts}; option 'profiling' compares several, and "
            "'mini_parallelism' takes the fewest devices that fit"
        )
    assert plan.frontier is not None
    dump("frontier", plan.frontier.table(plan.point), plan.frontier.summary())
    dump("plan", plan)
    return plan


def mini_time(request: Request, parallelism: int) -> Plan:
    """Least time within the memory limit at one parallelism.

    Raises:
        InputError: nothing fits; the message gives the least memory, and the parallelism that would do.
    """
    frontier = _frontier(request, parallelism)
    point = frontier.fastest_within(request.limit_bytes)
    tried = [frontier]
    if request.micro_batches is None and ACCUMULATE not in request.without:
        for other in _in_more_slices(request, frontier, point):
            tried.append(other)
            found = other.fastest_within(request.limit_bytes)
            if found is not None and (point is None or _time_ns(other, found) < _time_ns(frontier, point)):
                frontier, point = other, found
            elif point is not None:
                break
    if point is None:
        raise InputError(_nothing_fits(request, tried))
    return _unrolled(frontier, point, "mini_time", request)


def _in_more_slices(request: Request, whole: ModelFrontier, point: int | None) -> Iterator[ModelFrontier]:
    """The frontiers in 2, 4, 8, ... micro-batches, where they can pay: where the limit keeps out what would be faster.

    More slices take no less time than fewer, as far as memory allows both; so without such a limit nothing is searched.
    """
    if point is not None and point == whole.fastest_within(None):
        return
    n, least = 2, whole.least_mem_bytes
    while True:
        try:
            request.model.in_slices(n)
        except InputError:
            return
        found = _frontier(dataclasses.replace(request, micro_batches=n), whole.mesh.n_devices)
        if found.least_mem_bytes >= least:
            return
        yield found
        n, least = 2 * n, found.least_mem_bytes


def _time_ns(frontier: ModelFrontier, point: int) -> int:
    return int(frontier.costs.time_ns[point])


def mini_parallelism(request: Request, parallelisms: Sequence[int]) -> Plan:
    """The fewest devices that fit; of their plans the fastest that fits.

    Raises:
        InputError: nothing fits on any.
    """
    tried = []
    for parallelism in sorted(parallelisms):
        frontier = _frontier(request, parallelism)
        point = frontier.fastest_within(request.limit_bytes)
        if point is not None:
            return _unrolled(frontier, point, "mini_parallelism", request)
        tried.append(frontier)
    raise InputError(_nothing_fits(request, tried))


def profiling(request: Request, parallelisms: Sequence[int]) -> Curve:
    """Least time for each parallelism, without running."""
    batch = batch_of(request.model)
    request = dataclasses.replace(request, budget=request.budget or OF_CURVE)
    points = []
    for parallelism in parallelisms:
        frontier = _frontier(request, parallelism)
        point, exact = frontier.fastest_within(request.limit_bytes), frontier.found.exact
        if point is None:
            points.append(CurvePoint(parallelism, False, frontier.least_mem_bytes, None, None, exact))
            continue
        memory_bytes, time_us = frontier.points[point].memory_bytes, frontier.points[point].time_us
        rate = batch / time_us * 1e6 if batch else None
        points.append(CurvePoint(parallelism, True, memory_bytes, time_us, rate, exact))
    return Curve(tuple(points), request.hardware.name, batch, request.limit_bytes, request.assumed)


def parallelisms(asked: object) -> list[int]:
    """What a user gave as ``parallelism``: a number of devices or several.

    Raises:
        InputError: it isn't.
    """
    counts: list[Any] = [asked] if isinstance(asked, str) or not isinstance(asked, Iterable) else list(asked)
    if not counts:
        raise InputError("parallelism is an empty list; name at least one number of devices")
    for count in counts:
        if not isinstance(count, Integral) or isinstance(count, bool) or count < 1:
            raise InputError(f"parallelism must be a positive number of devices, or a list of such, got {short(asked)}")
    return [int(count) for count in counts]


def checked_force(asked: object) -> Force:
    """What a user gave as ``force``; whether the model has such operators and factors is for the search to say.

    Raises:
        InputError: it isn't degrees by factor by operator.
    """
    if asked is None:
        return {}
    if not isinstance(asked, Mapping) or not all(isinstance(pinned, Mapping) for pinned in asked.values()):
        raise InputError(
            f"force takes degrees by factor by operator, such as {{'MatMul_1': {{'m': 2}}}}, got {short(asked)}"
        )
    for name, pinned in asked.items():
        for factor, degree in pinned.items():
            if not isinstance(degree, Integral) or isinstance(degree, bool) or degree < 1:
                raise InputError(
                    f"force takes a positive number of blocks for {name}'s factor '{factor}', got {short(degree)}"
                )
    return {str(name): {str(factor): int(degree) for factor, degree in pinned.items()} for name, pinned in asked.items()}


def assumptions(hardware: Hardware) -> dict[str, object]:
    """What a plan for this hardware records of what its costs rest on."""
    import tensorflow as tf

    return {
        "hardware": hardware.name,
        "device": hardware.device.name,
        "tensorflow": tf.__version__,
        "provenance": dict(hardware.provenance),
    }


def batch_of(model: Model) -> int | None:
    """The samples per step: the leading extent that the placeholders of the training steps share."""
    extents = {
        op.result.shape[0]
        for op in model.graph.step_operators
        if op.type == PLACEHOLDER and op.result.shape
    }
    return extents.pop() if len(extents) == 1 else None


def _unrolled(frontier: ModelFrontier, point: int, option: str, request: Request) -> Plan:
    """The plan of a point, with how long it took to make among its frontier's stages."""
    started = time.perf_counter()
    frontier = dataclasses.replace(frontier, assumed=request.assumed)
    plan = plan_of(frontier, point, option, request.assumed)
    seconds = {**frontier.seconds_by_stage, "unroll": time.perf_counter() - started}
    if request.limit_bytes is not None:
        _warn_of_peak(plan, frontier.peak(point), request.limit_bytes)
    return dataclasses.replace(plan, frontier=dataclasses.replace(frontier, seconds_by_stage=seconds))


def _warn_of_peak(plan: Plan, peak: Peak, limit_bytes: int) -> None:
    """Say where a step takes more than a limit that what it keeps is within."""
    if peak.n_bytes > limit_bytes:
        logger.warning(
            "the plan keeps %s per device, but at its peak a step takes %s, more than memory=%s; ask for less to be within",
            memory_text(plan.memory_bytes), memory_text(peak.n_bytes), memory_text(limit_bytes),
        )


def _frontier(request: Request, parallelism: int) -> ModelFrontier:
    try:
        return find_frontier(
            request.model,
            request.hardware,
            parallelism,
            request.force,
            request.algorithm,
            request.progress,
            request.space,
            request.objectives,
            request.budget,
            request.measured,
            request.without,
            request.micro_batches or 1,
        )
    except InfeasibleError as error:
        raise InputError(f"no strategy on {parallelism} devices does what force asks: {error}") from error


def _nothing_fits(request: Request, tried: Sequence[ModelFrontier]) -> str:
    assert request.limit_bytes is not None
    least = min(tried, key=lambda frontier: frontier.least_mem_bytes)
    n_devices, least_bytes = least.mesh.n_devices, least.least_mem_bytes
    told = f"no plan fits {request.limit_bytes:,} bytes ({memory_text(request.limit_bytes)}) per device: the least on "
    told += f"{n_devices} device{'s' * (n_devices > 1)} is {least_bytes:,} bytes ({memory_text(least_bytes)}) per device"
    enough = _parallelism_that_fits(request, n_devices)
    if enough is None:
        return f"{told}, and up to {MOST_DEVICES_TRIED} devices aren't enough; raise memory= or make the batch smaller"
    return f"{told}; use {enough} devices, or memory={least_bytes} or more"


def _parallelism_that_fits(request: Request, beyond: int) -> int | None:
    """The first larger parallelism within the limit; beyond the hardware, on more devices or machines of the same kind."""
    known = [count for count in request.hardware.parallelisms() if count > beyond]
    largest = max(request.hardware.parallelisms())
    doubled = [largest * 2**i for i in range(1, 5)]
    for count in [*known, *(count for count in doubled if count > beyond)]:
        if count > MOST_DEVICES_TRIED:
            return None
        hardware = request.hardware if count in known else _enlarged(request.hardware, count)
        frontier = _frontier(dataclasses.replace(request, hardware=hardware, force={}), count)
        if frontier.fastest_within(request.limit_bytes) is not None:
            return count
    return None


def _enlarged(hardware: Hardware, n_devices: int) -> Hardware:
    """The same devices in larger number: more machines where there are several, else more devices in one."""
    index = next((i for i, level in enumerate(hardware.levels) if level.count > 1), len(hardware.levels) - 1)
    grown = hardware.levels[index].count * n_devices // hardware.n_devices
    levels = list(hardware.levels)
    level = levels[index]
    levels[index] = LinkLevel(level.name, grown, level.latency_us, level.bytes_per_s)
    return Hardware(hardware.name, hardware.device, tuple(levels), provenance=hardware.provenance)
