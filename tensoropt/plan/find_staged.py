"""Find plans in stages: cut the model (:mod:`.cuts`), then search each stage as a model of its own, in micro-batches.

What a request leaves open, the numbers of stages and of micro-batches, is searched one after the other, and the minimal
points of all make one frontier.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ..common.errors import InputError, short
from ..common.memory_units import memory_text
from ..ft import ALGORITHMS, BY_DEFAULT
from ..program.schedule import ONE_FORWARD_ONE_BACKWARD, SCHEDULES
from ..search.problem.choices import ACCUMULATE, STAGES
from ..search.problem.objectives import MEMORY_TIME
from ..sharding.model import Model
from ..sharding.stages import Stages
from .cuts import balanced
from .memory_cuts import least_memory
from .request import Request, fastest_that_fits, searched
from .stage_points import SearchedStages
from .stage_times import OperatorTimes, beside, transfers, works
from .staged_frontier import StagedFrontier, StagedPoint, minimal_points
from .staged_plan import StagedPlan

MICRO_BATCHES_PER_STAGE = (1, 2, 4)
"""Without a number of micro-batches so many for each stage are searched, where the batch can be divided so."""


def find_staged(request: Request, parallelism: int, n_stages: object, schedule: str | None) -> StagedPlan:
    """Return the fastest plan that was found in a number of stages, within the memory limit.

    Raises:
        InputError: none fits; or as :func:`find_with_stages`.
    """
    counts = checked_stages(n_stages)
    if 1 in counts:
        raise InputError(f"a plan in stages has 2 or more, got {short(n_stages)}")
    frontier = find_with_stages(request, parallelism, counts, schedule)
    why = why_too_large(frontier, request.limit_bytes)
    if why is not None:
        raise InputError(why)
    plan = frontier.plan(frontier.fastest_within(request.limit_bytes), "mini_time")
    assert isinstance(plan, StagedPlan)
    return plan


def find_with_stages(
    request: Request, parallelism: int, counts: Sequence[int], schedule: str | None = None
) -> StagedFrontier:
    """Return the minimal points of all plans with these numbers of stages, of which 1 stands for plans without.

    They needn't be within the memory limit, see :func:`why_too_large`. A number that isn't possible beside others that are
    is left out; the frontier says so.

    Raises:
        InputError: none of the numbers is possible, or the request has what can't be combined with stages.
    """
    counts = _allowed(request, counts)
    schedule = schedule or ONE_FORWARD_ONE_BACKWARD
    if schedule not in SCHEDULES:
        raise InputError(f"unknown schedule {short(schedule)}; expected {' or '.join(map(repr, SCHEDULES))}")
    unstaged = fastest_that_fits(request, parallelism)[1] if 1 in counts else []
    found: list[SearchedStages] = []
    left_out: list[str] = []
    for count in sorted({*counts} - {1}):
        try:
            found += _searched(request, parallelism, count, schedule)
        except InputError as error:
            left_out.append(str(error))
    if not found and not unstaged:
        raise InputError(left_out[0])
    started = time.perf_counter()
    points = minimal_points(unstaged, found, request.limit_bytes, request.progress)
    seconds: defaultdict[str, float] = defaultdict(float)
    for frontier in [*unstaged, *(each for of_cut in found for each in of_cut.frontiers)]:
        for phase, value in frontier.seconds_by_phase.items():
            seconds[phase] += value
    seconds["peaks"] += time.perf_counter() - started
    return StagedFrontier(
        points_of=tuple(points),
        hardware=request.hardware,
        parallelism=parallelism,
        unstaged=tuple(unstaged),
        searched=tuple(found),
        left_out=tuple(left_out),
        assumed=request.assumed,
        seconds_by_phase=seconds,
    )


def checked_stages(given: object) -> tuple[int, ...]:
    """Return the numbers of stages that a user gave: one, or several of which the search chooses.

    Raises:
        InputError: they aren't whole numbers from 1 up.
    """
    several = given if isinstance(given, (tuple, list)) else (given,)
    for count in several:
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise InputError(f"stages takes whole numbers from 1 up, such as 2, or (1, 2) for a choice, got {short(given)}")
    if not several:
        raise InputError("stages is empty; give whole numbers from 1 up, such as (1, 2)")
    return tuple(dict.fromkeys(several))


def _allowed(request: Request, counts: Sequence[int]) -> tuple[int, ...]:
    """Return the numbers of stages that a request allows.

    Raises:
        InputError: it has what can't be combined with stages.
    """
    asked = f"stages={counts[0] if len(counts) == 1 else tuple(counts)}"
    if STAGES in request.without:
        if 1 not in counts:
            raise InputError(f"{asked} is asked for, and to do without '{STAGES}'; leave one of the two")
        return (1,)
    if max(counts) > 1:
        if request.force:
            raise InputError("force= and stages= can't be combined; leave one of the two")
        if request.objectives != MEMORY_TIME:
            raise InputError(
                f"{asked} trades memory and time, got the objectives {','.join(request.objectives)}; leave one of the two"
            )
        if request.algorithm not in ALGORITHMS:
            raise InputError(
                f"algorithm '{request.algorithm}' knows no stages; leave {asked}, or search with {ALGORITHMS[0]}"
            )
        if request.model.graph.late:
            request.model.in_micro_batches(2)  # says why not
        if ACCUMULATE in request.without:
            raise InputError(f"{asked} takes micro-batches, and to do without '{ACCUMULATE}' is asked; leave one of the two")
    return tuple(counts)


def _searched(request: Request, parallelism: int, count: int, schedule: str) -> list[SearchedStages]:
    """Return all cuts into a number of stages that are searched, in all numbers of micro-batches that a request allows.

    Raises:
        InputError: the number of stages doesn't divide that of devices, the model can't be cut into so many, or can't be
            trained in micro-batches.
    """
    if count > parallelism:
        devices = f"{parallelism} device{'s' * (parallelism > 1)}"
        raise InputError(f"{count} stages on {devices}: each takes one at least; give {parallelism} or fewer")
    if parallelism % count:
        raise InputError(
            f"{count} stages on {parallelism} devices: each takes equally many; give a divisor of {parallelism}"
        )
    if request.micro_batches == 1:
        raise InputError(f"stages={count} need several micro-batches, got micro_batches=1; give 2 or more")
    model, hardware, per_stage = request.model, request.hardware, parallelism // count
    try:
        hardware.mesh(per_stage)
    except ValueError as error:
        raise InputError(f"{count} stages on {parallelism} devices: {error}") from error
    slices = [request.micro_batches] if request.micro_batches else _micro_batches(model, count)
    budget = request.budget or BY_DEFAULT
    # Together all stages are refined as long as a model without.
    budget = replace(budget, seconds=budget.seconds / (count * len(slices)))
    found = []
    for n, stages, times in _cut(request, count, per_stage, slices):
        requests = (replace(request, model=each, micro_batches=n, budget=budget) for each in stages.models)
        frontiers = tuple(searched(each, per_stage) for each in requests)
        others = beside(stages, hardware, per_stage, times)
        on_the_way = transfers(stages, hardware, per_stage, n)
        # Of all stages one has its share of the operators' least times at least, and a step isn't shorter than that.
        bound_us = sum(each.total(n) for each in times.of.values()) / count
        found.append(
            SearchedStages(
                stages, frontiers, n, schedule, tuple(works(stages, times)), tuple(others), on_the_way, float(bound_us)
            )
        )
    return found


def _cut(request: Request, count: int, per_stage: int, slices: Sequence[int]) -> Iterator[tuple[int, Stages, OperatorTimes]]:
    """Yield the cuts that are searched, with numbers of micro-batches and the operators' times.

    Each number has the cut of least time; the largest, which needs the least memory, also that of least memory.
    """
    model, hardware = request.model, request.hardware
    for n in slices:
        times = OperatorTimes(model.in_micro_batches(n), hardware, hardware.mesh(per_stage))
        fastest = balanced(model, hardware, count, per_stage, n, times)
        yield n, fastest, times
    least = least_memory(model, count, slices[-1])
    if least is not None and least.cuts != fastest.cuts:
        yield slices[-1], least, times


def _micro_batches(model: Model, n_stages: int) -> list[int]:
    """Return the numbers of micro-batches that are searched, ascending.

    Raises:
        InputError: the model can't be trained in micro-batches.
    """
    found = {_most_micro_batches(model, each * n_stages) for each in MICRO_BATCHES_PER_STAGE} - {1}
    if not found:
        model.in_micro_batches(2)  # says why not
    return sorted(found)


def _most_micro_batches(model: Model, most: int) -> int:
    """Return the largest number of micro-batches up to ``most`` in which the model can be trained."""
    for n in range(most, 1, -1):
        try:
            model.in_micro_batches(n)
        except InputError:
            continue
        return n
    return 1


def why_too_large(frontier: StagedFrontier, limit_bytes: int | None) -> str | None:
    """Return the sentence that even the point of least memory is above a limit, with the stage that is; None if it isn't."""
    least = frontier.points_of[0]
    if limit_bytes is None or least.n_bytes <= limit_bytes:
        return None
    text = f"no plan fits {limit_bytes:,} bytes ({memory_text(limit_bytes)}) per device: "
    if isinstance(least, StagedPoint):
        stages = least.searched.stages
        number = least.stage_bytes.index(least.n_bytes)
        text += (
            f"in {stages.n} stages and {least.micro_batches} micro-batches stage {number} alone, {stages.between(number)}, "
            f"needs {least.n_bytes:,} bytes ({memory_text(least.n_bytes)})"
        )
    else:
        text += f"the least that was found is {least.n_bytes:,} bytes ({memory_text(least.n_bytes)}), without stages"
    return f"{text}; ask for more stages, more micro-batches, more devices, or memory={least.n_bytes} or more"
