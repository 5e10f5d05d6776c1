"""Search plans in stages where no plan without them fits a memory limit: in 2 stages, then in 4, 8 and so on.

A limit that excludes all plans without stages mostly excludes those with stages too. Whoever then waits for an error
shouldn't wait much longer, so two quick looks come first:

1. Variables, their slots and in micro-batches the sums of their gradients are at best divided by the number of devices, in
   stages as without. If a device's share alone is above the limit, nothing is searched.
2. A probe searches each number of stages in the most micro-batches alone that are searched by default, in the order of
   1F1B, which holds the fewest of them, and without refinement. More micro-batches, up to a sample for each device of a
   stage, are probed only if what a micro-batch saves, divided so, leaves enough room beside what is held anyway. More stages
   are probed as long as they need less memory than fewer.

Where something fits, this number of stages is searched as if it had been asked for; where that takes more micro-batches than
are searched by default, in the fewest of these.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ..common.errors import InputError
from ..common.memory_units import memory_text
from ..common.progress import Progress
from ..costs.held_bytes import least_held_bytes, least_summed_bytes
from ..ir.graph import VARIABLE
from ..program.schedule import ONE_FORWARD_ONE_BACKWARD
from ..sharding.model import Model
from .find_frontier import ModelFrontier
from .find_staged import frontier_of, possible_micro_batches, search_cuts, why_too_large
from .request import ONCE, Request
from .stage_memory import StageCosts
from .stage_points import SearchedStages
from .staged_frontier import StagedFrontier
from .staged_frontier_points import reduced, staged_points
from .stages_that_pay import may_take_stages

MOST_STAGES = 8
FEW_PEAKS = 4
"""So many points of least memory of a probe are evaluated: peaks rise with memory but for little."""


def frontier_in_stages(request: Request, parallelism: int, tried: Sequence[ModelFrontier]) -> StagedFrontier | None:
    """Return a frontier with plans in the fewest stages in which one fits.

    If none fits it has the point of least memory that was found. It is None where plans in stages aren't wanted, aren't
    possible, or certainly don't fit.

    Args:
        tried: the frontiers without stages, on which nothing fits.
    """
    limit = request.limit_bytes
    if limit is None or not _may_help(request, parallelism, limit):
        return None
    least: StagedFrontier | None = None
    counted = min(int(each.certified.mem_bytes.min()) for each in tried)
    for count in _counts(parallelism):
        of_count = replace(request, progress=_under(request, count))
        try:
            probe = _probe(of_count, parallelism, count)
        except InputError:
            break  # the model can't be cut into so many
        if why_too_large(probe, limit) is None:
            return _of_all(of_count, parallelism, count, tried, probe)
        probe, n = _in_more(of_count, parallelism, count, probe)
        if why_too_large(probe, limit) is None:
            return _of_all(replace(of_count, micro_batches=n), parallelism, count, tried, probe)
        if least is None or probe.points_of[0].n_bytes < least.points_of[0].n_bytes:
            least = probe
        needs = min(int(each.combinations[0].mem_bytes.min()) for each in probe.searched)
        if needs >= counted:
            break
        counted = needs
    return least


def _may_help(request: Request, parallelism: int, limit_bytes: int) -> bool:
    """Return whether plans in stages are wanted and possible, and aren't known to be above the limit."""
    # Else plans without stages weren't searched in several micro-batches, which might fit.
    is_open = request.searches_micro_batches or request.micro_batches is not None
    if not (is_open and may_take_stages(request, parallelism)):
        return False
    held = least_held_bytes(request.model.graph, 1, of=(VARIABLE,))
    n = request.micro_batches or possible_micro_batches(request, 2)[0]
    if n > 1:
        held += least_summed_bytes(request.model.in_micro_batches(n), 1)
    return held <= limit_bytes * parallelism


def _counts(parallelism: int) -> Iterator[int]:
    """Yield the numbers of stages that are probed: 2, 4, 8, up to that of devices."""
    count = 1
    while count < min(parallelism, MOST_STAGES):
        count = min(2 * count, parallelism)
        yield count


