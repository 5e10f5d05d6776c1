"""Bound what candidates cost by what was searched, so that only those are searched that may be better.

A bound is a staircase of corners: each point of a candidate needs at least the memory and takes at least the time of one.

*In fewer micro-batches* than a cut that was searched, no point needs less memory than there. Times change as that of a step
does with each operator split as it is fastest. That leaves out that fewer messages are sent, so a number of micro-batches is
searched unless it is predicted to take longer by MARGIN. Where a micro-batch had fewer samples than its stage has devices,
more samples can be split in other ways, and nothing is predicted.

*Cut elsewhere* a step takes at least the time with each operator split as it is fastest and nothing communicated inside of
stages. The least memory is predicted to be as many times that of a cut that was searched as it is with all bytes split over
a stage's devices: what can't be split doesn't get less. Numbers of stages are compared where the batch is taken at once: all
of it is in flight.

*Without stages* more micro-batches are never faster than fewer, and save at best their part of what isn't held anyway.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ..frontiers.model_frontier import ModelFrontier
from ..stages.points import SearchedStages
from ..stages.times import estimated_us
from .candidate import Candidate, Cutting, least_bytes

SMALL = 100
"""Up to so many operators nothing is predicted: a search takes little, and messages and what isn't split count."""
MARGIN = 0.01
"""Fewer micro-batches must be predicted to take longer by this share not to be searched."""
MEMORY_MARGIN = 0.06
"""The memory that a model without stages needs in more micro-batches may be less by this share than what is predicted."""


class Corners(NamedTuple):
    """Pairs of memory and time, K of them.

    Attributes:
        mem_bytes: float64[K] or int64[K].
        time_us: float64[K].
    """

    mem_bytes: np.ndarray
    time_us: np.ndarray

    def are_beaten(self, points: Corners) -> bool:
        """Return whether for each corner some point needs no more memory and takes no longer."""
        if not len(points.mem_bytes):
            return not len(self.mem_bytes)
        order = np.argsort(points.mem_bytes, kind="stable")
        positions = np.searchsorted(points.mem_bytes[order], self.mem_bytes, side="right") - 1
        fastest = np.minimum.accumulate(points.time_us[order])[np.maximum(positions, 0)]
        return bool(((positions >= 0) & (fastest <= self.time_us)).all())

    def within(self, limit_bytes: int) -> Corners:
        """Return those of a memory limit."""
        return Corners(*(column[self.mem_bytes <= limit_bytes] for column in self))


def points_of(cuts: Sequence[SearchedStages]) -> Corners:
    """Return memory and time of all combinations of points of cuts."""
    combinations = [points for cut in cuts for points in cut.combinations]
    columns = [(points.mem_bytes, points.time_us) for points in combinations] or [(np.zeros(0), np.zeros(0))]
    return Corners(*map(np.concatenate, zip(*columns, strict=True)))


def bound_of_cut(candidate: Candidate, cutting: Cutting, searched_cuts: Sequence[SearchedStages]) -> Corners:
    """Return the bound of a candidate that is cut, by the cuts that were searched."""
    cut, n, own_us = candidate.cut, candidate.micro_batches, candidate.least_us
    assert cut is not None
    same_count = [searched for searched in searched_cuts if searched.stages.n == cut.stages.n]
    finer = [searched for searched in same_count if searched.micro_batches > n]
    if len(cut.stages.whole.graph.step_operators) <= SMALL:
        return Corners(np.array([candidate.least_bytes]), np.array([own_us]))
    if finer and can_predict(finer):
        same_sizes = [searched for searched in finer if [block.size for block in searched.blocks] == list(cut.sizes)]
        nearest = min(same_sizes or finer, key=lambda searched: searched.least_us)
        times = cutting.times(n).of([block.size for block in nearest.blocks])
        same_us = estimated_us(nearest.stages, cutting.request.hardware, nearest.blocks, times, candidate.schedule)
        ratio = min(own_us, same_us) / nearest.least_us if nearest.least_us else 1.0
        mem_bytes, time_us = points_of([nearest])
        return Corners(mem_bytes, ratio * time_us / (1 + MARGIN))
    peers = [searched for searched in (searched_cuts if n == 1 else same_count) if searched.micro_batches == n]
    if finer or not peers or cut.needs is None:  # interleaved stages share memory
        return Corners(np.zeros(1), np.array([own_us]))
    return Corners(np.array([_predicted_bytes(candidate, peers)]), np.array([own_us]))


def _predicted_bytes(candidate: Candidate, peers: Sequence[SearchedStages]) -> float:
    """Return the least memory that is predicted of a cut, by that of others in as many micro-batches."""
    cut, predicted = candidate.cut, math.inf
    assert cut is not None and cut.needs is not None
    for peer in peers:
        n_bytes = max(least_bytes(peer.stages, cut.needs, [block.size for block in peer.blocks], candidate.micro_batches))
        predicted = min(predicted, float(points_of([peer]).mem_bytes.min()) * candidate.least_bytes / max(1.0, n_bytes))
    return predicted


def can_predict(cuts: Sequence[SearchedStages]) -> bool:
    """Return whether the micro-batches of cuts have a sample for each device of a stage at least."""
    batches = [cut.stages.whole.in_micro_batches(cut.micro_batches).graph.micro_batching for cut in cuts]
    largest = [max(frontier.mesh.n_devices for frontier in cut.frontiers) for cut in cuts]
    return all(
        batch is not None and batch.batch >= batch.n * n_devices for batch, n_devices in zip(batches, largest, strict=True)
    )


def bound_of_whole(candidate: Candidate, frontiers: Sequence[ModelFrontier]) -> Candidate:
    """Return a candidate without stages with its bound by the frontiers that were searched in fewer micro-batches.

    Where the most of these don't need less memory than fewer, nothing is left to be saved.
    """
    n, floor = candidate.micro_batches, candidate.least_bytes
    fewer = {result.model.graph.n_micro_batches: result for result in frontiers if result.model.graph.n_micro_batches < n}
    if not fewer:
        return candidate
    minima = [_least_of_whole(fewer[n_slices]) for n_slices in sorted(fewer)]
    is_saturated = len(minima) > 1 and minima[-1] >= minima[-2]
    n_bytes = math.inf if is_saturated else floor + max(0.0, (1 - MEMORY_MARGIN) * minima[-1] - floor) * max(fewer) / n
    least_us = max(int(result.costs.time_ns.min()) for result in fewer.values()) / 1e3
    return replace(candidate, least_bytes=n_bytes, least_us=least_us)


def _least_of_whole(frontier: ModelFrontier) -> int:
    peaks = frontier.all_peaks
    return int((frontier.certified.mem_bytes if peaks is None else peaks).min())
