"""Take candidates by ascending bound, drop those that what is found beats, and open or search the others.

What the bound is of, and what beats it, says an aim:

*Best*: of time. A candidate is dropped if each corner of its bound (:mod:`.bounds`) is beaten by points that were
found. More micro-batches without stages must be faster than what fits. Stages that nobody asked for must promise to save a
share of the fastest step that fits: most models don't need them, and shouldn't wait for a search of them. What such a
number of stages and of micro-batches promises is first all of a step without stages but its network, then its operators'
least times, then the step as it is predicted of its cuts (:func:`..stages.cuts.balanced`), longer as cuts that were searched
take longer than predicted.

*Fit*: of memory, time left out. It ends with the first thing that fits, in searches without refinement. Stages come last: in
2, then in 4 and 8 as long as that needs less memory, in the most micro-batches that are tried by default, then in more if
what a micro-batch saves, divided so, leaves enough room beside what is held anyway.

On measured hardware predictions by rates of classes aren't enough: a pipeline of products with few rows has taken twice as
long as predicted. There stages that nobody asked for are taken only if they are run beside a plan without
(``profile_budget=``). Else a hint says that they may pay.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from ...common.errors import InputError
from ...common.process.progress import Progress
from ...common.words import counted
from ...costs.objectives import MEMORY_TIME
from ...ft import ALGORITHMS
from ...plan.frontier import Frontier
from ...program.orders.schedule import ONE_FORWARD_ONE_BACKWARD
from ...report.sentences import time_text
from ..frontiers.find_frontier import SearchInterrupted, fastest_fits, searched
from ..frontiers.model_frontier import ModelFrontier
from ..request import ONCE, Request
from ..stages.memory import StageCosts
from ..stages.placement import placement
from ..stages.points import SearchedStages, SearchedWhole
from .bounds import bound_of_cut, bound_of_whole, points_of
from .candidate import WORTH_AT_ONCE, Candidate, Cutting, possible_micro_batches
from .plan_points import PlanPoint, frontier_of
from .search_cut import AlikeStages, search_ahead, search_cut


@dataclass(eq=False)
class SearchState:
    """The candidates that a loop has searched at one parallelism, and the best of their plans.

    Attributes:
        counts: the numbers of stages that are asked for, of which 1 stands for plans without; None where none are.
        alone: the fastest point without stages that fits: a frontier, and the number of the point.
        fitting: the candidate in stages that is known to fit; None of others.
        fits: its points of least memory.
        least: those of the candidate in stages that needs the least memory.
        left_out: why some of what is asked for wasn't searched.
        bounds_us: a time that no step beats, for each number of stages and of micro-batches that was looked at.
        hint: a sentence where stages may pay but must be tried; else empty.
        has_unbounded: whether stages are left of which no bound is known yet, so that a gap would be of a part only.
        standing: what is found so far, in words with which progress begins; may be empty.
        is_interrupted: whether Ctrl-C ended the search, which then keeps what it has found.
    """

    request: Request
    parallelism: int
    counts: Sequence[int] | None = None
    whole: list[ModelFrontier] = field(default_factory=list)
    alone: tuple[ModelFrontier, int] | None = None
    cuts: list[SearchedStages] = field(default_factory=list)
    fitting: Candidate | None = None
    fits: Frontier[PlanPoint] | None = None
    least: Frontier[PlanPoint] | None = None
    left_out: list[str] = field(default_factory=list)
    bounds_us: dict[tuple[int, int], float] = field(default_factory=dict)
    hint: str = ""
    n_left: int = 0
    has_unbounded: bool = False
    standing: str = ""
    is_interrupted: bool = False

    def __post_init__(self) -> None:
        placed = placement(self.request.model.graph, self.request.placed, self.request.hardware, self.parallelism)
        progress = self.request.progress
        report = progress and (lambda phase, n_done, total: progress(self.standing + phase, n_done, total))
        self.request = replace(self.request, placed={}, progress=report)
        self.cutting = Cutting(self.request, placed, self.parallelism, self.request.schedule)
        self.alike = AlikeStages()

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

    def stand(self, first: ModelFrontier | None = None) -> None:
        """Say with progress from here on what is found so far, to which the first points of a frontier may be added."""
        request, best_us, self.standing = self.request, self.best_us, ""
        frontiers = self.whole if first is None else [*self.whole, first]
        if first is not None and request.limit_bytes is None:  # with a limit, its points' peaks aren't counted yet
            best_us = min([best_us, *(first.found.time_ns / 1e3)])
        has_bound = request.objectives == MEMORY_TIME and request.algorithm in ALGORITHMS
        if has_bound and (frontiers or self.cuts) and not math.isinf(best_us):
            searched_us = [result.bound_us for result in (*map(SearchedWhole.of, frontiers), *self.cuts)]
            gap = best_us / max(min([*self.bounds_us.values(), *searched_us]), 1e-3) - 1
            points = counted(sum(map(len, frontiers)) + len(points_of(self.cuts).time_us), "point")
            candidates, of = counted(self.n_left, "candidate"), "" if self.bounds_us or self.cuts else " without stages"
            gap_text = "" if self.has_unbounded else f"gap {max(0.0, gap):.1%}{of}, "
            self.standing = f"{points}, best {time_text(best_us)}, {gap_text}{candidates} left; "

    def interrupt(self, error: KeyboardInterrupt) -> None:
        """End the search of all candidates with what is found.

        Raises:
            KeyboardInterrupt: nothing that fits is, or it isn't wanted.
        """
        if not self.request.keeps_found or math.isinf(self.best_us):
            raise KeyboardInterrupt from error
        self.is_interrupted = True
        if self.alone is not None:
            self.alone = replace(self.alone[0], is_interrupted=True), self.alone[1]

    def search_one(self, candidate: Candidate, request: Request) -> None:
        """Search a model that isn't cut."""
        n = candidate.micro_batches
        try:
            sliced = replace(request, micro_batches=n if n > 1 else request.micro_batches)
            frontier = searched(sliced, self.parallelism, self._is_enough)
        except SearchInterrupted as error:
            self._keep(candidate, error.found)
            raise
        except InputError:
            if n == 1 or self.request.micro_batches is not None:
                raise
            return
        self._keep(candidate, frontier)

    def _is_enough(self, first: ModelFrontier) -> bool:
        self.stand(first)
        return not self.request.wants_frontier and fastest_fits(self.request, first)

    def _keep(self, candidate: Candidate, frontier: ModelFrontier) -> None:
        self.whole.append(frontier)
        limit = self.request.limit_bytes
        is_above = limit is not None and candidate.least_bytes > limit
        point = None if is_above else frontier.fastest_within(limit)
        if point is not None and _time_us(frontier, point) < self.alone_us:
            self.alone = frontier, point

    def said_in(self, count: int) -> Progress | None:
        """Return a progress callback that says before each phase why it is in stages."""
        progress, reason = self.request.progress, "no plan without stages fits; " if self.alone is None else ""
        if progress is None or self.counts is not None:
            return progress
        return lambda phase, n_done, total: progress(f"{reason}in {count} stages, {phase}", n_done, total)


