"""What is asked of a search, and the searches for it at one parallelism: with the batch in whole, and in micro-batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from .baselines import BASELINES
from .choices import ACCUMULATE
from .errors import InputError
from .forcing import Force
from .frontier import Model, ModelFrontier, Progress, find_frontier
from .ft import Budget, InfeasibleError
from .objectives import MEMORY_TIME, Objectives
from .profiling.hardware import Hardware
from .profiling.work import NOTHING_KNOWN, Known

OF_CURVE = Budget(seconds=1.0, gap=0.01)
"""Where a search is one of several."""


@dataclass(frozen=True)
class Request:
    """What is asked of a search.

    Attributes:
        limit_bytes: per device; None without a limit.
        force: degrees of factors, by operator.
        assumed: what a plan records of its assumptions.
        algorithm: of the search.
        space: that is searched; None to go by the size of the full one.
        objectives: the two costs to search.
        budget: how hard to search; None for the default, which is less for each point of a curve.
        progress: is told (stage, done, total).
        known: of operators, by measuring.
        without: choices that strategies don't have, see :mod:`.choices`.
        micro_batches: in how many slices a step takes its batch; None to choose, where the memory limit asks for it.
    """

    model: Model
    hardware: Hardware
    limit_bytes: int | None
    force: Force = field(default_factory=dict)
    assumed: dict[str, object] = field(default_factory=dict)
    algorithm: str = "ft-ldp"
    progress: Progress | None = None
    space: str | None = None
    objectives: Objectives = MEMORY_TIME
    budget: Budget | None = None
    known: Known = NOTHING_KNOWN
    without: frozenset[str] = frozenset()
    micro_batches: int | None = None


def searched(request: Request, parallelism: int) -> ModelFrontier:
    """The frontier that is asked for.

    Raises:
        InputError: as :func:`.frontier.find_frontier`; or no strategy is possible, as where ``force`` asks for too much.
    """
    try:
        return find_frontier(
            request.model,
            request.hardware,
            parallelism,
            request.force,
            request.algorithm,
            request.progress,
            request.space,
            request.objectives,
            request.budget,
            request.known,
            request.without,
            request.micro_batches or 1,
        )
    except InfeasibleError as error:
        slices = f" in {request.micro_batches} micro-batches" if (request.micro_batches or 1) > 1 else ""
        what = "does what force asks" if request.force else "is possible"
        raise InputError(f"no strategy on {parallelism} devices{slices} {what}: {error}") from error


def frontiers(request: Request, parallelism: int) -> Iterator[ModelFrontier]:
    """The frontier with the batch in whole; then, where that is left open, in 2, 4, 8, ... micro-batches.

    As long as more of them need less. Each is searched when it is asked for.

    Raises:
        InputError: as :func:`searched`, of the first.
    """
    frontier = searched(request, parallelism)
    yield frontier
    is_asked = request.micro_batches is not None or ACCUMULATE in request.without
    n, least = 2, _least_bytes(frontier)
    while not (is_asked or request.algorithm in BASELINES):
        try:
            frontier = searched(replace(request, micro_batches=n), parallelism)
        except InputError:
            return
        if _least_bytes(frontier) >= least:
            return
        yield frontier
        n, least = 2 * n, _least_bytes(frontier)


def fastest_that_fits(
    request: Request, parallelism: int
) -> tuple[tuple[ModelFrontier, int] | None, list[ModelFrontier]]:
    """A frontier and its point of least time within the limit, None if nothing fits; and all frontiers that were looked at.

    More micro-batches take no less time than fewer, as far as memory allows both: more are looked at only where the limit
    keeps out what would be faster, and for as long as they are faster.
    """
    best: tuple[ModelFrontier, int] | None = None
    tried = []
    for frontier in frontiers(request, parallelism):
        tried.append(frontier)
        point = frontier.fastest_within(request.limit_bytes, request.progress)
        if point is None:
            continue
        if best is not None and _time_ns(frontier, point) >= _time_ns(*best):
            break
        best = frontier, point
        if point == frontier.fastest_within(None):
            break
    return best, tried


def least_of(tried: Sequence[ModelFrontier], progress: Progress | None) -> ModelFrontier:
    """The frontier with the point that needs the least."""
    return min(tried, key=lambda frontier: frontier.needed_bytes(frontier.least_point(progress)))


def _time_ns(frontier: ModelFrontier, point: int) -> int:
    return int(frontier.costs.time_ns[point])


def _least_bytes(frontier: ModelFrontier) -> int:
    return int(frontier.costs.mem_bytes.min())
