"""What a search of candidates has found so far at one parallelism."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ..common.errors import InputError
from ..common.progress import Progress
from .alike_stages import AlikeStages
from .candidate_bounds import points_of
from .candidates import Candidate, Cutting
from .find_frontier import ModelFrontier
from .placement import placement
from .request import Request, searched
from .stage_points import SearchedStages
from .staged_frontier import StagedFrontier


@dataclass(eq=False)
class SearchState:
    """What the loop has found at one parallelism.

    Attributes:
        counts: the numbers of stages that are asked for, of which 1 stands for plans without; None where none are.
        schedule: the order of the stages' passes; None where it is chosen.
        whole: the frontiers without stages that were searched.
        alone: the fastest point without stages that fits: a frontier, and the number of the point.
        cuts: the cuts that were searched, with the frontiers of their stages.
        fitting: the candidate in stages that is known to fit; None of others.
        fits: its points of least memory.
        least: those of the candidate in stages that needs the least memory.
        left_out: why some of what is asked for wasn't searched.
        bounds_us: a time that no step beats, for each number of stages and of micro-batches that was looked at.
        hint: a sentence where stages may pay but must be tried; else empty.
    """

    request: Request
    parallelism: int
    counts: Sequence[int] | None = None
    schedule: str | None = None
    whole: list[ModelFrontier] = field(default_factory=list)
    alone: tuple[ModelFrontier, int] | None = None
    cuts: list[SearchedStages] = field(default_factory=list)
    fitting: Candidate | None = None
    fits: StagedFrontier | None = None
    least: StagedFrontier | None = None
    left_out: list[str] = field(default_factory=list)
    bounds_us: dict[tuple[int, int], float] = field(default_factory=dict)
    hint: str = ""

    def __post_init__(self) -> None:
        placed = placement(self.request.model.graph, self.request.placed, self.request.hardware, self.parallelism)
        self.request = replace(self.request, placed={})
        self.cutting, self.alike = Cutting(self.request, placed, self.parallelism, self.schedule), AlikeStages()

    @property
    def best_us(self) -> float:
        """The time of the fastest step that fits, infinite if none does; of cuts by their predicted peaks."""
        limit, points = self.request.limit_bytes, points_of(self.cuts)
        points = points if limit is None else points.within(limit)
        return min([self.alone_us, *points.time_us.tolist()])

    @property
    def alone_us(self) -> float:
        """The time of the fastest step without stages that fits, infinite if none does."""
        return math.inf if self.alone is None else _time_us(*self.alone)

    def search_one(self, candidate: Candidate, request: Request) -> None:
        """Search a model that isn't cut."""
        n = candidate.micro_batches
        try:
            frontier = searched(replace(request, micro_batches=n if n > 1 else request.micro_batches), self.parallelism)
        except InputError:
            if n == 1 or self.request.micro_batches is not None:
                raise
            return
        self.whole.append(frontier)
        limit = request.limit_bytes
        is_above = limit is not None and candidate.least_bytes > limit
        point = None if is_above else frontier.fastest_within(limit)
        if point is not None and _time_us(frontier, point) < self.alone_us:
            self.alone = frontier, point

    def said_in(self, count: int) -> Progress | None:
        """Return a progress callback that says before each phase why it is in stages."""
        said, why = self.request.progress, "no plan without stages fits; " if self.alone is None else ""
        if said is None or self.counts is not None:
            return said
        return lambda phase, done, total: said(f"{why}in {count} stages, {phase}", done, total)


def _time_us(frontier: ModelFrontier, point: int) -> float:
    """Return the time per step of a point."""
    return int(frontier.costs.time_ns[point]) / 1e3
