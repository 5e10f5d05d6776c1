"""Search plans in stages where no plan without them fits a memory limit: in 2 stages, then in 4, 8 and so on.

A limit that excludes all plans without stages mostly excludes those with stages too. Whoever then waits for an error
shouldn't wait much longer, so two quick looks come first:

1. Variables and their slots are at best divided by the number of devices, in stages as without. If a device's share alone
   is above the limit, nothing is searched.
2. A probe searches each number of stages in the most micro-batches alone, in the order of 1F1B, which holds the fewest of
   them, and without refinement. More stages are probed as long as they need less memory than fewer.

Where something fits, this number of stages is searched as if it had been asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ..common.errors import InputError
from ..common.memory_units import memory_text
from ..common.progress import Progress
from ..costs.held_bytes import least_held_bytes
from ..ft import ALGORITHMS
from ..ir.graph import VARIABLE
from ..program.schedule import ONE_FORWARD_ONE_BACKWARD
from ..search.problem.choices import STAGES
from ..search.problem.objectives import MEMORY_TIME
from .find_frontier import ModelFrontier
from .find_staged import frontier_of, possible_micro_batches, search_cuts, why_too_large
from .request import ONCE, Request
from .stage_points import SearchedStages
from .staged_frontier import StagedFrontier
from .staged_frontier_points import UnstagedPoint, reduced, staged_points

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
            probed = _probed(of_count, parallelism, count)
        except InputError:
            break  # the model can't be cut into so many
        few = reduced(staged_points(probed)[:FEW_PEAKS])
        probe = frontier_of(of_count, parallelism, (), probed, points=few)
        if why_too_large(probe, limit) is None:
            return _of_all(of_count, parallelism, count, tried, probe)
        if least is None or probe.points_of[0].n_bytes < least.points_of[0].n_bytes:
            least = probe
        needs = min(int(each.combinations[0].mem_bytes.min()) for each in probed)
        if needs >= counted:
            break
        counted = needs
    return least


def _may_help(request: Request, parallelism: int, limit_bytes: int) -> bool:
    """Return whether plans in stages are wanted and possible, and aren't known to be above the limit."""
    graph = request.model.graph
    is_possible = (
        request.may_take_stages
        and parallelism > 1
        and STAGES not in request.without
        and request.objectives == MEMORY_TIME
        and request.algorithm in ALGORITHMS
        and len(graph.train_steps) == 1
        and not graph.late
    )
    return is_possible and least_held_bytes(graph, 1, of=(VARIABLE,)) <= limit_bytes * parallelism


def _counts(parallelism: int) -> Iterator[int]:
    """Yield the numbers of stages that are probed: 2, 4, 8, up to that of devices."""
    count = 1
    while count < min(parallelism, MOST_STAGES):
        count = min(2 * count, parallelism)
        yield count


def _probed(request: Request, parallelism: int, count: int) -> list[SearchedStages]:
    """Return the cuts of a probe.

    Raises:
        InputError: the model can't be cut into so many stages.
    """
    most = request.micro_batches or possible_micro_batches(request, count)[-1]
    probe = replace(request, micro_batches=most, budget=ONCE)
    return search_cuts(probe, {}, parallelism, count, ONE_FORWARD_ONE_BACKWARD)


def _of_all(
    request: Request, parallelism: int, count: int, tried: Sequence[ModelFrontier], probe: StagedFrontier
) -> StagedFrontier:
    """Return the frontier of all plans in a number of stages, beside those without; the probe's where only that fits."""
    found = search_cuts(request, {}, parallelism, count, None)
    frontier = frontier_of(request, parallelism, tried, found)
    if frontier.fastest_within(request.limit_bytes) is None:
        frontier = probe
    limit = request.limit_bytes
    assert limit is not None
    if any(isinstance(point, UnstagedPoint) and point.n_bytes <= limit for point in frontier.points_of):
        return frontier
    return replace(frontier, why_stages=f"no plan without stages fits {memory_text(limit)}")


def _under(request: Request, count: int) -> Progress | None:
    """Return a progress callback that says before each phase why it is in stages."""
    said = request.progress
    if said is None:
        return None
    return lambda phase, done, total: said(f"no plan without stages fits; in {count} stages, {phase}", done, total)