def by_bound(candidates: Sequence[Candidate], goal: Best | Fit) -> None:
    """Open and search candidates by ascending bound, but those that what is found by then beats."""
    candidates_left = list(candidates)
    while candidates_left and not goal.search.is_interrupted:
        candidate = min(candidates_left, key=goal.key)
        if not goal.is_beaten(candidate):
            for rival in candidates_left:
                if rival.cut is not None and goal.is_beaten(rival):
                    goal.search.alike.drop(rival)
            goal.search.n_left = len(candidates_left)
            goal.search.has_unbounded = any(math.isinf(each.least_us) for each in candidates_left if each.n_stages > 1)
            goal.search.stand()
            try:
                candidates_left += goal.opened(candidate)
            except KeyboardInterrupt as error:
                goal.search.interrupt(error)
        candidates_left.remove(candidate)
        goal.search.alike.drop(candidate)  # of one that doesn't fit some stages are left


def opened(candidates: Sequence[Candidate], goal: Best) -> Sequence[Candidate]:
    """Have workers, if there are any, search the cuts in the most micro-batches, which mostly beat those in fewer."""
    most = dict(sorted((candidate.n_stages, candidate.micro_batches) for candidate in candidates))
    while goal.search.alike.calls is not None and (
        uncut := [each for each in candidates if each.cut is None and each.micro_batches == most[each.n_stages]]
    ):
        first = min(uncut, key=goal.key)
        cuts = goal.opened(first)
        candidates = [*(each for each in candidates if each is not first), *cuts]
        for candidate in sorted((each for each in cuts if each.cut is not None), key=goal.key):
            search_ahead(goal.search.request, candidate, goal.search.alike)
    return candidates


