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

from ..common.errors import InputError
from ..common.memory_units import memory_text
from ..common.progress import under
from ..common.words import counted
from ..costs.held_bytes import least_held_bytes
from ..ft import ALGORITHMS
from ..ir.graph import VARIABLE
from ..plan.frontier import Frontier
from ..profiling.hardware import Hardware, LinkLevel
from ..program.buffers import PARAMETERS, SLOTS
from .baselines import OTHERS
from .batch_size import batch_that_fits
from .candidates.staged_frontier_points import PlanPoint
from .first_look import first_look, held_anyway
from .frontiers.find_frontier import LOOK
from .frontiers.model_frontier import ModelFrontier
from .problem.choices import STAGES
from .problem.config_space import COMPACT, FULL
from .problem.splittable import check_usable
from .request import (
    OF_CURVE,
    DeadlineError,
    LeastMemory,
    Request,
    frontiers,
    least_in_micro_batches,
    may_use_micro_batches,
    micro_batches_to_look_at,
    until_deadline,
)

LEAST_S = 2.0
OF_SEARCH = 1.5
MOST_WAYS = 3
MOST_DEVICES = 16
"""The most devices that are tried, or four times as many as the hardware has if that is more."""


def time_for_more(tried: Sequence[ModelFrontier], started: float) -> float:
    """Return the deadline for the explanation, on the clock of ``time.monotonic``.

    Args:
        tried: the frontiers that were searched so far.
        started: the time at which the first of these searches started, on the same clock.
    """
    whole = (each for each in tried if each.model.graph.n_micro_batches == 1)
    seconds = sum(sum(each.seconds_by_phase.values()) for each in whole)
    is_looked_at = all(each.found.algorithm == LOOK for each in tried)
    now = time.monotonic()
    return max(started + OF_SEARCH * seconds, now + LEAST_S, now + (OF_SEARCH - 1) * (now - started) * is_looked_at)


def nothing_fits(
    request: Request, tried: Sequence[ModelFrontier], started: float, in_stages: Frontier[PlanPoint] | None = None
) -> str:
    """Return the error message for a search on which nothing fits.

    Args:
        request: the request, with a memory limit.
        tried: the frontiers that were searched, at one parallelism or several.
        started: the time at which the first search started, by ``time.monotonic``.
        in_stages: the frontier of least memory in stages; None where none was searched.
    """
    assert request.limit_bytes is not None
    deadline = time_for_more(tried, started)
    least = least_needed(request, tried, deadline)
    n_devices, n_micro_batches = least.frontier.mesh.n_devices, least.frontier.model.graph.n_micro_batches
    how = (
        f" in {n_micro_batches} micro-batches"
        if n_micro_batches > 1
        else " without micro-batches"
        if may_use_micro_batches(request)
        else ""
    )
    text = f"no plan fits {request.limit_bytes:,} bytes ({memory_text(request.limit_bytes)}) per device: the least on "
    text += f"{counted(n_devices, 'device')}{'' if least.is_sure else ' that was found in time'} is "
    text += f"{least.n_bytes:,} bytes ({memory_text(least.n_bytes)}) per device{how}{_most_of_it(least)}"
    looked = [each for each in tried if each.mesh.n_devices == n_devices]
    held = held_anyway(request, looked, micro_batches_to_look_at(request, n_devices))
    if all(each.n_bytes > request.limit_bytes for each in held):
        text += f"; {'; '.join(map(str, held))}"
    enough = least.n_bytes
    if in_stages is not None and in_stages.points_of[0].peak_bytes < enough:
        point = in_stages.points_of[0]
        slices = f"{point.micro_batches} micro-batches" if point.micro_batches > 1 else "with the batch at once"
        text += f"; in {point.n_stages} stages {'and ' * (point.micro_batches > 1)}{slices} it is "
        text += f"{point.peak_bytes:,} bytes ({memory_text(point.peak_bytes)}) on {in_stages.mesh.n_devices} devices"
        enough = point.peak_bytes
    ways = _Ways(request, least, deadline).found()
    return f"{text}; use {', '.join([*ways, ''])}{'or ' * bool(ways)}memory={enough} or more"


def least_needed(request: Request, tried: Sequence[ModelFrontier], deadline: float) -> LeastMemory:
    """Return the point that needs the least memory, of the frontiers that were searched and of the smallest micro-batches.

    The latter are searched here if the request leaves micro-batches open and none were searched before.

    Args:
        tried: the frontiers that were searched so far.
        deadline: the time at which to stop, by ``time.monotonic``.
    """
    found = [LeastMemory.of(each) for each in tried]
    has_looked = True
    if may_use_micro_batches(request) and all(each.model.graph.n_micro_batches == 1 for each in tried):
        progress = until_deadline(deadline, request.progress)
        n_devices = min(found, key=lambda each: each.n_bytes).frontier.mesh.n_devices
        try:
            progress("costs", 0, 1)
            for each in least_in_micro_batches(replace(request, progress=progress), n_devices):
                found.append(LeastMemory.of(each))
        except DeadlineError:
            has_looked = False
    least = min(found, key=lambda each: each.n_bytes)
    return replace(least, is_sure=has_looked and all(each.is_sure for each in found))


