"""What is asked of a search, and the searches for it at one parallelism: with the batch in whole, and in micro-batches."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from ..common.errors import InputError
from ..costs.held_bytes import least_held_bytes
from ..ft import Budget, InfeasibleError
from ..profiling.hardware import Hardware
from ..profiling.work import NOTHING_KNOWN, Known
from ..search.baselines import BASELINES
from ..search.problem.choices import ACCUMULATE
from ..search.problem.objectives import MEMORY_TIME, Objectives
from ..sharding.constraints import Force
from ..sharding.model import Model
from .find_frontier import ModelFrontier, Progress, find_frontier

OF_CURVE = Budget(seconds=1.0, gap=0.01)
"""Where a search is one of several."""
ONCE = Budget(seconds=0.0)
"""Where the answer is whether something fits at all."""
MOST_MICRO_BATCHES = 1 << 20
FEW = (64, 16, 4)
"""Behind which parts of a frontier the points are that are looked at in any case: the least peaks are at the lower end."""


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
        without: choices that strategies don't have, see :mod:`..search.problem.choices`.
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
        InputError: as :func:`.find_frontier.find_frontier`; or no strategy is possible, as where ``force`` asks for too
            much.
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
    """The frontier with the batch in whole; then, where that is left open, those that need the least in micro-batches.

    Each is searched when it is asked for.

    Raises:
        InputError: as :func:`searched`, of the first.
    """
    yield searched(request, parallelism)
    if may_slice(request):
        yield from least_in_slices(request, parallelism)


def may_slice(request: Request) -> bool:
    """Return whether it is left open in how many micro-batches a step takes its batch."""
    is_asked = request.micro_batches is not None or ACCUMULATE in request.without
    return not (is_asked or request.algorithm in BASELINES)


def least_in_slices(request: Request, parallelism: int) -> Iterator[ModelFrontier]:
    """The frontiers with the smallest slices: with a sample for each device, and with a single sample.

    What more slices take of a step's memory is never more, but for what can't be split otherwise than by samples. These say
    whether micro-batches would do at all; searched once, so that the answer doesn't depend on the machine.
    """
    try:
        slicing = request.model.in_slices(2).graph.slicing
    except InputError:
        return
    assert slicing is not None
    possible = [n for n in _powers_of_two(slicing.batch) if slicing.batch % n == 0]
    one_each = [n for n in possible if slicing.batch // n >= parallelism]
    for n in dict.fromkeys([*one_each[-1:], *possible[-1:]]):
        try:
            yield searched(replace(request, micro_batches=n, budget=ONCE), parallelism)
        except InputError:
            return


def _powers_of_two(most: int) -> Iterator[int]:
    """2, 4, 8, ..."""
    return (1 << i for i in range(1, most.bit_length()))


def fastest_that_fits(
    request: Request, parallelism: int
) -> tuple[tuple[ModelFrontier, int] | None, list[ModelFrontier]]:
    """A frontier and its point of least time within the limit, None if nothing fits; and all frontiers that were looked at.

    More micro-batches take no less time than fewer, as far as memory allows both: more are looked at only where the limit
    keeps out what would be faster, and for as long as they are faster. Where nothing fits in whole, 2, 4, 8, ... are
    searched only if the smallest slices would fit.
    """
    frontier = searched(request, parallelism)
    tried, limit = [frontier], request.limit_bytes
    if limit is not None and limit < least_held_bytes(request.model.graph, parallelism):
        return None, tried
    point = frontier.fastest_within(limit, request.progress)
    best = None if point is None else (frontier, point)
    if not may_slice(request) or point == frontier.fastest_within(None):
        return best, tried
    known = best
    if known is None:
        known = _first_that_fits(request, least_in_slices(request, parallelism), tried)
        if known is None:
            return None, tried
    least = _least_bytes(frontier)
    for n in _powers_of_two(known[0].model.graph.n_slices if best is None else MOST_MICRO_BATCHES):
        try:
            frontier = searched(replace(request, micro_batches=n), parallelism)
        except InputError:
            break
        if _least_bytes(frontier) >= least:
            break
        tried.append(frontier)
        least = _least_bytes(frontier)
        point = frontier.fastest_within(limit, request.progress)
        if point is None:
            continue
        if best is not None and _time_ns(frontier, point) >= _time_ns(*best):
            break
        best = frontier, point
        if point == frontier.fastest_within(None):
            break
    return best or known, tried


def _first_that_fits(
    request: Request, found: Iterable[ModelFrontier], tried: list[ModelFrontier]
) -> tuple[ModelFrontier, int] | None:
    for frontier in found:
        tried.append(frontier)
        point = frontier.fastest_within(request.limit_bytes, request.progress)
        if point is not None:
            return frontier, point
    return None


def _time_ns(frontier: ModelFrontier, point: int) -> int:
    return int(frontier.costs.time_ns[point])


def _least_bytes(frontier: ModelFrontier) -> int:
    return int(frontier.costs.mem_bytes.min())


class TimeIsUpError(Exception):
    """Something has taken as long as it may."""


def in_time(deadline: float, progress: Progress | None) -> Progress:
    """A progress that passes on what it is told until a time of ``time.monotonic``.

    Raises:
        TimeIsUpError: when it is told something after that.
    """

    def told(stage: str, done: int, total: int) -> None:
        if time.monotonic() > deadline:
            raise TimeIsUpError
        if progress is not None:
            progress(stage, done, total)

    return told


@dataclass(frozen=True, slots=True)
class Least:
    """The point of a frontier that needs the least.

    Attributes:
        is_sure: whether there was the time to look at all that were to be looked at.
    """

    frontier: ModelFrontier
    point: int
    is_sure: bool = True

    @classmethod
    def of(cls, frontier: ModelFrontier, progress: Progress | None) -> Least:
        """Find it; where the progress says that time is up, among the points that were looked at by then."""
        try:
            return cls(frontier, frontier.least_point(progress))
        except TimeIsUpError:
            by_memory = np.argsort(frontier.costs.mem_bytes, kind="stable")
            few = {int(by_memory[len(by_memory) // part]) for part in FEW}
            known = {point: frontier.needed_bytes(point) for point in {*frontier.replayed, *few}}
            return cls(frontier, min(known, key=lambda point: known[point]), False)

    @property
    def n_bytes(self) -> int:
        return self.frontier.needed_bytes(self.point)
