"""Answer the three options of the TensorOpt paper's section 4.1: mini_time, mini_parallelism, profiling."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from numbers import Integral
from typing import Any

from ..common.dump import dump
from ..common.errors import InputError, short
from ..common.process.workers import Calls, can_be_sent, n_workers
from ..common.words import counted
from ..costs.objectives import MEMORY_TIME
from ..plan.frontier import Frontier
from ..plan.plan import Plan
from ..plan.scaling_curve import Curve, CurvePoint
from ..profiling.available_memory import available_memory_bytes
from ..rules.registry import are_own, rule_of
from .algorithms import OTHERS, UNSPLIT
from .candidates.plan_points import PlanPoint, plan_beside
from .candidates.search_candidates import CandidateSearch, search_with_stages
from .candidates.search_cut import WORTH_WORKERS
from .frontiers.find_frontier import find_baseline
from .frontiers.model_frontier import ModelFrontier
from .infeasible import least_needed, nothing_fits, time_for_more, why_too_large
from .request import OF_CURVE, WORTH_STAGES, Request

OPTIONS = ("mini_time", "mini_parallelism", "profiling")
MORE = 1.1
"""How much more memory than the limit a point of a curve tells about, too."""


def find_answer(option: str, request: Request, parallelism: int | Sequence[int] | None) -> Plan:
    """Return the plan that one of the options asks for.

    Args:
        option: ``mini_time`` or ``mini_parallelism``.
        parallelism: a number of devices, or several. None stands for all parallelisms of the hardware, and for its largest
            with ``mini_time``.

    Raises:
        InputError: nothing fits, ``mini_time`` is asked for several parallelisms; or as
            :func:`.candidates.search_candidates.search_with_stages`.
    """
    available = request.hardware.parallelisms()
    counts = list(available) if parallelism is None else parallelisms(parallelism)
    if option == "mini_time" and parallelism is None:
        counts = [max(available)]
    if option == "mini_time" and len(counts) != 1:
        raise InputError(
            f"option 'mini_time' takes one parallelism, got {counts}; option 'profiling' compares several, and "
            "'mini_parallelism' takes the fewest devices that fit"
        )
    plan = _find_plan(option, request, counts)
    frontier = plan.frontier
    assert frontier is not None
    # The peaks in the table are computed for it, which takes a third of the search's time.
    dump("frontier", lambda: frontier.table(plan.point), frontier.summary)
    dump("plan", plan)
    return plan


def mini_time(request: Request, parallelism: int) -> Plan:
    """Return the plan of least time within the memory limit at one parallelism; see :func:`find_answer`."""
    return _find_plan("mini_time", request, [parallelism])


def _find_plan(option: str, request: Request, parallelisms: Sequence[int]) -> Plan:
    """Return the fastest plan that fits at the least parallelism at which any does.

    It has stages only if the request allows them, and nothing else fits or they are predicted to pay.

    Raises:
        InputError: nothing fits; the message gives the least memory that is needed, and suggests what would fit. Where
            stages are asked for it is that of the largest parallelism.
    """
    runs, start_s = list[CandidateSearch](), time.monotonic()
    failure: InputError | None = None
    for parallelism in sorted(parallelisms):
        try:
            search, failure = search_with_stages(request, parallelism), None
        except InputError as error:  # so few devices can't have these stages, or what is forced
            failure = error
            continue
        frontier = search.frontier()
        number = None if frontier is None else frontier.fastest_within(request.limit_bytes)
        if frontier is not None and number is not None:
            return dataclasses.replace(_fastest(search, frontier, number, option, start_s), hint=search.hint)
        if frontier is not None and search.counts is not None and request.limit_bytes is not None:
            failure = InputError(why_too_large(frontier, request.limit_bytes))
        runs.append(search)
    if failure is not None:
        raise failure
    smallest = min((run.least for run in runs if run.least), key=lambda front: front.points_of[0].peak_bytes, default=None)
    raise InputError(nothing_fits(request, [frontier for run in runs for frontier in run.whole], start_s, smallest))


def _fastest(search: CandidateSearch, frontier: Frontier[PlanPoint], number: int, option: str, start_s: float) -> Plan:
    """Return the plan of a frontier's fastest point, or one beside it: without stages, or unsplit, where that is better.

    The frontier records how long making the plan took, as phase ``unroll``, and what else passed since ``start_s``, as
    ``other candidates``.
    """
    point, request = frontier.points_of[number], search.request
    beside: tuple[ModelFrontier, int] | None = None
    if request.must_be_tried and 0 < 1 - point.time_us / search.alone_us < WORTH_STAGES:
        beside = search.alone
        reason = (
            f"{point.n_stages} stages in {counted(point.micro_batches, 'micro-batch')} are predicted to save "
            f"{math.floor(100 * (1 - point.time_us / search.alone_us))}% of a step, and taken from {WORTH_STAGES:.0%} on; "
            f"ask for stages={point.n_stages} to have them, or give a profile_budget to try both"
        )
        frontier = dataclasses.replace(frontier, left_out=(*frontier.left_out, reason))
    if option == "mini_time" and (beside or point.n_stages == 1):
        beside = _unsplit_if_as_fast(beside or point.parts[0], request) or beside
    start_unroll_s = time.monotonic()
    plan = frontier.plan(number, option) if beside is None else plan_beside(frontier, beside, option)
    others = max(0.0, start_unroll_s - start_s - sum(frontier.seconds_by_phase.values()))
    phases = {"other candidates": others, "unroll": time.monotonic() - start_unroll_s}
    frontier = dataclasses.replace(frontier, seconds_by_phase={**frontier.seconds_by_phase, **phases})
    return dataclasses.replace(plan, frontier=frontier)


def _unsplit_if_as_fast(part: tuple[ModelFrontier, int], request: Request) -> tuple[ModelFrontier, int] | None:
    """Return the unsplit point if it is predicted to be as fast as a point, and fits the memory limit.

    Few small operators may gain nothing by a split: each rank of a trainer loads its share of a batch, so that a search has
    no strategy without collectives. In an unsplit plan each rank loads the global batch and does all of the work.
    They are compared on measured hardware alone: descriptions don't say how long small operators and collectives take.
    """
    frontier, number = part
    graph = frontier.model.graph
    is_open = not (request.force or request.placed) and request.algorithm not in OTHERS and request.objectives == MEMORY_TIME
    is_measured = frontier.mesh.n_devices > 1 and request.hardware.measured is not None
    if not (is_open and is_measured) or graph.n_micro_batches > 1:  # several are as the memory limit asked for
        return None
    if not any(rule_of(op).spread for op in graph.step_operators):
        return None
    unsplit = find_baseline(frontier, UNSPLIT)
    is_as_fast = unsplit.points[0].time_us <= frontier.points[number].time_us
    return (unsplit, 0) if is_as_fast and unsplit.fastest_within(request.limit_bytes) is not None else None


def profiling(jobs: Sequence[tuple[Request, int]], on_point: Callable[[Curve], None] = lambda curve: None) -> Curve:
    """Return the least time within the memory limit at each number of devices, without executing anything.

    Where stages are asked for, it is for each parallelism that can have any of the numbers of stages.

    Args:
        jobs: what is asked at each number of devices.
        on_point: called with each point as soon as it is known, as a curve of this point alone.

    Raises:
        InputError: none can.
    """
    bases = {request.hardware.name: request.hardware.basis() for request, _ in jobs}
    errors, points, empty = list[InputError](), dict[int, CurvePoint](), Curve((), jobs[0][0].assumed, bases)
    jobs = [(dataclasses.replace(job, budget=job.budget or OF_CURVE, keeps_found=False), count) for job, count in jobs]
    for number, point in _curve_points(jobs):
        if isinstance(point, InputError):
            errors.append(point)
            continue
        points[number] = point
        on_point(dataclasses.replace(empty, points=(point,)))
    if errors and not points:
        raise errors[-1]
    return dataclasses.replace(empty, points=tuple(points[number] for number in sorted(points)))


def _curve_points(jobs: Sequence[tuple[Request, int]]) -> Iterator[tuple[int, CurvePoint | InputError]]:
    """Yield each point's number, and the point or why there is none, as soon as it's known; large models have workers."""
    request = jobs[0][0]
    is_large = len(request.model.graph.operators) >= WORTH_WORKERS and are_own()
    sendable = [dataclasses.replace(job, progress=None, tell=None) for job, _ in jobs]
    n = min(n_workers(available_memory_bytes(1)), len(jobs)) if is_large and all(map(can_be_sent, sendable)) else 1
    if n == 1:
        for number, (job, count) in enumerate(jobs):
            yield number, _curve_point(job, count)
        return
    progress, tell = request.progress, request.tell
    *most_first, fewest = sorted(range(len(jobs)), key=lambda number: -jobs[number][1])  # most devices take longest

    def report(number: int, text: str, *amounts: int) -> None:
        if not amounts and tell is not None:
            tell(text)
        elif amounts and progress is not None:
            progress(f"on {counted(jobs[number][1], 'device')}, {text}", *amounts)

    with contextlib.closing(Calls(n, __name__, report)) as calls:
        for number in (fewest, *most_first):
            calls.add(number, _point_in_worker, (sendable[number], jobs[number][1]))
        for _ in jobs:
            yield calls.next_result()


def _point_in_worker(request: Request, parallelism: int, report: Callable[..., None]) -> CurvePoint | InputError:
    return _curve_point(dataclasses.replace(request, progress=report, tell=report), parallelism)


def _curve_point(request: Request, parallelism: int) -> CurvePoint | InputError:
    """Return a point of a curve; why there is none, where stages are asked for, which other points may have."""
    start_s, is_asked = time.monotonic(), request.asks_for_stages
    request = dataclasses.replace(request, wants_frontier=request.wants_frontier and is_asked)
    try:
        search = search_with_stages(request, parallelism)
    except InputError as error:
        if not is_asked:
            raise
        return error
    frontier = search.frontier() or search.least
    point = None if frontier is None else _point_of(frontier, request)
    if point is not None and (point.fits or is_asked):
        return point
    smallest = least_needed(request, search.whole, time_for_more(search.whole, start_s))
    alone = _unreachable_point(request, parallelism, smallest.n_bytes, smallest.frontier.found.exact)
    return alone if point is None else min(alone, point, key=lambda option: option.peak_bytes)


def _unreachable_point(request: Request, parallelism: int, least_bytes: int, is_exact: bool) -> CurvePoint:
    """Return the point of a parallelism at which nothing fits, and the least that would be needed is known."""
    hardware, levels = request.hardware, request.hardware.mesh(parallelism).levels
    machines = levels[0].count if len(levels) > 1 else 1
    rates = hardware.price_per_hour, hardware.device.watts
    price, watts = (None if rate is None else rate * parallelism for rate in rates)
    return CurvePoint(
        parallelism, False, least_bytes, None, None, is_exact, cluster=hardware.name, machines=machines,
        batch=request.model.graph.batch, limit_bytes=request.limit_bytes, price_per_hour=price, watts=watts,
    )  # fmt: skip


def _point_of(frontier: Frontier, request: Request) -> CurvePoint:
    """Return the point for a frontier: its fastest plan that fits, or the one of least memory."""
    limit, points = request.limit_bytes, frontier.points
    number, smallest, margin_bytes = frontier.fastest_within(limit), frontier.least_point(), limit and round(limit * MORE)
    numbers = {smallest, number, frontier.fastest_within(margin_bytes), frontier.fastest_within(None)}
    ends = sorted((frontier.peak_bytes(i), points[i].time_us) for i in numbers if i is not None)
    count, is_exact = frontier.mesh.n_devices, frontier.found.exact
    blank = dataclasses.replace(_unreachable_point(request, count, ends[0][0], is_exact), ends=tuple(ends))
    if number is None:
        return dataclasses.replace(blank, stages=frontier.passes(smallest).stages)
    time_us, compute_us = points[number].time_us, points[number].compute_time_us
    return dataclasses.replace(
        blank, fits=True, peak_bytes=frontier.peak_bytes(number), stages=frontier.passes(number).stages,
        time_us=time_us, compute_time_us=compute_us, network_time_us=max(time_us - compute_us, 0.0),
        samples_per_s=blank.batch / time_us * 1e6 if blank.batch and time_us else None,
    )  # fmt: skip


def check_option(option: object) -> None:
    """Check that an option that a user named exists.

    Raises:
        InputError: there is no such option.
    """
    if option not in OPTIONS:
        raise InputError(f"unknown option {short(option)}; expected one of {', '.join(map(repr, OPTIONS))}")


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
