"""Predict from a searched cut what its plans cost in fewer micro-batches, to search only numbers that may be better.

A stage's points are taken over with their strategies. With 1/r as many micro-batches each has r times as many samples, so
what it saves, sends and receives is predicted to be r times as much, though copies of parameters aren't. A stage's time
changes as its operators' least times do. That leaves out that fewer messages are sent, so a number of micro-batches is
searched unless it is predicted to be worse by MARGIN. Where a micro-batch had fewer samples than its stage has devices,
more samples can be split in other ways, and nothing is predicted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..profiling.hardware import Hardware
from .stage_points import SearchedStages
from .stage_times import TimesBySize, beside, transfers, works

MARGIN, MEMORY_MARGIN = 0.01, 0.06
"""A number of micro-batches isn't searched if each point predicted of it takes longer and more memory than a point found, by
these shares. Predicted memory has been up to 6 % more than what a search finds."""


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
    mem_bytes, time_us = _points([predicted])
    of_found, found_us = _points(found)
    expected_us = time_us * min(1.0, least_us / predicted.least_us) if predicted.least_us else time_us
    order = np.argsort(of_found, kind="stable")
    at = np.searchsorted(of_found[order], (1 - MEMORY_MARGIN) * mem_bytes, side="right") - 1
    fastest = np.minimum.accumulate(found_us[order])[np.maximum(at, 0)]
    return bool(((at >= 0) & ((1 + MARGIN) * fastest <= expected_us)).all())


def _points(of_cuts: Sequence[SearchedStages]) -> tuple[np.ndarray, np.ndarray]:
    """Return memory and time of all combinations of points, int64[C] and float64[C]."""
    combinations = [each for of_cut in of_cuts for each in of_cut.combinations]
    return np.concatenate([each.mem_bytes for each in combinations]), np.concatenate([each.time_us for each in combinations])