@dataclass(eq=False)
class Best:
    """Search the fastest plans, and those of less memory.

    Attributes:
        worth: the share of the fastest step that candidates in stages must promise to save; None where they are asked for.
    """

    search: SearchState
    worth: float | None = None

    def key(self, candidate: Candidate) -> float:
        return self._bounded(candidate).least_us

    def _bounded(self, candidate: Candidate) -> Candidate:
        return bound_of_whole(candidate, self.search.whole) if candidate.n_stages == 1 else candidate

    def is_beaten(self, candidate: Candidate) -> bool:
        """Return whether a candidate can't be better than what is found."""
        search, limit = self.search, self.search.request.limit_bytes
        if candidate.n_stages == 1:
            bounded = self._bounded(candidate)
            is_too_large = limit is not None and bounded.least_bytes > limit and bool(search.whole)
            return is_too_large or bounded.least_us >= search.alone_us
        if not self._promises(candidate):
            return True
        if candidate.cut is None:
            return False
        bound = bound_of_cut(candidate, search.cutting, search.cuts)
        return bound.are_beaten(points_of(search.cuts))

    def _promises(self, candidate: Candidate) -> bool:
        """Return whether stages that nobody asked for promise to save enough; beside cuts that do, others may as well."""
        search, threshold, least_us = self.search, self.worth, candidate.least_us
        if threshold is None:
            return True
        if search.hint:
            return False
        if math.isinf(least_us):  # all of a step but its network is about what stages would take at best
            least_us = min(int(frontier.costs.compute_ns.min()) for frontier in search.whole) / 1e3
        ratios = []  # than predicted
        for cut in (cut for cut in search.cuts if cut.stages.n == candidate.n_stages):
            fastest_us = float(points_of([cut]).time_us.min())
            if cut.micro_batches == candidate.micro_batches and fastest_us <= (1 - threshold) * search.alone_us:
                return True
            ratios.append(fastest_us / max(cut.least_us, 1e-3))
        return min(ratios, default=1.0) * least_us <= (1 - threshold) * search.best_us

    def opened(self, candidate: Candidate) -> list[Candidate]:
        """Search a candidate, or return those into which it is opened."""
        search, request = self.search, self.search.request
        count, n, cutting = candidate.n_stages, candidate.micro_batches, search.cutting
        if count == 1:
            search.search_one(candidate, request)
            return []
        if candidate.cut is None:
            return self._cut(candidate)
        if self.worth is not None and request.must_be_tried:
            search.hint = (
                f"{count} stages may take {time_text(candidate.least_us)} a step, where "
                f"{time_text(search.alone_us)} is predicted without; give a profile_budget to try both"
            )
            return []
        limit, reporting = request.limit_bytes, replace(request, progress=search.said_in(count))
        must_fit = limit is not None and any(cut.combinations[0].mem_bytes[0] <= limit for cut in search.cuts)
        try:
            result = search_cut(reporting, candidate, cutting, search.alike, must_fit, search.bounds_us[count, n])
        except InputError:
            if self.worth is None:
                raise
            result = None  # what is forced can't be so
        search.cuts += [] if result is None else [result]
        return []

    def _cut(self, candidate: Candidate) -> list[Candidate]:
        """Return a candidate whose cut is open with its bound; one that has a bound as the cuts into which it is opened."""
        search, group = self.search, (candidate.n_stages, candidate.micro_batches)
        slices = possible_micro_batches(search.request, candidate.n_stages)
        try:
            if math.isinf(candidate.least_us):
                bounded = search.cutting.bounded(candidate)
                search.bounds_us[group] = bounded.least_us
                return [bounded]
            is_asked, is_last = self.worth is None, candidate.micro_batches == slices[-1]
            cuts = search.cutting.opened(candidate, has_least=is_last or not is_asked, has_few=is_asked)
        except InputError as error:
            search.bounds_us.pop(group, None)
            search.left_out += [str(error)] if str(error) not in search.left_out else []
            return []
        is_open = search.request.micro_batches is None and search.cutting.shared(candidate.n_stages) is None
        share_beside = 0.0 if cuts[0].cut is None else cuts[0].cut.beside
        if is_open and candidate.micro_batches == slices[0] > 1 and share_beside >= WORTH_AT_ONCE:
            cuts.append(replace(candidate, micro_batches=1, least_us=-math.inf))
        return cuts


