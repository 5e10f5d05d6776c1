"""Explain that no plan fits within a memory limit: the least memory needed, what most of it is for, and what would fit.

Each suggestion is tried before it is made: a search with the choices that were switched off, a replay with a smaller batch,
a search on more devices, a search in the other space. A search that certainly can't help is skipped: parameters and slots
are at best divided by the number of devices. All of this, with the searches before it, takes up to ``OF_SEARCH`` times as
long as the search without micro-batches, or ``LEAST_S`` longer than the searches before it. Suggestions that were tried by
then are certain; the others are made as possible ones.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from ..common.errors import InputError
from ..common.memory_units import memory_text
from ..common.process.progress import Progress, under
from ..common.words import counted
from ..costs.held_bytes import least_held_bytes
from ..ft import ALGORITHMS
from ..ir.graph import VARIABLE
from ..plan.frontier import Frontier
from ..profiling.hardware import Hardware
from ..program.memory.buffers import PARAMETERS, SLOTS
from .algorithms import OTHERS
from .batch_size import batch_that_fits
from .candidates.candidate import most_micro_batches
from .candidates.plan_points import PlanPoint
from .first_look import first_look, held_anyway
from .frontiers.find_frontier import LOOK, searched
from .frontiers.model_frontier import ModelFrontier
from .problem.choices import STAGES
from .problem.config_space import COMPACT, FULL
from .problem.splittable import check_usable
from .request import OF_CURVE, ONCE, Request

LEAST_S = 2.0
OF_SEARCH = 1.5
MOST_WAYS = 3
MOST_DEVICES = 16
"""The most devices that are tried, or four times as many as the hardware has if that is more."""


class DeadlineError(Exception):
    """A deadline has passed."""


def until_deadline(deadline: float, progress: Progress | None) -> Progress:
    """Return a progress callback that forwards its calls until a deadline, and raises DeadlineError after it.

    Args:
        deadline: by ``time.monotonic``.
        progress: the callback to forward to; None if there is none.
    """

    def reported(phase: str, n_done: int, total: int) -> None:
        if time.monotonic() > deadline:
            raise DeadlineError
        if progress is not None:
            progress(phase, n_done, total)

    return reported


@dataclass(frozen=True, slots=True)
class LeastMemory:
    """The point of a frontier that needs the least memory.

    Attributes:
        is_sure: whether the frontier was searched.
    """

    frontier: ModelFrontier
    point: int
    is_sure: bool = True

    @classmethod
    def of(cls, frontier: ModelFrontier) -> LeastMemory:
        """Find the point of a frontier that needs the least memory."""
        return cls(frontier, frontier.least_point(), frontier.found.algorithm != LOOK)

    @property
    def n_bytes(self) -> int:
        return self.frontier.peak_bytes(self.point)


def frontiers(request: Request, parallelism: int) -> Iterator[ModelFrontier]:
    """Yield the frontier without micro-batches; then those that need the least memory with micro-batches, if these are open.

    Each is searched when the iterator reaches it.

    Raises:
        InputError: the first search fails; see :func:`.searched`.
    """
    yield searched(request, parallelism)
    if request.may_use_micro_batches:
        yield from least_in_micro_batches(request, parallelism)


def least_in_micro_batches(request: Request, parallelism: int) -> Iterator[ModelFrontier]:
    """Yield the frontiers with the smallest micro-batches: of at least one sample per device, and of the fewest samples.

    The numbers of micro-batches are powers of two. More micro-batches never need more memory, except for operators that can
    be split only along samples. So these two frontiers say whether micro-batches help at all. They are searched without
    refinement, so that the answer doesn't depend on the speed of the machine.
    """
    for n in request.model.smallest_micro_batches(parallelism):
        try:
            yield searched(replace(request, micro_batches=n, budget=ONCE), parallelism)
        except InputError:
            return


def time_for_more(results: Sequence[ModelFrontier], start_s: float) -> float:
    """Return the deadline for the explanation, on the clock of ``time.monotonic``.

    Args:
        results: the frontiers that were searched so far.
        start_s: the time at which the first of these searches started, on the same clock.
    """
    unsliced = (frontier for frontier in results if frontier.model.graph.n_micro_batches == 1)
    seconds = sum(sum(frontier.seconds_by_phase.values()) for frontier in unsliced)
    is_looked_at = all(frontier.found.algorithm == LOOK for frontier in results)
    now_s = time.monotonic()
    return max(start_s + OF_SEARCH * seconds, now_s + LEAST_S, now_s + (OF_SEARCH - 1) * (now_s - start_s) * is_looked_at)


def nothing_fits(
    request: Request, results: Sequence[ModelFrontier], start_s: float, staged: Frontier[PlanPoint] | None = None
) -> str:
    """Return the error message for a search on which nothing fits.

    Args:
        request: the request, with a memory limit.
        results: the frontiers that were searched, at one parallelism or several.
        start_s: the time at which the first search started, by ``time.monotonic``.
        staged: the frontier of least memory in stages; None where none was searched.
    """
    assert request.limit_bytes is not None
    deadline = time_for_more(results, start_s)
    smallest = least_needed(request, results, deadline)
    n_devices, n_micro_batches = smallest.frontier.mesh.n_devices, smallest.frontier.model.graph.n_micro_batches
    slices_text = " without micro-batches" if request.may_use_micro_batches else ""
    slices_text = f" in {n_micro_batches} micro-batches" if n_micro_batches > 1 else slices_text
    text = f"no plan fits {request.limit_bytes:,} bytes ({memory_text(request.limit_bytes)}) per device: the least on "
    text += f"{counted(n_devices, 'device')}{'' if smallest.is_sure else ' that was found in time'} is "
    text += f"{smallest.n_bytes:,} bytes ({memory_text(smallest.n_bytes)}) per device{slices_text}{_most_of_it(smallest)}"
    candidates = [frontier for frontier in results if frontier.mesh.n_devices == n_devices]
    needs = held_anyway(request, candidates)
    if all(need.n_bytes > request.limit_bytes for need in needs):
        text += f"; {'; '.join(map(str, needs))}"
    enough = smallest.n_bytes
    if staged is not None and staged.points_of[0].peak_bytes < enough:
        point = staged.points_of[0]
        slices = f"{point.micro_batches} micro-batches" if point.micro_batches > 1 else "with the batch at once"
        text += f"; in {point.n_stages} stages {'and ' * (point.micro_batches > 1)}{slices} it is "
        text += f"{point.peak_bytes:,} bytes ({memory_text(point.peak_bytes)}) on {staged.mesh.n_devices} devices"
        enough = point.peak_bytes
    advice = _Ways(request, smallest, deadline).found()
    return f"{text}; use {', '.join([*advice, ''])}{'or ' * bool(advice)}memory={enough} or more"


def why_too_large(frontier: Frontier[PlanPoint], limit_bytes: int) -> str:
    """Return the sentence that even a frontier's point of least memory is above a limit, with the stage that is."""
    smallest = frontier.points_of[0]
    n, need_text = smallest.micro_batches, smallest.searched.need_text(smallest.stage_bytes)
    text = f"no plan fits {limit_bytes:,} bytes ({memory_text(limit_bytes)}) per device: {need_text}"
    can_divide = most_micro_batches(smallest.searched.stages.whole, 2 * n, default=n) > n
    advice = ["more stages"] * (smallest.n_stages < frontier.mesh.n_devices) + ["more micro-batches"] * can_divide
    return f"{text}; ask for {', '.join([*advice, 'more devices'])}, or memory={smallest.peak_bytes} or more"


