"""Choose the cuts into a number of stages that are searched."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from ..search.problem.choices import REMAT
from ..sharding.stages import Stages
from .cuts import Cut, balanced
from .memory_cuts import least_bytes, least_memory
from .placement import allowed
from .request import Request
from .stage_needs import StageNeeds
from .stage_times import TimesBySize
from .submeshes import Block, choices, equal_blocks

CERTAINLY_FITS = 0.5
"""A memory limit is certainly kept by cuts whose estimated need is at most this share of it."""
WORTH_UNEQUAL = 0.02
"""Stages of unequally many devices are searched beside equal ones where they are predicted to save this share of a step."""


def cuts_to_search(
    request: Request,
    placed: Mapping[str, Block],
    parallelism: int,
    count: int,
    slices: Sequence[int],
    schedule: str | None,
    shared: Sequence[Block] | None = None,
) -> Iterator[tuple[int, Cut, TimesBySize, float]]:
    """Yield the cuts that are searched, with numbers of micro-batches, the operators' times and the bound of a step's time.

    Each number has the cut of least time into stages of equally many devices, and another one if it is predicted to save
    WORTH_UNEQUAL of a step. Within a memory limit they rematerialize to fit. The largest number, which needs the least
    memory, also has the cut of least memory. Where it isn't certain that a limit is kept, this one and those of least time
    whatever the memory are searched, too.

    Args:
        shared: for each stage its devices, where stages are interleaved; each number then has one cut.
    """
    model, hardware = request.model, request.hardware
    if shared is not None:
        for n in slices:
            times = TimesBySize(model, hardware, n, request.known)
            bound_us = times.bound_us({shared[0].size}, len(set(shared)), parallelism)
            yield n, balanced(model, hardware, [[block] for block in shared], times, schedule=schedule), times, bound_us
        return
    all_choices = allowed(choices(hardware, parallelism, count, tries_all=bool(placed)), placed, parallelism)
    sizes = {block.size for blocks in all_choices for block in blocks}
    equal = equal_blocks(hardware, parallelism, count)
    if equal is not None and not set(placed.values()) <= set(equal):
        equal = None
    tried: dict[tuple[str, ...], Stages] = {}  # most numbers of micro-batches are cut near the same places
    for n in slices:
        times = TimesBySize(model, hardware, n, request.known)
        bound_us = times.bound_us(sizes, count, parallelism)
        needs = StageNeeds.of(times, sorted(sizes), REMAT not in request.without)
        limit = request.limit_bytes
        fastest = balanced(model, hardware, all_choices, times, placed, schedule, tried, needs, limit)
        found = [fastest]
        if equal is not None and fastest.blocks != equal:
            found = [balanced(model, hardware, [[block] for block in equal], times, placed, schedule, tried, needs, limit)]
            if fastest.time_us < (1 - WORTH_UNEQUAL) * found[0].time_us:
                found.append(fastest)
        fits = limit is not None and max(least_bytes(found[0].stages, needs, found[0].sizes, n)) <= CERTAINLY_FITS * limit
        if limit is not None and not fits:
            blocks = [[block] for block in found[0].blocks]
            without = balanced(model, hardware, blocks, times, placed, schedule, tried, needs)
            found += [without] if without.stages.cuts != found[0].stages.cuts else []
        for each in found:
            yield n, each, times, bound_us
    if fits:
        return
    least = least_memory(model, needs, found[0].blocks, slices[-1], placed)
    if least is not None and all(least.cuts != each.stages.cuts for each in found):
        yield slices[-1], Cut(least, found[0].blocks, math.nan, needs=needs), times, bound_us
