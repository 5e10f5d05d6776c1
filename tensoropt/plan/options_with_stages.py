"""Answer the three options among plans with stages and without."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from ..common.dump import dump
from ..common.errors import InputError
from .find_staged import checked_stages, find_with_stages, why_too_large
from .options import find_answer, parallelisms, staged_curve_point
from .plan import Plan
from .request import OF_CURVE, Request
from .scaling_curve import Curve, CurvePoint
from .staged_frontier import StagedFrontier
from .staged_frontier_points import UnstagedPoint
from .stages_that_pay import WORTH_STAGES
from .unsplit import unsplit_if_as_fast


def stages_asked_for(stages: object, schedule: str | None, is_placed: bool = False) -> tuple[int, ...] | None:
    """Return the numbers of stages that a user asks for, of which 1 stands for plans without; None if none are asked for.

    Args:
        is_placed: whether operators are placed on devices, for which there are stages too.

    Raises:
        InputError: they aren't whole numbers from 1 up, or can't be combined with what else is asked for.
    """
    counts = None if stages is None else checked_stages(stages)
    if schedule is not None and max(counts or (1,)) == 1 and not is_placed:
        raise InputError(f"schedule={schedule!r} is the order in which stages run; give stages=2 or more with it")
    return counts


def asks_for_stages(request: Request, stages: Sequence[int] | None) -> bool:
    """Return whether plans with stages are asked for: by their numbers, or by a placement of operators."""
    return bool(request.placed) or max(stages or (1,)) > 1


def find_any_answer(
    option: str,
    request: Request,
    parallelism: int | Sequence[int] | None,
    stages: Sequence[int] | None = None,
    schedule: str | None = None,
) -> Plan | Curve:
    """Return the answer to one of the options, among plans with stages where these are asked for.

    Args:
        stages: the numbers of stages, of which 1 stands for plans without; None: none, or as few as a placement takes.
        schedule: the order of the stages' passes; None for the default.

    Raises:
        InputError: as :func:`.options.find_answer` and :func:`find_answer_with_stages`.
    """
    if asks_for_stages(request, stages):
        return find_answer_with_stages(option, request, parallelism, stages, schedule)
    return find_answer(option, request, parallelism)


def find_answer_with_stages(
    option: str,
    request: Request,
    parallelism: int | Sequence[int] | None,
    stages: Sequence[int] | None,
    schedule: str | None = None,
) -> Plan | Curve:
    """Return the answer to one of the options among plans with some numbers of stages: a plan with its frontier, or a curve.

    Args:
        stages: the numbers, of which 1 stands for plans without stages; None for as few as a placement takes.
        schedule: the order of the stages' passes; None for the default.

    Raises:
        InputError: nothing fits, ``mini_time`` is asked for several parallelisms; or as
            :func:`.find_staged.find_with_stages`.
    """
    available = request.hardware.parallelisms()
    counts = list(available) if parallelism is None else parallelisms(parallelism)
    if option == "profiling":
        return _curve(request, counts, stages, schedule)
    if option == "mini_time":
        counts = counts if parallelism is not None else [max(available)]
        if len(counts) != 1:
            raise InputError(
                f"option 'mini_time' takes one parallelism, got {counts}; option 'profiling' compares several, and "
                "'mini_parallelism' takes the fewest devices that fit"
            )
    frontier = _on_fewest_devices(request, counts, stages, schedule)
    plan = _fastest(frontier, option, request)
    taken_from = plan.frontier
    assert isinstance(taken_from, StagedFrontier)
    dump("frontier", lambda: taken_from.table(plan.point), taken_from.summary)
    dump("plan", plan)
    return plan


def _on_fewest_devices(
    request: Request, parallelisms: Sequence[int], stages: Sequence[int] | None, schedule: str | None
) -> StagedFrontier:
    """Return the frontier at the least parallelism at which any plan fits.

    Raises:
        InputError: nothing fits at any of the parallelisms; the message is that of the largest.
    """
    *fewer, most = sorted(parallelisms)
    for count in fewer:
        try:
            frontier = find_with_stages(request, count, stages, schedule)
        except InputError:
            continue  # so few devices can't have these stages
        if why_too_large(frontier, request.limit_bytes) is None:
            return frontier
    frontier = find_with_stages(request, most, stages, schedule)
    why = why_too_large(frontier, request.limit_bytes)
    if why is not None:
        raise InputError(why)
    return frontier


def _fastest(frontier: StagedFrontier, option: str, request: Request) -> Plan:
    """Return the fastest plan of a frontier within the memory limit, or an unsplit one as :func:`.unsplit_if_as_fast`.

    One without stages is taken where stages are predicted to save less than WORTH_STAGES.
    """
    number = frontier.fastest_within(request.limit_bytes)
    plan, point = frontier.plan(number, option), frontier.points_of[number]
    if option == "mini_time" and point.n_stages == 1:
        own = point.plan(option, request.assumed)
        unsplit = unsplit_if_as_fast(own, request)
        if unsplit is not own:
            return dataclasses.replace(unsplit, frontier=frontier, frontier_text=frontier.table())
    if len(plan.stages) > 1 and request.stages_must_pay and request.hardware.measured is not None:
        return _without_stages(frontier, plan, request) or plan
    return plan


def _without_stages(frontier: StagedFrontier, plan: Plan, request: Request) -> Plan | None:
    """Return the fastest plan without stages within the memory limit, if one with stages saves less than WORTH_STAGES."""
    fastest = [(each, each.fastest_within(request.limit_bytes)) for each in frontier.unstaged]
    fitting = [UnstagedPoint(each, number) for each, number in fastest if number is not None]
    point = min(fitting, key=lambda each: each.costs_ns[0], default=None)
    if point is None:
        return None
    saved = 1 - 1e3 * plan.time_us / point.costs_ns[0]
    if saved >= WORTH_STAGES:
        return None
    why = (
        f"{len(plan.stages)} stages in {plan.micro_batches} micro-batches are predicted to save {math.floor(100 * saved)}% "
        f"of a step, and taken from {WORTH_STAGES:.0%} on; ask for stages={len(plan.stages)} to have them, or give a "
        "profile_budget to try both"
    )
    frontier = dataclasses.replace(frontier, left_out=(*frontier.left_out, why))
    own = point.plan(plan.option, request.assumed)
    if plan.option == "mini_time":
        own = unsplit_if_as_fast(own, request)
    return dataclasses.replace(own, frontier=frontier, frontier_text=frontier.table(), point=None)


def _curve(
    request: Request, parallelisms: Sequence[int], stages: Sequence[int] | None, schedule: str | None
) -> Curve:
    """Return the least time within the memory limit for each parallelism that can have any of the numbers of stages.

    Raises:
        InputError: none can.
    """
    batch = request.model.graph.batch
    request = dataclasses.replace(request, budget=request.budget or OF_CURVE)
    points: list[CurvePoint] = []
    errors: list[InputError] = []
    for count in parallelisms:
        try:
            frontier = find_with_stages(request, count, stages, schedule)
        except InputError as error:
            errors.append(error)
            continue
        points.append(staged_curve_point(frontier, request))
    if not points:
        raise errors[-1]
    return Curve(tuple(points), request.hardware.name, batch, request.limit_bytes, request.assumed)
