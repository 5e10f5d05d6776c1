"""Ways to train a model that a search chooses from: in how many stages and micro-batches, cut where, in what order.

A candidate in stages whose cut is open is *opened* into the cuts that are tried (:class:`Cutting`); one that is cut, or that
has one stage, is searched. Each has a bound of a step's time and of a device's memory.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

import numpy as np

from ...common.errors import InputError
from ...common.words import counted
from ...program.orders.interleaved import INTERLEAVED
from ...program.orders.schedule import least_in_flight
from ...sharding.model import Model
from ...sharding.stages import Stages
from ..problem.choices import ACCUMULATE, REMAT
from ..request import Request
from ..stages.cuts import Cut, balanced
from ..stages.needs import StageNeeds
from ..stages.placement import (
    Block,
    allowed,
    choices,
    elsewhere,
    equal_blocks,
    interleaved_blocks,
    interleaved_counts,
    why_not_placed,
)
from ..stages.times import TimesBySize, estimated_us

MICRO_BATCHES_PER_STAGE = (1, 2, 4)
"""Without a number of micro-batches so many for each stage, or submesh, are searched, where the batch can be divided so."""
WORTH_AT_ONCE = 1 / 3
"""The batch is also taken at once where two stages can run this share of all operators' time at the same time."""
CERTAINLY_FITS = 0.5
"""A memory limit is certainly kept by cuts whose estimated need is at most this share of it."""
FEW_CUTS, MOST_COUNTED = 16, 256
"""All few cuts are candidates where stages are asked for: the last points are often between the fastest and the smallest."""
WORTH_UNEQUAL = 0.02
"""Stages of unequally many devices are searched beside equal ones where they are predicted to save this share of a step."""


@dataclass(frozen=True, eq=False, slots=True)
class Candidate:
    """A way to train a model, with what no plan of it does with less than.

    Attributes:
        n_stages: the number of stages; 1 for a model that isn't cut.
        schedule: the name of the order of the stages' passes; None where it is chosen.
        cut: where the model is cut, and on which devices; None of one stage, or where it is open.
        least_us: the time of a step; minus infinity where it wasn't looked at.
        least_bytes: the memory of the device that needs the most.
        n_alike: so many candidates share a search's budget.
    """

    n_stages: int
    micro_batches: int
    schedule: str | None = None
    cut: Cut | None = None
    least_us: float = -math.inf
    least_bytes: float = 0.0
    n_alike: int = 1