def _most_of_it(least: LeastMemory) -> str:
    """Return a phrase that names what most of a peak is for, and the user's operator with the largest share.

    An operator's share consists of its results, their copies and gradients, and a variable's slots.
    """
    peak, producers = least.frontier.peak(least.point), least.frontier.model.graph.producers
    groups, amounts = Counter[str](), Counter[str]()
    for use, n_bytes in peak.by_use.items():
        groups["parameters and slots" if use in (PARAMETERS, SLOTS) else use] += n_bytes
    for tensor, n_bytes in peak.by_tensor.items():
        amounts[producers[tensor].where()] += n_bytes
    ((group, of_group),) = groups.most_common(1) or [("", 0)]
    ((where, of_operator),) = amounts.most_common(1) or [("", 0)]
    most = f", {memory_text(of_group)} of it for {group}" if group else ""
    return f"{most} and, whatever the use, {memory_text(of_operator)} for {where}" if where else most


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
        ways: list[str] = []
        for look in (self._switched_off, self._compact, self._fewer_samples, self._more_devices, self._full):
            if len(ways) < MOST_WAYS:
                ways += look()
        if self.perhaps and len(ways) < MOST_WAYS:
            ways.append(f"perhaps {' or '.join(self.perhaps)} (there wasn't the time to look)")
        return ways

    def _switched_off(self) -> list[str]:
        """Try a search with each switched-off choice by itself; if that isn't enough, with all of them.

        A search without ``force`` is tried as well. Instead of a baseline only the default algorithm is tried.
        """
        options = {f"without leaving out '{name}'": self._with(name) for name in sorted(self.request.without - {STAGES})}
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
            found = self._searched(request, words, self.least.frontier.mesh.n_devices, f"{search}{words}")
            if found:
                return found
        return []

    def _with(self, name: str) -> Request:
        """Return the request with one of the switched-off choices allowed again."""
        return replace(self.request, without=self.request.without - {name})

    def _fewer_samples(self) -> list[str]:
        """Estimate the largest batch that fits, with the plan that needs the least memory and with the fastest.

        The fastest is tried too because it may hold less of the parameters.
        """
        frontier, batch = self.least.frontier, self.request.model.graph.batch
        of_variables = least_held_bytes(self.request.model.graph, frontier.mesh.n_devices, of=(VARIABLE,))
        if batch is None or of_variables > self.limit_bytes:
            return []
        points = {self.least.point, frontier.fastest_within(None)}
        most = max(batch_that_fits(frontier, point, batch, self.limit_bytes) for point in points)
        n_devices = frontier.mesh.n_devices
        if most >= n_devices:
            most -= most % n_devices
        return [f"a batch of about {most} instead of {batch} (an estimate)"] if most else []

    def _more_devices(self) -> list[str]:
        """Search at larger parallelisms until one fits; beyond the hardware, with more devices or machines of its kind."""
        for count, hardware in _larger(self.request.hardware, self.least.frontier.mesh.n_devices):
            if least_held_bytes(self.request.model.graph, count) > self.limit_bytes:
                continue
            try:
                check_usable(self.request.model.graph, hardware, count)
            except InputError:
                continue
            request = replace(self.request, hardware=hardware, force={})
            n_perhaps = len(self.perhaps)
            found = self._searched(request, f"{count} devices", count, f"{count} devices")
            if found or len(self.perhaps) > n_perhaps:
                return found
        return []

    def _compact(self) -> list[str]:
        """Search the compact space after the full one.

        It is a part of the full space, but its frontier has other points. Their peaks may be lower than those of points that
        need less memory by Equation (1).
        """
        return self._in_space(COMPACT) if self.least.frontier.built.space == FULL else []

    def _full(self) -> list[str]:
        """Search the full space after the compact one."""
        return self._in_space(FULL) if self.least.frontier.built.space == COMPACT else []

    def _in_space(self, space: str) -> list[str]:
        """Search another space and return its suggestion, if something fits."""
        n_devices = self.least.frontier.mesh.n_devices
        if least_held_bytes(self.request.model.graph, n_devices) > self.limit_bytes:
            return []
        request = replace(self.request, space=space)
        return self._searched(request, f"{space} space", n_devices, f"tensoropt search --space {space}")

    def _searched(self, request: Request, phase: str, parallelism: int, words: str) -> list[str]:
        """Run another search and return its suggestion if something fits, with the least memory; else nothing.

        If there isn't the time for the search, add it to ``perhaps``.
        """
        text = self.request.progress
        of_phase = None if text is None else under(text, phase)
        progress = until_deadline(self.deadline, of_phase)
        request = replace(request, budget=request.budget or OF_CURVE, progress=progress)
        try:
            progress("costs", 0, 1)
            look = first_look(request, parallelism, micro_batches_to_look_at(request, parallelism))
            if look is not None and look.best is not None:
                return [f"{words} ({memory_text(look.best[0].peak_bytes(look.best[1]))} are enough)"]
            if look is not None and look.certainly_not(self.limit_bytes):
                return []
            for frontier in frontiers(request, parallelism):
                least = LeastMemory.of(frontier)
                if least.n_bytes <= self.limit_bytes:
                    return [f"{words} (at least {memory_text(least.n_bytes)})"]
                progress("peaks", 1, 1)
        except InputError:
            return []
        except DeadlineError:
            self.perhaps.append(words)
        return []


def _larger(hardware: Hardware, beyond: int) -> Iterator[tuple[int, Hardware]]:
    """Yield larger parallelisms with hardware for each: first those of the given hardware, then of enlarged hardware."""
    known, largest = hardware.parallelisms(), max(hardware.parallelisms())
    for count in known:
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
    level = levels[index]
    levels[index] = LinkLevel(level.name, grown, level.latency_us, level.bytes_per_s)
    return Hardware(hardware.name, hardware.device, tuple(levels), provenance=hardware.provenance)
