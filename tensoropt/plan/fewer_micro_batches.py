"""Predict from searched cuts what other plans cost, to search only what may be better: fewer micro-batches, or other cuts.

A stage's points are taken over with their strategies. With 1/r as many micro-batches each has r times as many samples, so
what it saves, sends and receives is predicted to be r times as much, though copies of parameters aren't. A stage's time
changes as its operators' least times do. That leaves out that fewer messages are sent, so a number of micro-batches is
searched unless it is predicted to be worse by MARGIN. Where a micro-batch had fewer samples than its stage has devices,
more samples can be split in other ways, and nothing is predicted.

Cut elsewhere into as many stages, a step takes at least the time with each operator split as it is fastest and nothing
communicated inside of stages. The least memory is predicted to be as many times that of a cut that was searched as it is
with all bytes split over a stage's devices: what can't be split doesn't get less. So a cut isn't searched if a point was
found that needs no more of both. Numbers of stages are compared where the batch is taken at once: all of it is in flight.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..profiling.hardware import Hardware
from .cuts import Cut
from .memory_cuts import least_bytes
from .stage_points import SearchedStages
from .stage_times import OperatorTimes, TimesBySize, beside, estimated_us, transfers, works

MARGIN, MEMORY_MARGIN = 0.01, 0.06
"""A number of micro-batches isn't searched if each point predicted of it takes longer and more memory than a point found, by
these shares. Predicted memory has been up to 6 % more than what a search finds."""


def is_left_out(
    cut: Cut,
    hardware: Hardware,
    times: TimesBySize,
    schedule: str | None,
    found: Sequence[SearchedStages],
    before: Sequence[SearchedStages],
) -> bool:
    """Return whether all points of a cut are predicted to be beaten by those found, so that it needn't be searched.

    Args:
        times: the operators' times in its number of micro-batches.
        found: what was searched in as many stages, in this number of micro-batches or more.
        before: what was searched in other numbers of stages.
    """
    of_stages, all_found = times.of(cut.sizes), [*before, *found]
    n = of_stages[0].graph.n_micro_batches
    of_more = [each for each in found if each.micro_batches > n]
    if not of_more:
        return is_beaten_elsewhere(cut, hardware, of_stages, schedule, all_found)
    if not can_predict(of_more):
        return False
    return is_beaten(in_fewer(nearest(of_more, cut.sizes), hardware, times, n), cut.time_us, all_found)


def nearest(found: Sequence[SearchedStages], sizes: Sequence[int]) -> SearchedStages:
    """Return the searched cut from which others that are cut for the least time are predicted: the fastest one.

    Args:
        sizes: the numbers of devices of their stages, which it has too if one has.
    """
    of_sizes = [each for each in found if [block.size for block in each.blocks] == list(sizes)]
    return min(of_sizes or found, key=lambda each: each.least_us)


def can_predict(found: Sequence[SearchedStages]) -> bool:
    """Return whether cuts were found, whose micro-batches have a sample for each device of a stage at least."""
    batches = [each.stages.whole.in_micro_batches(each.micro_batches).graph.micro_batching for each in found]
    largest = [max(frontier.mesh.n_devices for frontier in each.frontiers) for each in found]
    return bool(found) and all(
        batch is not None and batch.batch >= batch.n * n_devices for batch, n_devices in zip(batches, largest, strict=True)
    )


def in_fewer(searched: SearchedStages, hardware: Hardware, times: TimesBySize, n: int) -> SearchedStages:
    """Return what a cut's points are predicted to cost in ``n`` micro-batches.

    Args:
        times: the operators' times in so many.
    """
    stages, blocks = searched.stages, searched.blocks
    of_stages = times.of([block.size for block in blocks])
    of_works = works(stages, of_stages)
    costs = []
    for one, before, after in zip(searched.stage_costs, searched.works, of_works, strict=True):
        before_us, after_us = before.total(searched.micro_batches), after.total(n)
        costs.append(one.of_samples(searched.micro_batches / n, after_us / before_us if before_us else 1.0))
    return replace(
        searched,
        micro_batches=n,
        works=tuple(of_works),
        beside=tuple(beside(stages, hardware, blocks, of_stages)),
        transfers=transfers(stages, hardware, blocks, n),
        costs=tuple(costs),
    )


def is_beaten(predicted: SearchedStages, least_us: float, found: Sequence[SearchedStages]) -> bool:
    """Return whether found points beat all that is predicted of a cut, by MARGIN in time and by MEMORY_MARGIN.

    Args:
        least_us: the least time of a step in as many micro-batches, cut where that is least; all predicted times get less by
            as much as that is below the cut's own.
    """
    mem_bytes, time_us = all_points([predicted])
    expected_us = time_us * min(1.0, least_us / predicted.least_us) if predicted.least_us else time_us
    of_found, found_us = all_points(found)
    order = np.argsort(of_found, kind="stable")
    at = np.searchsorted(of_found[order], (1 - MEMORY_MARGIN) * mem_bytes, side="right") - 1
    fastest = np.minimum.accumulate(found_us[order])[np.maximum(at, 0)]
    return bool(((at >= 0) & ((1 + MARGIN) * fastest <= expected_us)).all())


def is_beaten_elsewhere(
    cut: Cut, hardware: Hardware, times: Sequence[OperatorTimes], schedule: str | None, found: Sequence[SearchedStages]
) -> bool:
    """Return whether a found point takes no longer than any of another cut and no more memory than all are predicted to.

    Args:
        times: for each stage of the cut those of operators on its devices.
        found: what was searched, in any numbers of stages.
    """
    n = times[0].graph.n_micro_batches
    compared = [each for each in found if each.micro_batches == n and (each.stages.n == cut.stages.n or n == 1)]
    if not compared or cut.needs is None:  # interleaved stages share memory
        return False
    least_us = cut.time_us
    if math.isnan(least_us):
        least_us = estimated_us(cut.stages, hardware, cut.blocks, times, schedule)
    ideal, predicted = max(least_bytes(cut.stages, cut.needs, cut.sizes, n)), math.inf
    for each in compared:
        of_each = max(least_bytes(each.stages, cut.needs, [block.size for block in each.blocks], n))
        predicted = min(predicted, float(all_points([each])[0].min()) * ideal / max(1.0, of_each))
    mem_bytes, time_us = all_points(found)
    return bool(((mem_bytes <= predicted) & (time_us <= least_us)).any())


def all_points(of_cuts: Sequence[SearchedStages]) -> tuple[np.ndarray, np.ndarray]:
    """Return memory and time of all combinations of points, int64[C] and float64[C]."""
    combinations = [each for of_cut in of_cuts for each in of_cut.combinations]
    return np.concatenate([each.mem_bytes for each in combinations]), np.concatenate([each.time_us for each in combinations])
