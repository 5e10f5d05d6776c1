"""Answer the three options of the TensorOpt paper's section 4.1: mini_time, mini_parallelism, profiling."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any

from ..common.dump import dump
from ..common.errors import InputError, short
from ..common.memory_units import default_limit, parse_memory
from ..profiling.hardware import Hardware
from ..search.problem.choices import ACCUMULATE, REMAT, REUSE, checked_choices
from ..sharding.constraints import Force
from ..sharding.micro_batches import checked_count
from ..sharding.model import Model
from .find_frontier import ModelFrontier
from .infeasible import least_needed, nothing_fits, time_for_more
from .placement import by_operator, split_force
from .plan import Plan
from .request import OF_CURVE, Request, fastest_that_fits
from .scaling_curve import Curve, CurvePoint
from .staged_frontier import StagedFrontier
from .stages_for_memory import frontier_in_stages
from .stages_that_pay import frontier_that_pays, hint_of_stages
from .unsplit import unsplit_if_as_fast

OPTIONS = ("mini_time", "mini_parallelism", "profiling")

def check_option(option: object) -> None:
    """Check that an option that a user named exists.

    Raises:
        InputError: there is no such option.
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
    """Return the request that a user's arguments describe, after checking them.

    Args:
        memory: the memory limit per device; None for the default limit of the hardware's device.
        force: degrees by factor by operator, and the devices that operators are placed on.
        without: the choices that strategies must not use.
        micro_batches: the number of micro-batches; None leaves it open.

    Raises:
        InputError: ``memory`` or ``force`` is malformed, ``without`` names an unknown choice, or the model can't be trained
            in so many micro-batches.
    """
    limit = limit_of(memory, hardware)
    degrees, placed = split_force(force)
    forced, left_out = checked_force(degrees), checked_choices(without)
    slices = checked_micro_batches(model, micro_batches, left_out)
    if model.graph.is_sequential:
        # What a later pass computes again would have to be told from what the first one does.
        left_out |= {REUSE, REMAT, ACCUMULATE}
    return Request(
        model,
        hardware,
        limit,
        forced,
        assumptions(hardware, model),
        without=left_out,
        micro_batches=slices,
        placed={**model.placed, **by_operator(model.graph, placed)},
    )


def limit_of(memory: int | str | None, hardware: Hardware) -> int:
    """Return the memory limit per device in bytes: the given one, or the default limit of the hardware's device.

    Raises:
        InputError: ``memory`` is malformed.
    """
    return default_limit(hardware.device.memory_bytes) if memory is None else parse_memory(memory)


def checked_micro_batches(model: Model, requested: object, without: Container[str]) -> int | None:
    """Return the number of micro-batches that a user asked for, after checking it; None if they asked for none.

    Args:
        without: the choices that strategies must not use.

    Raises:
        InputError: it isn't a valid number, the model can't be trained in so many micro-batches, or ``without`` excludes
            micro-batches.
    """
    if requested is None:
        return None
    count = checked_count(requested)
    if count > 1 and ACCUMULATE in without:
        raise InputError(f"micro_batches={count} is asked for, and to do without '{ACCUMULATE}'; leave one of the two")
    model.in_micro_batches(count)
    return count


