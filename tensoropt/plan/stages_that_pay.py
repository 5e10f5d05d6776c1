"""Search plans in stages unasked where they pay: between machines, where the fastest plan without waits for a slow link.

Most models don't need them, and shouldn't wait for a search of them. So looks that take little come first:

1. All of a step but its network is about what stages would take at best. Where the fastest plan without stages has little
   network, nothing is searched.
2. The model is cut into as many stages as there are machines, and into two, in each number of micro-batches, and a step is
   predicted with each operator split as it is fastest (:func:`.cuts.balanced`). It takes little beside a search.

Only the best of these is searched, if it is predicted to save WORTH_STAGES of a step. Its plans are taken if they do.

On measured hardware predictions by rates of classes aren't enough: a pipeline of products with few rows has taken twice as
long as predicted. There a plan in stages is taken only if it is run beside the one without (``profile_budget=``). Else the
plan's hint says that stages may pay.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from ..common.errors import InputError
from ..common.progress import Progress
from ..ft import ALGORITHMS
from ..profiling.hardware import Hardware
from ..report.sentences import time_text
from ..search.problem.choices import STAGES
from ..search.problem.objectives import MEMORY_TIME
from ..sharding.stages import Stages
from .cuts import balanced
from .find_frontier import ModelFrontier
from .find_staged import WORTH_AT_ONCE, frontier_of, possible_micro_batches, search_cuts
from .request import Request
from .stage_points import SearchedStages
from .stage_times import TimesBySize
from .staged_frontier import StagedFrontier
from .staged_frontier_points import PlanPoint, evaluated, points_of_whole, reduced, staged_points
from .submeshes import equal_blocks

WORTH_STAGES = 0.15
"""Stages that weren't asked for must be predicted to save this share of a step of the fastest plan without.

Predictions with stages have been 13.5 % off on average, and more where products have few rows (docs/reference/benchmarks.md,
Stages).
"""
WORTH_TRYING = 0.05
"""The same where both plans are run, so that the faster one is taken: the search of stages takes time, too."""


class _Look(NamedTuple):
    """A number of stages and of micro-batches, with the time that a step in them is predicted to take."""

    time_us: float
    n_stages: int
    micro_batches: int


def may_take_stages(request: Request, parallelism: int) -> bool:
    """Return whether plans in stages may be taken that weren't asked for: they are allowed, and possible for the request."""
    graph = request.model.graph
    return (
        request.may_take_stages
        and not (request.hardware.topology is not None and request.hardware.topology.is_uneven)
        and parallelism > 1
        and STAGES not in request.without
        and request.objectives == MEMORY_TIME
        and request.algorithm in ALGORITHMS
        and len(graph.train_steps) == 1
        and not graph.late
    )


def frontier_that_pays(
    request: Request, parallelism: int, best: tuple[ModelFrontier, int], tried: Sequence[ModelFrontier]
) -> StagedFrontier | None:
    """Return a frontier whose fastest plan within the memory limit has stages; None where they aren't predicted to pay.

    Args:
        best: the fastest plan without stages within the limit: a frontier, and the number of a point.
        tried: all frontiers without stages.
    """
    frontier, number = best
    alone_us, most_us = _times_us(request, best)
    look = None if must_be_tried(request) else _look(request, parallelism, most_us, tried)
    if look is None:
        return None
    asked = replace(request, micro_batches=look.micro_batches, progress=_in_stages(request.progress, look.n_stages))
    try:
        found = search_cuts(asked, {}, parallelism, look.n_stages, None)[0]
    except InputError:  # what is forced can't be so
        return None
    points = staged_points(found)
    if not points or points[-1].time_us > most_us:
        return None
    of_all: list[PlanPoint] | None = None
    if not request.wants_frontier:
        ends = evaluated(points, request.limit_bytes, asked.progress, most=2)
        of_all = reduced([points_of_whole(SearchedStages.whole(frontier))[number], *ends])
    in_stages = frontier_of(asked, parallelism, [*map(SearchedStages.whole, tried), *found], points=of_all)
    fastest = in_stages.fastest_within(request.limit_bytes)
    chosen = None if fastest is None else in_stages.points_of[fastest]
    if chosen is None or chosen.n_stages == 1 or chosen.time_us > most_us:
        return None
    why = (
        f"{look.n_stages} stages are predicted to take {time_text(chosen.time_us)} a step, the fastest plan without "
        f"{time_text(alone_us)}"
    )
    return replace(in_stages, why_stages=why)


def must_be_tried(request: Request) -> bool:
    """Return whether predictions aren't enough to take stages, and no plan will be run."""
    return request.stages_must_pay and request.hardware.measured is not None


def hint_of_stages(
    request: Request, parallelism: int, best: tuple[ModelFrontier, int], tried: Sequence[ModelFrontier]
) -> str:
    """Return a sentence where stages may pay but aren't taken, as that must be tried; else an empty text."""
    if not must_be_tried(request):
        return ""
    alone_us, most_us = _times_us(request, best)
    look = _look(request, parallelism, most_us, tried)
    if look is None:
        return ""
    return (
        f"{look.n_stages} stages may take {time_text(look.time_us)} a step, where {time_text(alone_us)} is predicted "
        "without; give a profile_budget to try both"
    )


def _times_us(request: Request, best: tuple[ModelFrontier, int]) -> tuple[float, float]:
    """Return the time of the fastest plan without stages, and the most that one with stages may take."""
    frontier, number = best
    alone_us = int(frontier.costs.time_ns[number]) / 1e3
    return alone_us, alone_us * (1 - (WORTH_STAGES if request.stages_must_pay else WORTH_TRYING))


def _look(request: Request, parallelism: int, most_us: float, tried: Sequence[ModelFrontier]) -> _Look | None:
    """Return the best of what steps in stages are predicted to take, if that is no more than a time; else None."""
    least_compute_us = min(int(each.costs.compute_ns.min()) for each in tried) / 1e3
    if least_compute_us > most_us or not may_take_stages(request, parallelism):
        return None
    best = min(_looks(request, parallelism, most_us), default=None)
    return best if best is not None and best.time_us <= most_us else None


def _looks(request: Request, parallelism: int, most_us: float) -> Iterator[_Look]:
    """Yield what steps in stages are predicted to take, of those that may take less than a time."""
    model, hardware = request.model, request.hardware
    for count in _counts(hardware, parallelism):
        blocks = equal_blocks(hardware, parallelism, count)
        if blocks is None:
            continue
        numbers = [request.micro_batches] if request.micro_batches else possible_micro_batches(request, count)
        tried: dict[tuple[str, ...], Stages] = {}
        for n in numbers:
            times = TimesBySize(model, hardware, n, request.known)
            if times.bound_us({block.size for block in blocks}, count, parallelism) > most_us:
                continue
            try:
                cut = balanced(model, hardware, [[block] for block in blocks], times, {}, None, tried)
            except InputError:  # it can't be cut into so many
                continue
            yield _Look(cut.time_us, count, n)
            if request.micro_batches is None and 1 not in numbers and cut.beside >= WORTH_AT_ONCE:
                numbers.append(1)


def _counts(hardware: Hardware, parallelism: int) -> list[int]:
    """Return the numbers of stages that are looked at: two, and that of machines; none on a single machine."""
    levels = hardware.mesh(parallelism).levels
    machines = levels[0].count if len(levels) > 1 else 1
    return sorted({2, machines}) if machines > 1 else []


def _in_stages(said: Progress | None, count: int) -> Progress | None:
    """Return a progress callback that says before each phase that it is in stages."""
    return None if said is None else lambda phase, done, total: said(f"in {count} stages, {phase}", done, total)