@dataclass(frozen=True, eq=False)
class Cutting:
    """The cuts of a request's model that are tried, and what they are chosen by.

    Attributes:
        placed: the devices of the operators that a user placed, by name.
        schedule: the order of the stages' passes.
    """

    request: Request
    placed: Mapping[str, Block]
    parallelism: int
    schedule: str | None
    _times: dict[int, TimesBySize] = field(default_factory=dict)
    _tried: dict[tuple[str, ...], Stages] = field(default_factory=dict)  # numbers of micro-batches are cut near each other
    _opened: dict[tuple[int, int, bool, bool], list[Candidate]] = field(default_factory=dict)

    def times(self, n: int) -> TimesBySize:
        """Return the operators' times in ``n`` micro-batches."""
        if n not in self._times:
            self._times[n] = TimesBySize(self.request.model, self.request.hardware, n, self.request.known)
        return self._times[n]

    def shared(self, count: int) -> Sequence[Block] | None:
        """Return the devices of interleaved stages; None for others."""
        return interleaved_blocks(self.request.hardware, self.parallelism, count) if self._is_interleaved else None

    def possible(self, count: int) -> list[Candidate]:
        """Return a number of stages in the numbers of micro-batches that are tried, ascending.

        Raises:
            InputError: there are more stages than devices, or the model can't be trained in micro-batches.
        """
        devices, hardware = counted(self.parallelism, "device"), self.request.hardware
        if not self._is_interleaved and count > self.parallelism:
            raise InputError(f"{count} stages on {devices}: each takes one at least; give {self.parallelism} or fewer")
        try:
            hardware.mesh(self.parallelism)
        except ValueError as error:
            raise InputError(f"{count} stages: {error}") from error
        shared = self.shared(count)
        if self._is_interleaved and shared is None:
            counts = interleaved_counts(hardware, self.parallelism)
            advice = f"ask for {' or '.join(map(str, counts))} stages, or for another schedule"
            raise InputError(
                f"{count} stages can't be interleaved on {devices}: two submeshes or more of equal size have two stages or "
                f"more each; {advice if counts else 'use another one'}"
            )
        slices = possible_micro_batches(self.request, len(set(shared)) if shared else count)
        if shared and slices == [1]:
            self.request.model.in_micro_batches(2)  # says why not
            raise InputError(
                "interleaved stages take a batch in micro-batches, got one; ask for more, or for another schedule"
            )
        return [Candidate(count, n, self.schedule, n_alike=count * len(slices)) for n in slices]

    def bounded(self, candidate: Candidate) -> Candidate:
        """Return a candidate whose cut is open with a time that no step beats, wherever the model is cut."""
        count, shared = candidate.n_stages, self.shared(candidate.n_stages)
        block_choices = [shared] if shared else self._choices(count)
        sizes = {block.size for blocks in block_choices for block in blocks}
        n_submeshes = len(set(shared)) if shared else count
        least_us = self.times(candidate.micro_batches).bound_us(sizes, n_submeshes, self.parallelism)
        return replace(candidate, least_us=max(candidate.least_us, least_us))

    def opened(self, candidate: Candidate, has_least: bool, has_few: bool) -> list[Candidate]:
        """Return the cuts that are tried of a candidate whose cut is open.

        Args:
            has_least: whether the cut of least memory is among them.
            has_few: whether all cuts are where these are few.

        Raises:
            InputError: the model can't be cut into so many stages.
        """
        n, key = candidate.micro_batches, (candidate.n_stages, candidate.micro_batches, has_least, has_few)
        if key in self._opened:
            return [*self._opened[key]]
        cuts, faults = list[Cut](), list[InputError]()
        for cut in self._cuts(candidate.n_stages, n, has_least, has_few):
            try:
                cut.stages.check_optimizers()
                cuts.append(cut)
            except InputError as error:
                faults.append(error)
        if not cuts:
            raise faults[0]
        n_alike, candidates = candidate.n_alike * len(cuts), self._opened.setdefault(key, [])
        for cut in cuts:
            time_us, n_bytes = cut.time_us, 0.0
            if math.isnan(time_us):
                try:
                    device_us = self.times(n).of(cut.sizes)
                    time_us = estimated_us(cut.stages, self.request.hardware, cut.blocks, device_us, self.schedule)
                except InputError:
                    time_us = math.inf
            if cut.needs is not None:
                n_bytes = max(least_bytes(cut.stages, cut.needs, cut.sizes, n))
            candidates.append(replace(candidate, cut=cut, least_us=time_us, least_bytes=n_bytes, n_alike=n_alike))
        return [*candidates]

    def _cuts(self, count: int, n: int, has_least: bool, has_few: bool) -> Iterator[Cut]:
        """Yield the cut of least time into stages of equally many devices, and others that may be better.

        One into stages of other sizes is if it is predicted to save WORTH_UNEQUAL of a step. Within a memory limit these
        rematerialize to fit. Where it isn't certain that a limit is kept, that of least memory and those of least time
        whatever the memory are tried, too.
        """
        model, hardware, limit = self.request.model, self.request.hardware, self.request.limit_bytes
        times, shared = self.times(n), self.shared(count)
        if shared is not None:
            yield balanced([[block] for block in shared], times, schedule=self.schedule)
            return
        all_choices = self._choices(count)
        sizes = {block.size for blocks in all_choices for block in blocks}
        needs = StageNeeds.of(times, sorted(sizes), REMAT not in self.request.without)
        equal = equal_blocks(hardware, self.parallelism, count)
        if equal is not None and not set(self.placed.values()) <= set(equal):
            equal = None

        def fastest(blocks_by_stage: Sequence[Sequence[Block]], limit_bytes: int | None = limit) -> Cut:
            return balanced(blocks_by_stage, times, self.placed, self.schedule, self._tried, needs, limit_bytes)

        cuts = [fastest([list(blocks) for blocks in all_choices])]
        if equal is not None and cuts[0].blocks != equal:
            cuts.insert(0, fastest([[block] for block in equal]))
            if cuts[1].time_us >= (1 - WORTH_UNEQUAL) * cuts[0].time_us:
                cuts.pop()
        is_sure = limit is not None and max(least_bytes(cuts[0].stages, needs, cuts[0].sizes, n)) <= CERTAINLY_FITS * limit
        if limit is not None and not is_sure:
            unlimited = fastest([[block] for block in cuts[0].blocks], None)
            cuts += [unlimited] if unlimited.stages.cuts != cuts[0].stages.cuts else []
        yield from cuts
        known_cuts = {(cut.stages.cuts, cut.blocks) for cut in cuts}
        few_cuts = self._all_of_few(all_choices, needs) if has_few else []
        yield from (cut for cut in few_cuts if (cut.stages.cuts, cut.blocks) not in known_cuts)
        stages = None if is_sure or not has_least else least_memory(model, needs, cuts[0].blocks, n, self.placed)
        if stages is not None and all(stages.cuts != cut.stages.cuts for cut in cuts):
            yield Cut(stages, cuts[0].blocks, math.nan, needs=needs)

    def _all_of_few(self, blocks_by_stage: Sequence[Sequence[Block]], needs: StageNeeds) -> list[Cut]:
        """Return all cuts on all devices; none where they are more than FEW_CUTS."""
        count, n = len(blocks_by_stage), len(needs.names)
        n_ways = [Counter({self.parallelism: 1})]  # in which the stages from each on can follow a device
        for blocks in reversed(blocks_by_stage):
            n_ways.append(Counter())
            for block in blocks:
                n_ways[-1][block.first] += n_ways[-2][block.end]
        if math.comb(n - 1, count - 1) * n_ways.pop().total() > MOST_COUNTED:
            return []
        all_blocks: list[tuple[Block, ...]] = [()]
        for blocks in blocks_by_stage:
            n_followers = n_ways.pop()
            all_blocks = [
                (*prefix, block)
                for prefix in all_blocks
                for block in blocks
                if n_followers[block.end] and (not prefix or prefix[-1].end == block.first)
            ]
        cuts = []
        for places in combinations(range(1, n), count - 1):
            if (np.diff(needs.trained[[0, *places, n]]) > 0).all():
                stages = Stages(self.request.model, tuple(needs.names[place - 1] for place in places))
                placements = (blocks for blocks in all_blocks if why_not_placed(stages, blocks, self.placed) is None)
                cuts += [Cut(stages, blocks, math.nan, needs=needs) for blocks in placements]
        return cuts if len(cuts) <= FEW_CUTS else []

    @property
    def _is_interleaved(self) -> bool:
        return self.schedule == INTERLEAVED

    def _choices(self, count: int) -> Sequence[Sequence[Block]]:
        """Return for each stage the devices that it may have."""
        options = choices(self.request.hardware, self.parallelism, count, tries_all=bool(self.placed))
        return [list(blocks) for blocks in allowed(options, self.placed, self.parallelism)]