@dataclass(eq=False)
class Fit:
    """Find out whether anything fits the memory limit, without refinement.

    Attributes:
        most_stages: into more the model can't be cut.
    """

    search: SearchState
    most_stages: float = math.inf
    needs: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.cutting = replace(self.search.cutting, schedule=ONE_FORWARD_ONE_BACKWARD, _opened={})
        self.probed: dict[tuple[int, int], list[SearchedStages]] = {}

    def key(self, candidate: Candidate) -> tuple[float, ...]:
        return candidate.n_stages, candidate.micro_batches, candidate.least_bytes

    def is_beaten(self, candidate: Candidate) -> bool:
        search, limit = self.search, self.search.request.limit_bytes
        count, n = candidate.n_stages, candidate.micro_batches
        assert limit is not None
        if search.alone is not None or search.fitting is not None:
            return True
        if count == 1:
            return candidate.least_bytes > limit
        if candidate.cut is not None:
            return False
        if count > self.most_stages or not self._falls(count):
            return True
        fewer = [cuts for (n_stages, m), cuts in self.probed.items() if n_stages == count and m < n]
        return bool(fewer) and min(_hoped_for_bytes(cut, n) for cut in fewer[-1]) > limit

    def _falls(self, count: int) -> bool:
        """Return whether each number of stages below one needed less memory than fewer."""
        whole_bytes = min((int(frontier.certified.mem_bytes.min()) for frontier in self.search.whole), default=math.inf)
        needed_bytes = [whole_bytes, *(self.needs[n_stages] for n_stages in sorted(self.needs) if n_stages < count)]
        return all(smaller < larger for larger, smaller in pairwise(needed_bytes))

    def opened(self, candidate: Candidate) -> list[Candidate]:
        search, count, n = self.search, candidate.n_stages, candidate.micro_batches
        single_pass = replace(search.request, budget=ONCE)
        if count == 1:
            search.search_one(candidate, single_pass)
            return []
        try:
            if candidate.cut is None:
                return self.cutting.opened(candidate, has_least=True, has_few=False)
            single_pass = replace(single_pass, progress=search.said_in(count))
            result = search_cut(single_pass, candidate, self.cutting, search.alike, False, 0.0)
        except InputError:
            if (count, n) not in self.probed and count not in self.needs:
                self.most_stages = count - 1
            return []
        assert result is not None
        self._evaluate(result, replace(candidate, cut=None, least_us=-math.inf, schedule=search.request.schedule))
        return []

    def _evaluate(self, cut: SearchedStages, candidate: Candidate) -> None:
        """Evaluate the points of least memory of a cut that was searched."""
        search, count = self.search, candidate.n_stages
        self.probed.setdefault((count, candidate.micro_batches), []).append(cut)
        n_bytes = int(cut.combinations[0].mem_bytes.min())
        self.needs[count] = min(n_bytes, self.needs.get(count, n_bytes))
        frontier = frontier_of(search.request, search.parallelism, [cut])
        if search.least is None or frontier.points_of[0].peak_bytes < search.least.points_of[0].peak_bytes:
            search.least = frontier
        if frontier.fastest_within(search.request.limit_bytes) is not None:
            search.fitting, search.fits = candidate, frontier


def _time_us(frontier: ModelFrontier, point: int) -> float:
    return int(frontier.costs.time_ns[point]) / 1e3


def _hoped_for_bytes(cut: SearchedStages, n: int) -> int:
    """Return what the stage that needs the most would need in ``n`` micro-batches, if all that they save were divided.

    It is the sum that is searched, which may be above the peak: where that alone would fit, nothing more is looked at.
    """
    hoped_bytes = []
    for stage, frontier in enumerate(cut.frontiers):
        costs, order = StageCosts.of(frontier), cut.combinations[0].order
        held_bytes = costs.passes(divides=False).begins
        saved = costs.bytes_of(stage, order) - held_bytes
        hoped_bytes.append(int(held_bytes.min() + saved.min() * cut.micro_batches / n))
    return max(hoped_bytes)
