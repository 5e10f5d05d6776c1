"""Search the ways to train a model at one parallelism: what is asked for, then stages that nobody asked for.

Each tier of candidates is one run of the loop (:mod:`.by_bound`) for the best of them. Where nothing fits the memory limit,
a run with time left out decides before whether that is worth its time:

    without stages, as the batch is asked for or at once
    without stages in more micro-batches, beside candidates in stages that are asked for
    stages that nobody asked for: between machines, where they may pay; or any, where nothing else fits

A device's share of variables, slots and sums of gradients rules a limit out first. A large model is looked at before all of
it (:mod:`..first_look`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace

from ...common.errors import InputError
from ...common.memory_units import memory_text
from ...common.process.garbage import older_objects_kept
from ...costs.held_bytes import least_held_bytes, least_summed_bytes
from ...costs.objectives import MEMORY_TIME
from ...ft import ALGORITHMS
from ...ir.graph import VARIABLE
from ...plan.frontier import Frontier
from ...program.orders.interleaved import INTERLEAVED
from ...program.orders.schedule import ONE_FORWARD_ONE_BACKWARD, check_schedule
from ...report.sentences import time_text
from ...sharding.model import Model
from ..first_look import first_look
from ..problem.choices import ACCUMULATE, STAGES
from ..request import Request
from ..stages.placement import fewest_stages
from ..stages.points import SearchedStages, SearchedWhole
from .by_bound import Best, Fit, SearchState, by_bound, opened
from .candidate import Candidate, possible_micro_batches
from .plan_points import PlanPoint, frontier_of, frontier_of_whole
from .search_cut import search_ahead

MOST_STAGES = 8
MOST_AHEAD = 1200
"""Operators of a model up to which stages are searched ahead: to cut a larger one takes seconds, mostly for nothing."""


class CandidateSearch(SearchState):
    """A search of candidates."""

    def search_all(self) -> CandidateSearch:
        """Search what is asked for; if that is no number of stages, also stages that nobody asked for."""
        with closing(self.alike):
            may_pay = may_take_stages(self.request, self.parallelism) and not self.request.must_be_tried
            if self.counts is not None or (may_pay and self._machines()):
                self.alike.start_workers(self.request)
            if self.counts is None:
                self.search_whole()
                self.search_unasked()
            elif 1 in self.counts:
                self.search_whole(self.in_stages(self.counts))
            else:
                by_bound(opened(self.in_stages(self.counts), Best(self)), Best(self))
        return self

    # Without stages

    def search_whole(self, staged: Sequence[Candidate] = ()) -> None:
        """Search plans without stages, and candidates in stages that are asked for beside these."""
        request, limit, best = self.request, self.request.limit_bytes, Best(self)
        look = first_look(request, self.parallelism)
        held_bytes = least_held_bytes(request.model.graph, self.parallelism)
        first = Candidate(1, request.micro_batches or 1, least_bytes=held_bytes)
        smallest, sliced = list[Candidate](), list[Candidate]()
        # Without a limit several micro-batches have nothing to give, and dividing a large model takes seconds.
        may_slice = limit is not None and request.may_use_micro_batches
        if may_slice and (max_slices := request.model.smallest_micro_batches(self.parallelism)):
            summed_bytes = least_summed_bytes(request.model.in_micro_batches(2), self.parallelism)
            smallest = [Candidate(1, n, least_bytes=held_bytes + summed_bytes) for n in max_slices]
            sliced = [replace(smallest[0], micro_batches=1 << i) for i in range(1, max(max_slices).bit_length())]
        if look is not None and limit is not None:
            if request.tell is not None:
                request.tell(look.text(limit))
            if look.cannot_fit(limit):
                self.whole += look.tried
                return by_bound(staged, best)
        staged = opened(staged, best)  # so that their stages are searched by workers meanwhile
        if self.counts is None and (look is None or look.best is not None):
            self._look_ahead()
        may_fit = any(limit is None or candidate.least_bytes <= limit for candidate in smallest)  # sums take memory, too
        is_unknown = look is not None and look.best is None and may_fit
        if not is_unknown:
            by_bound([first], best)
        fitting = self.alone or (look and look.best)
        if fitting is None:
            by_bound(smallest if limit is not None else [], Fit(self))
            fitting = self.alone
        unsplit = ([first] if is_unknown else []) + sliced if fitting is not None else []
        by_bound([*unsplit, *staged], best)
        if self.alone is None and look is not None and look.best is not None:
            self.alone = look.best
            self.whole.append(look.best[0])

    # In stages

    def in_stages(self, counts: Sequence[int]) -> list[Candidate]:
        """Return the candidates in numbers of stages, but those that aren't possible, of which it is told."""
        candidates = []
        for count in sorted({*counts} - {1}):
            try:
                candidates += self.cutting.possible(count)
            except InputError as error:
                self.left_out.append(str(error))
        return candidates

    def _look_ahead(self) -> None:
        """Have workers search stages that nobody asked for, which may pay, while the model is searched without stages."""
        if self.alike.calls is not None and len(self.request.model.graph.operators) <= MOST_AHEAD:
            for candidate in {each.n_stages: each for each in self.in_stages(self._machines())}.values():
                with suppress(InputError):
                    cuts = self.cutting.opened(candidate, has_least=True, has_few=False)
                    for cut in sorted(cuts, key=lambda cut: cut.least_us):
                        search_ahead(self.request, cut, self.alike)

    def search_unasked(self) -> None:
        """Search stages that nobody asked for, where they may pay or nothing else fits."""
        if not may_take_stages(self.request, self.parallelism):
            return
        if self.alone is not None:
            by_bound(self.in_stages(self._machines()), Best(self, worth=self.request.worth_stages))
        elif self._may_help():
            by_bound(list(self._candidates_for_memory()), Fit(self))
            if self.fitting is not None:
                count, n = self.fitting.n_stages, self.fitting.micro_batches
                default = self.cutting.possible(count)
                by_bound(default if n in {candidate.micro_batches for candidate in default} else [self.fitting], Best(self))

    def _machines(self) -> list[int]:
        """Return the numbers of stages that may pay: two, and that of machines; none on a single machine."""
        machines = self.parallelism // self.request.hardware.levels[-1].count
        return sorted({2, machines}) if machines > 1 else []

    def _may_help(self) -> bool:
        """Return whether stages aren't known to be above the memory limit, which nothing without them keeps."""
        request, limit = self.request, self.request.limit_bytes
        # Else plans without stages weren't searched in several micro-batches, which might fit.
        is_open = request.searches_micro_batches or request.micro_batches is not None
        if limit is None or not is_open:
            return False
        held_bytes, n = least_held_bytes(request.model.graph, 1, of=(VARIABLE,)), possible_micro_batches(request, 2)[0]
        held_bytes += least_summed_bytes(request.model.in_micro_batches(n), 1) if n > 1 else 0
        return held_bytes <= limit * self.parallelism

    def _candidates_for_memory(self) -> Iterator[Candidate]:
        """Yield the candidates that may need less memory than any without stages."""
        count = 1
        while count < min(self.parallelism, MOST_STAGES):
            count = min(2 * count, self.parallelism)
            first = possible_micro_batches(self.request, count)[-1]
            candidate = Candidate(count, first, ONE_FORWARD_ONE_BACKWARD, n_alike=count)
            yield candidate
            if self.request.micro_batches is None and first > 1:
                for n in _more_micro_batches(self.request.model, first, self.parallelism // count):
                    yield replace(candidate, micro_batches=n)

    # What is found

    def frontier(self) -> Frontier[PlanPoint] | None:
        """Return the minimal points with stages and without.

        Where stages weren't asked for and aren't taken, return those of the fastest search without; None if nothing fits.
        """
        if self.counts is None and not self.cuts:
            return self._alone() or self.fits
        request, searches = self.request, [*map(SearchedWhole.of, self.whole), *self.cuts]
        left_out, bounds_us = () if self.counts is None else self.left_out, tuple(self.bounds_us.values())
        frontier = frontier_of(request, self.parallelism, searches, left_out, bounds_us)
        # Those in stages may be searched by workers, and at the same time.
        phases = [*(whole.seconds_by_phase for whole in self.whole), frontier.seconds_by_phase]
        names = dict.fromkeys(name for phase in phases for name in phase)
        seconds = {name: sum(phase.get(name, 0.0) for phase in phases) for name in names}
        frontier = replace(frontier, is_interrupted=self.is_interrupted, seconds_by_phase=seconds)
        if self.counts is not None:
            return frontier
        if self.alone is None:
            limit = request.limit_bytes
            frontier = self.fits if frontier.fastest_within(limit) is None and self.fits is not None else frontier
            assert limit is not None
            return replace(frontier, why_stages=f"no plan without stages fits {memory_text(limit)}")
        alone_us = self.alone_us
        most_us = (1 - request.worth_stages) * alone_us
        fastest = frontier.fastest_within(request.limit_bytes)
        point = None if fastest is None else frontier.points_of[fastest]
        if point is None or point.time_us > most_us:  # as all without stages are
            return self._alone()
        reason = (
            f"{point.n_stages} stages are predicted to take {time_text(point.time_us)} a step, the fastest plan without "
            f"{time_text(alone_us)}"
        )
        return replace(frontier, why_stages=reason)

    def _alone(self) -> Frontier[PlanPoint] | None:
        return None if self.alone is None else frontier_of_whole(self.alone[0], self.request.assumed)


@older_objects_kept()
def search_with_stages(request: Request, parallelism: int) -> CandidateSearch:
    """Search plans with the numbers of stages that a request asks for; unasked whatever is best.

    They needn't be within the memory limit, see :func:`..infeasible.why_too_large`. A number that isn't possible beside
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
    """Return the numbers of stages that a request asks for, of those that go with its placement."""
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


def may_take_stages(request: Request, parallelism: int) -> bool:
    """Return whether plans in stages may be taken that weren't asked for: they are allowed, and possible for the request."""
    graph = request.model.graph
    return (
        request.may_take_stages
        and not (request.hardware.topology is not None and request.hardware.topology.is_uneven)
        and parallelism > 1
        and STAGES not in request.without
        and request.objectives == MEMORY_TIME
        and request.algorithm in ALGORITHMS
        and bool(graph.train_steps)
        and not graph.late
    )


def _more_micro_batches(model: Model, first: int, n_devices: int) -> list[int]:
    """Return 2, 4, 8, ... times ``first`` micro-batches, of those in which the model can be trained."""
    micro_batching = model.in_micro_batches(first).graph.micro_batching
    assert micro_batching is not None
    counts = (first << i for i in range(1, micro_batching.batch.bit_length()))
    return [n for n in counts if micro_batching.batch // n >= n_devices and model.takes_micro_batches(n)]