def least_needed(request: Request, results: Sequence[ModelFrontier], deadline: float) -> LeastMemory:
    """Return the point that needs the least memory, of the frontiers that were searched and of the smallest micro-batches.

    The latter are searched here if the request leaves micro-batches open and none were searched before.

    Args:
        results: the frontiers that were searched so far.
        deadline: the time at which to stop, by ``time.monotonic``.
    """
    leasts = [LeastMemory.of(frontier) for frontier in results]
    has_looked = True
    if request.may_use_micro_batches and all(frontier.model.graph.n_micro_batches == 1 for frontier in results):
        progress = until_deadline(deadline, request.progress)
        n_devices = min(leasts, key=lambda least_memory: least_memory.n_bytes).frontier.mesh.n_devices
        try:
            progress("costs", 0, 1)
            for frontier in least_in_micro_batches(replace(request, progress=progress), n_devices):
                leasts.append(LeastMemory.of(frontier))
        except DeadlineError:
            has_looked = False
    smallest = min(leasts, key=lambda least_memory: least_memory.n_bytes)
    return replace(smallest, is_sure=has_looked and all(least_memory.is_sure for least_memory in leasts))


def _most_of_it(smallest: LeastMemory) -> str:
    """Return a phrase that names what most of a peak is for, and the user's operator with the largest share.

    An operator's share consists of its results, their copies and gradients, and a variable's slots.
    """
    peak, producers = smallest.frontier.peak(smallest.point), smallest.frontier.model.graph.producers
    groups, amounts = Counter[str](), Counter[str]()
    for use, n_bytes in peak.by_use.items():
        groups["parameters and slots" if use in (PARAMETERS, SLOTS) else use] += n_bytes
    for tensor, n_bytes in peak.by_tensor.items():
        amounts[producers[tensor].where()] += n_bytes
    ((group, group_bytes),) = groups.most_common(1) or [("", 0)]
    ((place, place_bytes),) = amounts.most_common(1) or [("", 0)]
    phrase = f", {memory_text(group_bytes)} of it for {group}" if group else ""
    return f"{phrase} and, whatever the use, {memory_text(place_bytes)} for {place}" if place else phrase