def possible_micro_batches(request: Request, n_submeshes: int) -> list[int]:
    """Return the numbers of micro-batches that are searched, ascending; 1 where several aren't possible or not wanted.

    Args:
        n_submeshes: the number of stages that run at the same time.
    """
    if request.micro_batches:
        return [request.micro_batches]
    if ACCUMULATE in request.without:
        return [1]
    counts = {most_micro_batches(request.model, n_per_stage * n_submeshes) for n_per_stage in MICRO_BATCHES_PER_STAGE} - {1}
    return sorted(counts) or [1]


def most_micro_batches(model: Model, limit: int, default: int = 1) -> int:
    """Return the largest number of micro-batches up to ``limit`` in which the model can be trained.

    Args:
        default: the number to return where no larger one is possible.
    """
    return next(filter(model.takes_micro_batches, range(limit, default, -1)), default)


def least_memory(
    model: Model, needs: StageNeeds, blocks: Sequence[Block], n_micro_batches: int, placed: Mapping[str, Block]
) -> Stages | None:
    """Return a model cut such that the device that needs most memory needs the least, as :mod:`..stages.needs` counts it.

    It is None if the model has too few variables, or if operators wouldn't be as they are placed.

    O(stages N^2) for N operators.

    Args:
        blocks: for each stage its devices.
        placed: the devices of the operators that a user placed, by name.
    """
    n, in_flight = len(needs.names), least_in_flight(len(blocks), n_micro_batches)
    places = np.arange(n + 1)
    peaks, best_starts = np.where(places == 0, 0.0, np.inf), []
    for count, block in zip(in_flight, blocks, strict=True):
        elsewhere_counts, least, firsts = elsewhere(needs.names, placed, block), np.empty(n + 1), np.empty(n + 1, np.int64)
        for ends in np.split(places[None], range(64, n + 1, 64), axis=1):  # arrays of all ends don't fit a core's cache
            # By start (row), which is before the end, and end (column) of a stage.
            starts = places[: ends[0, -1], None]
            n_bytes = needs.least_bytes(starts, ends, count) / block.size
            is_trained = (needs.trained[ends] > needs.trained[starts]) & (elsewhere_counts[ends] == elsewhere_counts[starts])
            costs = np.where(is_trained, np.maximum(n_bytes, peaks[starts]), np.inf)
            least[ends], firsts[ends] = costs.min(axis=0), costs.argmin(axis=0)
        peaks = least
        best_starts.append(firsts)
    if np.isinf(peaks[-1]):
        return None
    place = n
    cuts: list[str] = []
    for starts_of_stage in reversed(best_starts[1:]):
        place = int(starts_of_stage[place])
        cuts.insert(0, needs.names[place - 1])
    stages = Stages(model, tuple(cuts))
    return stages if why_not_placed(stages, blocks, placed) is None else None


def least_bytes(stages: Stages, needs: StageNeeds, sizes: Sequence[int], n_micro_batches: int) -> list[float]:
    """Return the bytes that each stage of a cut needs at least, on a device, as :func:`least_memory` counts them.

    Args:
        sizes: for each stage the number of its devices.
    """
    in_flight = least_in_flight(stages.n, n_micro_batches)
    bounds = [0, *(needs.names.index(name) + 1 for name in stages.cuts), len(needs.names)]
    spans = zip(bounds[:-1], bounds[1:], in_flight, sizes, strict=True)
    return [float(needs.least_bytes(start, end, count)) / size for start, end, count, size in spans]