def _probe(request: Request, parallelism: int, count: int) -> StagedFrontier:
    """Return the points of least memory of a probe.

    Raises:
        InputError: the model can't be cut into so many stages.
    """
    most = request.micro_batches or possible_micro_batches(request, count)[-1]
    probe = replace(request, micro_batches=most, budget=ONCE)
    probed = search_cuts(probe, {}, parallelism, count, ONE_FORWARD_ONE_BACKWARD)[0]
    return frontier_of(request, parallelism, probed, points=reduced(staged_points(probed)[:FEW_PEAKS]))


def _in_more(request: Request, parallelism: int, count: int, probe: StagedFrontier) -> tuple[StagedFrontier, int]:
    """Return a probe in the fewest micro-batches that fit, beyond those of one that doesn't; or what needs the least.

    Returns:
        The probe, and its number of micro-batches.
    """
    limit, first = request.limit_bytes, probe.searched[0].micro_batches
    assert limit is not None
    if request.micro_batches is not None or first == 1:
        return probe, first
    possible = _more_micro_batches(request.model, first, parallelism // count)
    if not possible or min(_hoped_for_bytes(each, possible[-1]) for each in probe.searched) > limit:
        return probe, first
    try:
        most = _probe(replace(request, micro_batches=possible[-1]), parallelism, count)
    except InputError:  # what is forced can't be so
        return probe, first
    if why_too_large(most, limit) is not None:
        return min((probe, first), (most, possible[-1]), key=lambda each: each[0].points_of[0].n_bytes)
    for n in possible[:-1]:
        try:
            fewer = _probe(replace(request, micro_batches=n), parallelism, count)
        except InputError:
            continue
        if why_too_large(fewer, limit) is None:
            return fewer, n
    return most, possible[-1]


def _more_micro_batches(model: Model, first: int, n_devices: int) -> list[int]:
    """Return 2, 4, 8, ... times ``first`` micro-batches, of those in which the model can be trained.

    Args:
        n_devices: the least number of samples that each has.
    """
    micro_batching = model.in_micro_batches(first).graph.micro_batching
    assert micro_batching is not None
    found, n = [], 2 * first
    while micro_batching.batch // n >= n_devices:
        try:
            model.in_micro_batches(n)
        except InputError:
            pass
        else:
            found.append(n)
        n *= 2
    return found


def _hoped_for_bytes(searched: SearchedStages, n: int) -> int:
    """Return what the stage that needs the most would need in ``n`` micro-batches, if all that they save were divided.

    It is the sum that is searched, which may be above the peak: where that alone would fit, nothing more is looked at.
    """
    found = []
    for stage, frontier in enumerate(searched.frontiers):
        costs, order = StageCosts.of(frontier), searched.combinations[0].order
        held = costs.mem_bytes - costs.saved_bytes
        saved = costs.bytes_of(stage, order) - held
        found.append(int(held.min() + saved.min() * searched.micro_batches / n))
    return max(found)


def _of_all(
    request: Request, parallelism: int, count: int, tried: Sequence[ModelFrontier], probe: StagedFrontier
) -> StagedFrontier:
    """Return the frontier of all plans in a number of stages, beside those without; the probe's where only that fits."""
    found = search_cuts(request, {}, parallelism, count, None)[0]
    frontier = frontier_of(request, parallelism, [*map(SearchedStages.whole, tried), *found])
    if frontier.fastest_within(request.limit_bytes) is None:
        frontier = probe
    limit = request.limit_bytes
    assert limit is not None
    if any(point.n_stages == 1 and point.n_bytes <= limit for point in frontier.points_of):
        return frontier
    return replace(frontier, why_stages=f"no plan without stages fits {memory_text(limit)}")


def _under(request: Request, count: int) -> Progress | None:
    """Return a progress callback that says before each phase why it is in stages."""
    said = request.progress
    if said is None:
        return None
    return lambda phase, done, total: said(f"no plan without stages fits; in {count} stages, {phase}", done, total)