def find_answer(option: str, request: Request, parallelism: int | Sequence[int] | None) -> Plan | Curve:
    """Return the answer to one of the options: a plan, or for ``profiling`` a curve.

    Args:
        option: one of ``OPTIONS``.
        parallelism: a number of devices, or several. None stands for all parallelisms of the hardware, and for its largest
            with ``mini_time``.

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
    frontier = plan.frontier
    assert frontier is not None
    # The peaks in the table are computed for it, which takes a third of the search's time.
    dump("frontier", lambda: frontier.table(plan.point), frontier.summary)
    dump("plan", plan)
    return plan


def mini_time(request: Request, parallelism: int) -> Plan:
    """Return the plan of least time within the memory limit at one parallelism.

    It has stages only if the request allows them, and nothing else fits or they are predicted to pay.

    Raises:
        InputError: nothing fits; the message gives the least memory that is needed, and suggests what would fit.
    """
    started = time.monotonic()
    best, tried = fastest_that_fits(request, parallelism)
    if best is None:
        in_stages = frontier_in_stages(request, parallelism, tried)
        plan = _within(in_stages, "mini_time", request)
        if plan is None:
            raise InputError(nothing_fits(request, tried, started, in_stages))
        return plan
    faster = _within(frontier_that_pays(request, parallelism, best, tried), "mini_time", request)
    if faster is not None:
        return faster
    plan = unsplit_if_as_fast(_unrolled(*best, "mini_time", request), request)
    return dataclasses.replace(plan, hint=hint_of_stages(request, parallelism, best, tried))


def mini_parallelism(request: Request, parallelisms: Sequence[int]) -> Plan:
    """Return the fastest plan that fits on the fewest devices on which any plan fits.

    It has stages only if the request allows them, and nothing else fits or they are predicted to pay.

    Raises:
        InputError: nothing fits at any of the parallelisms.
    """
    all_tried: list[ModelFrontier] = []
    all_in_stages: list[StagedFrontier] = []
    started = time.monotonic()
    for parallelism in sorted(parallelisms):
        best, tried = fastest_that_fits(request, parallelism)
        if best is not None:
            faster = _within(frontier_that_pays(request, parallelism, best, tried), "mini_parallelism", request)
            if faster is not None:
                return faster
            alone = _unrolled(*best, "mini_parallelism", request)
            return dataclasses.replace(alone, hint=hint_of_stages(request, parallelism, best, tried))
        in_stages = frontier_in_stages(request, parallelism, tried)
        plan = _within(in_stages, "mini_parallelism", request)
        if plan is not None:
            return plan
        all_tried += tried
        all_in_stages += [] if in_stages is None else [in_stages]
    least = min(all_in_stages, key=lambda each: each.points_of[0].n_bytes, default=None)
    raise InputError(nothing_fits(request, all_tried, started, least))


def _within(frontier: StagedFrontier | None, option: str, request: Request) -> Plan | None:
    """Return the fastest plan of a frontier in stages within the memory limit; None where there is none."""
    number = None if frontier is None else frontier.fastest_within(request.limit_bytes)
    return None if frontier is None or number is None else frontier.plan(number, option)


def profiling(
    request: Request, parallelisms: Sequence[int], on_point: Callable[[Curve], None] = lambda of_one: None
) -> Curve:
    """Return the least time within the memory limit for each parallelism, without executing anything.

    Args:
        on_point: called with each point as soon as it is known, as a curve of this point alone.
    """
    batch = request.model.graph.batch
    request = dataclasses.replace(request, budget=request.budget or OF_CURVE, wants_frontier=False)
    of_all = Curve((), request.hardware.name, batch, request.limit_bytes, request.assumed)
    for parallelism in parallelisms:
        of_one = dataclasses.replace(of_all, points=(_curve_point(request, parallelism),))
        on_point(of_one)
        of_all = dataclasses.replace(of_all, points=of_all.points + of_one.points)
    return of_all


def _curve_point(request: Request, parallelism: int) -> CurvePoint:
    started = time.monotonic()
    best, tried = fastest_that_fits(request, parallelism)
    if best is None:
        return _where_nothing_fits(request, parallelism, tried, started)
    faster = frontier_that_pays(request, parallelism, best, tried)
    if faster is not None:
        return staged_curve_point(faster, request)
    frontier, point = best
    needed_bytes, time_us, batch = frontier.needed_bytes(point), frontier.points[point].time_us, request.model.graph.batch
    rate = batch / time_us * 1e6 if batch else None
    return CurvePoint(parallelism, True, needed_bytes, time_us, rate, frontier.found.exact)


def _where_nothing_fits(
    request: Request, parallelism: int, tried: Sequence[ModelFrontier], started: float
) -> CurvePoint:
    """Return the point of a curve where no plan without stages fits: one in stages, or the least that is needed."""
    in_stages = frontier_in_stages(request, parallelism, tried)
    found = None if in_stages is None else staged_curve_point(in_stages, request)
    if found is not None and found.fits:
        return found
    least = least_needed(request, tried, time_for_more(tried, started))
    alone = CurvePoint(parallelism, False, least.n_bytes, None, None, least.frontier.found.exact)
    return alone if found is None else min(alone, found, key=lambda each: each.memory_bytes)


def staged_curve_point(frontier: StagedFrontier, request: Request) -> CurvePoint:
    """Return the point of a curve for a frontier with stages: the fastest plan that fits, or the one of least memory."""
    number = frontier.fastest_within(request.limit_bytes)
    if number is None:
        least = frontier.points_of[0]
        return CurvePoint(frontier.parallelism, False, least.n_bytes, None, None, False, least.n_stages)
    point, time_us = frontier.points_of[number], frontier.points[number].time_us
    batch = request.model.graph.batch
    rate = batch / time_us * 1e6 if batch else None
    return CurvePoint(frontier.parallelism, True, point.n_bytes, time_us, rate, False, point.n_stages)


def parallelisms(requested: object) -> list[int]:
    """Return the numbers of devices that a user gave as ``parallelism``: one or several.

    Raises:
        InputError: it is neither a positive number of devices nor a list of such.
    """
    counts: list[Any] = [requested] if isinstance(requested, str) or not isinstance(requested, Iterable) else list(requested)
    if not counts:
        raise InputError("parallelism is an empty list; name at least one number of devices")
    for count in counts:
        if not isinstance(count, Integral) or isinstance(count, bool) or count < 1:
            raise InputError(f"parallelism must be a positive number of devices, or a list of such, got {short(requested)}")
    return [int(count) for count in counts]


def checked_force(requested: object) -> Force:
    """Return what a user gave as ``force``, after checking its form: degrees by factor by operator.

    The search checks that the model has these operators and factors.

    Raises:
        InputError: it has another form.
    """
    if requested is None:
        return {}
    if not isinstance(requested, Mapping) or not all(isinstance(pinned, Mapping) for pinned in requested.values()):
        raise InputError(
            f"force takes degrees by factor by operator, such as {{'MatMul_1': {{'m': 2}}}}, got {short(requested)}"
        )
    for name, pinned in requested.items():
        for factor, degree in pinned.items():
            if not isinstance(degree, Integral) or isinstance(degree, bool) or degree < 1:
                raise InputError(
                    f"force takes a positive number of blocks for {name}'s factor '{factor}', got {short(degree)}"
                )
    return {str(name): {str(factor): int(degree) for factor, degree in pinned.items()} for name, pinned in requested.items()}


def assumptions(hardware: Hardware, model: Model) -> dict[str, object]:
    """Return what a plan records of its search: hardware, batch, TensorFlow version, provenance of costs."""
    import tensorflow as tf

    return {
        "hardware": hardware.name,
        "device": hardware.device.name,
        "device_memory_bytes": int(hardware.device.memory_bytes),
        "batch": model.graph.batch,
        "tensorflow": tf.__version__,
        "provenance": dict(hardware.provenance),
    }


def _unrolled(frontier: ModelFrontier, point: int, option: str, request: Request) -> Plan:
    """Return the plan of a point; its frontier records how long making the plan took, as phase ``unroll``."""
    started = time.perf_counter()
    frontier = dataclasses.replace(frontier, assumed=request.assumed)
    plan = frontier.plan(point, option)
    seconds = {**frontier.seconds_by_phase, "unroll": time.perf_counter() - started}
    return dataclasses.replace(plan, frontier=dataclasses.replace(frontier, seconds_by_phase=seconds))