@dataclass
class _Ways:
    """Suggestions of what would fit, searched until a deadline.

    Attributes:
        request: the request on which nothing fits.
        least: the point that needs the least memory, of all that was searched.
        deadline: the time at which to stop, by ``time.monotonic``.
        perhaps: the suggestions for which there wasn't the time to try them.
    """

    request: Request
    least: LeastMemory
    deadline: float
    perhaps: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        assert self.request.limit_bytes is not None
        self.limit_bytes = self.request.limit_bytes

    def found(self) -> list[str]:
        """Return suggestions as text, ordered by what they cost the user.

        These are a switch, a quick search, a smaller batch, more devices, a long search. Those for which there wasn't the
        time come last, and say so.
        """
        suggestions: list[str] = []
        compact, full = (partial(self._in_space, space) for space in (COMPACT, FULL))
        for search in (self._switched_off, compact, self._fewer_samples, self._more_devices, full):
            if len(suggestions) < MOST_WAYS:
                suggestions += search()
        if self.perhaps and len(suggestions) < MOST_WAYS:
            suggestions.append(f"perhaps {' or '.join(self.perhaps)} (there wasn't the time to look)")
        return suggestions

    def _switched_off(self) -> list[str]:
        """Try a search with each switched-off choice by itself; if that isn't enough, with all of them.

        A search without ``force`` is tried as well. Instead of a baseline only the default algorithm is tried.
        """
        without = self.request.without
        options = {
            f"without leaving out '{name}'": replace(self.request, without=without - {name})
            for name in sorted(without - {STAGES})
        }
        if len(options) > 1:
            options["without leaving out any choice"] = replace(self.request, without=frozenset())
        if self.request.force:
            options["without force="] = replace(self.request, force={})
        if self.request.algorithm in OTHERS:
            options = {f"algorithm '{ALGORITHMS[0]}'": replace(self.request, algorithm=ALGORITHMS[0])}
        if least_held_bytes(self.request.model.graph, self.least.frontier.mesh.n_devices) > self.limit_bytes:
            return []
        for words, request in options.items():
            search = "a search " * words.startswith("without")
            suggestion = self._suggest(request, words, self.least.frontier.mesh.n_devices, f"{search}{words}")
            if suggestion:
                return suggestion
        return []

    def _fewer_samples(self) -> list[str]:
        """Estimate the largest batch that fits, with the plan that needs the least memory and with the fastest.

        The fastest is tried too because it may hold less of the parameters.
        """
        frontier, batch = self.least.frontier, self.request.model.graph.batch
        variable_bytes = least_held_bytes(self.request.model.graph, frontier.mesh.n_devices, of=(VARIABLE,))
        if batch is None or variable_bytes > self.limit_bytes:
            return []
        points = {self.least.point, frontier.fastest_within(None)}
        n_samples = max(batch_that_fits(frontier, point, batch, self.limit_bytes) for point in points)
        n_devices = frontier.mesh.n_devices
        if n_samples >= n_devices:
            n_samples -= n_samples % n_devices
        return [f"a batch of about {n_samples} instead of {batch} (an estimate)"] if n_samples else []

    def _more_devices(self) -> list[str]:
        """Search at larger parallelisms until one fits; beyond the hardware, with more devices or machines of its kind."""
        for count, hardware in _larger_parallelisms(self.request.hardware, self.least.frontier.mesh.n_devices):
            if least_held_bytes(self.request.model.graph, count) > self.limit_bytes:
                continue
            try:
                check_usable(self.request.model.graph, hardware, count)
            except InputError:
                continue
            request = replace(self.request, hardware=hardware, force={})
            n_perhaps = len(self.perhaps)
            suggestions = self._suggest(request, f"{count} devices", count, f"{count} devices")
            if suggestions or len(self.perhaps) > n_perhaps:
                return suggestions
        return []

    def _in_space(self, space: str) -> list[str]:
        """Search the compact space after the full one, or the full one after that.

        The compact one is a part of the full one, but its frontier has other points. Their peaks may be lower than those of
        points that need less memory by Equation (1).
        """
        n_devices = self.least.frontier.mesh.n_devices
        if {space, self.least.frontier.built.space} != {COMPACT, FULL}:
            return []
        if least_held_bytes(self.request.model.graph, n_devices) > self.limit_bytes:
            return []
        request = replace(self.request, space=space)
        return self._suggest(request, f"{space} space", n_devices, f"tensoropt search --space {space}")

    def _suggest(self, request: Request, phase: str, parallelism: int, words: str) -> list[str]:
        """Run another search and return its suggestion if something fits, with the least memory; else nothing.

        If there isn't the time for the search, add it to ``perhaps``.
        """
        progress = until_deadline(self.deadline, self.request.progress and under(self.request.progress, phase))
        request = replace(request, budget=request.budget or OF_CURVE, progress=progress)
        try:
            progress("costs", 0, 1)
            look = first_look(request, parallelism)
            if look is not None and look.best is not None:
                return [f"{words} ({memory_text(look.best[0].peak_bytes(look.best[1]))} are enough)"]
            if look is not None and look.cannot_fit(self.limit_bytes):
                return []
            for frontier in frontiers(request, parallelism):
                smallest = LeastMemory.of(frontier)
                if smallest.n_bytes <= self.limit_bytes:
                    return [f"{words} (at least {memory_text(smallest.n_bytes)})"]
                progress("peaks", 1, 1)
        except InputError:
            return []
        except DeadlineError:
            self.perhaps.append(words)
        return []


def _larger_parallelisms(hardware: Hardware, beyond: int) -> Iterator[tuple[int, Hardware]]:
    """Yield larger parallelisms with hardware for each: first those of the given hardware, then of enlarged hardware."""
    parallelisms, largest = hardware.parallelisms(), max(hardware.parallelisms())
    for count in parallelisms:
        if count > beyond:
            yield count, hardware
    count = 2 * largest
    while count <= max(MOST_DEVICES, 4 * largest):
        yield count, _enlarged(hardware, count)
        count *= 2


def _enlarged(hardware: Hardware, n_devices: int) -> Hardware:
    """Return the hardware with more devices of its kind: more machines if it has several, else more devices in one."""
    index = next((i for i, level in enumerate(hardware.levels) if level.count > 1), len(hardware.levels) - 1)
    grown = hardware.levels[index].count * n_devices // hardware.n_devices
    levels = list(hardware.levels)
    levels[index] = replace(levels[index], count=grown)
    return replace(hardware, levels=tuple(levels), collectives={}, topology=None)
