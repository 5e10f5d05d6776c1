"""Find plans in the stages that a user asks for, with those without where these are asked for, too."""

from __future__ import annotations

from collections.abc import Sequence

from ...common.errors import InputError
from ...common.garbage import older_objects_kept
from ...costs.objectives import MEMORY_TIME
from ...ft import ALGORITHMS
from ...program.interleaved import INTERLEAVED
from ...program.schedule import check_schedule
from ..asked import Request
from ..problem.choices import ACCUMULATE, STAGES
from ..stages.placement import fewest_stages
from ..stages.points import SearchedStages
from .search_candidates import CandidateSearch


@older_objects_kept()
def search_with_stages(request: Request, parallelism: int) -> CandidateSearch:
    """Search plans with the numbers of stages that a request asks for; unasked whatever is best.

    They needn't be within the memory limit, see :func:`.joined_frontier.why_too_large`. A number that isn't possible beside
    others that are is left out; the frontier says so.

    Raises:
        InputError: none of the numbers is possible, or the request has what can't be combined with stages.
    """
    search, schedule = CandidateSearch(request, parallelism), request.schedule
    if not request.asks_for_stages:
        if schedule is not None:
            raise InputError(f"schedule={schedule!r} is the order in which stages run; give stages=2 or more with it")
        return search.search_all()
    if schedule is not None:
        check_schedule(schedule)
    placed = search.cutting.placed
    if placed and schedule == INTERLEAVED:
        raise InputError(
            "schedule='interleaved' has stages share their devices, and operators are placed; leave one of the two"
        )
    search.counts = _allowed_counts(request, fewest_stages(placed, parallelism) if placed else 1)
    search.search_all()
    if not search.cuts and not search.whole:
        raise InputError(search.left_out[0])
    search.left_out += _why_beaten(search)
    if search.cuts and request.micro_batches is None and all(cut.micro_batches == 1 for cut in search.cuts):
        search.left_out += _why_at_once(request, search.cuts)
    return search


def _allowed_counts(request: Request, fewest: int) -> tuple[int, ...]:
    """Return the numbers of stages that a request asks for, of those that go with its placement.

    Raises:
        InputError: it has what can't be combined with stages.
    """
    requested = request.stages or (fewest,)
    if fewest > 1 and set(requested) == {1}:
        raise InputError(f"stages=1 is asked for, and operators are placed in {fewest} stages; leave one of the two")
    counts = tuple(count for count in requested if count > 1 or fewest == 1)
    option = f"stages={counts[0] if len(counts) == 1 else counts}"
    if STAGES in request.without:
        if 1 not in counts:
            raise InputError(f"{option} is asked for, and to do without '{STAGES}'; leave one of the two")
        return (1,)
    if max(counts) > 1:
        if request.objectives != MEMORY_TIME:
            raise InputError(
                f"{option} trades memory and time, got the objectives {','.join(request.objectives)}; leave one of the two"
            )
        if request.algorithm not in ALGORITHMS:
            raise InputError(
                f"algorithm '{request.algorithm}' knows no stages; leave out {option}, or search with {ALGORITHMS[0]}"
            )
        if request.hardware.topology is not None and request.hardware.topology.is_uneven:
            raise InputError(f"{option} isn't searched on devices of unequal speed, as {request.hardware.name} has")
        if request.model.graph.late:
            request.model.in_micro_batches(2)  # says why not
        if (n_steps := len(request.model.graph.train_steps)) > 1:
            raise InputError(f"{option} is for one training step, and the model has {n_steps}; record one, or use stages=1")
    return counts


def _why_beaten(search: CandidateSearch) -> list[str]:
    """Return which numbers of stages and of micro-batches weren't searched, as others are predicted to be better."""
    pairs, counts = {(cut.stages.n, cut.micro_batches) for cut in search.cuts}, dict[int, list[str]]()
    for count, n in sorted(search.bounds_us):
        counts.setdefault(count, []).extend([str(n)] if n > 1 and (count, n) not in pairs else [])
    searched_counts = {count for count, _ in pairs}
    options = [
        f"{count} stages" + (f" in {' or '.join(slices)} micro-batches" if count in searched_counts else "")
        for count, slices in counts.items()
        if slices or count not in searched_counts
    ]
    return [f"{option} are predicted to be beaten by what was searched" for option in options]


def _why_at_once(request: Request, cuts: Sequence[SearchedStages]) -> list[str]:
    """Return why stages take the batch at once, where that wasn't asked for."""
    if ACCUMULATE in request.without:
        return []
    try:
        request.model.in_micro_batches(2)
    except InputError as error:
        branches = ", but for branches" if any(any(cut.stages.early) for cut in cuts) else ""
        return [f"stages run one after the other{branches}, on the whole batch: {error}"]
    return []
