"""What to say where no plan fits within a memory limit: what the least is, what it is for, and what would do.

The ways out are looked for, each as what it would be: a search with what was switched off, a replay with fewer samples, a
search on more devices, a search in the other space. A search that can't help is left out where that is certain: parameters
and slots are divided by the devices at best. All of it takes about as long as the search before with its replays, or
``LEAST_S``; what isn't known by then isn't told.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from .baselines import BASELINES
from .errors import InputError
from .frontier import ModelFrontier
from .ft import ALGORITHMS
from .ir import VARIABLE
from .memory_limit import memory_text
from .plan_frontier import Progress
from .profiling.hardware import Hardware, LinkLevel
from .request import OF_CURVE, Request, frontiers
from .smaller_batch import batch_of, batch_that_fits
from .space import COMPACT, FULL
from .usable import check_usable

LEAST_S = 10.0
OF_SEARCH = 2.0
"""Of the seconds of the search; to replay points took about as long again."""
MOST_WAYS = 3
MOST_DEVICES = 16
"""Up to so many are tried, or up to four times as many as the hardware has."""


class _TimeIsUpError(Exception):
    """Looking for ways out has taken as long as it may."""


@dataclass(frozen=True, slots=True)
class _Least:
    """What the least is on a frontier, and at which of its points."""

    frontier: ModelFrontier
    point: int

    @classmethod
    def of(cls, frontier: ModelFrontier, progress: Progress | None) -> _Least:
        return cls(frontier, frontier.least_point(progress))

    @property
    def n_bytes(self) -> int:
        return self.frontier.needed_bytes(self.point)


def nothing_fits(request: Request, tried: Sequence[ModelFrontier]) -> str:
    """One sentence for the user, after a search on which nothing fits.

    Args:
        tried: what was searched, at one parallelism or several.
    """
    assert request.limit_bytes is not None
    least = min((_Least.of(each, request.progress) for each in tried), key=lambda each: each.n_bytes)
    n_devices, text = least.frontier.mesh.n_devices, f"{least.n_bytes:,} bytes ({memory_text(least.n_bytes)})"
    told = f"no plan fits {request.limit_bytes:,} bytes ({memory_text(request.limit_bytes)}) per device: the least on "
    told += f"{n_devices} device{'s' * (n_devices > 1)} is {text} per device{_most_of_it(least)}"
    seconds = sum(sum(each.seconds_by_stage.values()) for each in tried)
    ways = _Ways(request, least, max(OF_SEARCH * seconds, LEAST_S)).found()
    return f"{told}; use {', '.join([*ways, ''])}{'or ' * bool(ways)}memory={least.n_bytes} or more"


def _most_of_it(least: _Least) -> str:
    """For which of the user's operators most of it is: its results, copies and gradients, a variable's slots."""
    peak, producers = least.frontier.peak(least.point), least.frontier.model.graph.producers
    amounts: dict[str, int] = {}
    for tensor, n_bytes in peak.by_tensor.items():
        where = producers[tensor].where()
        amounts[where] = amounts.get(where, 0) + n_bytes
    if not amounts:
        return ""
    where = max(amounts, key=lambda each: amounts[each])
    return f", {memory_text(amounts[where])} of it for {where}"


class _Ways:
    """What would do, looked for until a deadline.

    Args:
        least: of what was searched.
        seconds: that it may take.
    """

    def __init__(self, request: Request, least: _Least, seconds: float) -> None:
        assert request.limit_bytes is not None
        self.request, self.least, self.limit_bytes = request, least, request.limit_bytes
        self._deadline = time.monotonic() + seconds

    def found(self) -> list[str]:
        """In words, by what they cost the user: a switch, a quick search, fewer samples, more devices, a long search."""
        ways: list[str] = []
        for look in (self._switched_off, self._compact, self._fewer_samples, self._more_devices, self._full):
            if len(ways) == MOST_WAYS:
                break
            try:
                ways += look()
            except _TimeIsUpError:
                continue
        return ways[:MOST_WAYS]

    def _switched_off(self) -> list[str]:
        """Each by itself; where that isn't enough, all of them."""
        options = {f"without leaving out '{name}'": self._with(name) for name in sorted(self.request.without)}
        if len(options) > 1:
            options["without leaving out any choice"] = replace(self.request, without=frozenset())
        if self.request.force:
            options["without force="] = replace(self.request, force={})
        if self.request.algorithm in BASELINES:
            options = {f"algorithm '{ALGORITHMS[0]}'": replace(self.request, algorithm=ALGORITHMS[0])}
        for words, request in options.items():
            least = self._searched(request, words, self.least.frontier.mesh.n_devices)
            if least is not None:
                search = "a search " * words.startswith("without")
                return [f"{search}{words} (at least {memory_text(least.n_bytes)})"]
        return []

    def _with(self, name: str) -> Request:
        return replace(self.request, without=self.request.without - {name})

    def _fewer_samples(self) -> list[str]:
        """By the plan that needs the least, and by the fastest, which may keep less of the parameters."""
        frontier, batch = self.least.frontier, batch_of(self.request.model)
        if batch is None:
            return []
        points = {self.least.point, frontier.fastest_within(None)}
        most = max(batch_that_fits(frontier, point, batch, self.limit_bytes) for point in points)
        n_devices = frontier.mesh.n_devices
        if most >= n_devices:
            most -= most % n_devices
        return [f"a batch of about {most} instead of {batch} (an estimate)"] if most else []

    def _more_devices(self) -> list[str]:
        """The first larger parallelism; beyond the hardware, on more devices or machines of the same kind."""
        for count, hardware in _larger(self.request.hardware, self.least.frontier.mesh.n_devices):
            if self._parameter_bytes(count) > self.limit_bytes:
                continue
            try:
                check_usable(self.request.model.graph, hardware, count)
            except InputError:
                continue
            request = replace(self.request, hardware=hardware, force={})
            least = self._searched(request, f"{count} devices", count)
            if least is not None:
                return [f"{count} devices (at least {memory_text(least.n_bytes)})"]
        return []

    def _parameter_bytes(self, n_devices: int) -> int:
        """What no device can have less than: its share of each variable with its slots."""
        graph, total = self.request.model.graph, 0
        for op in graph.step_operators:
            if op.type == VARIABLE:
                copies = 1 + min((update.slots for update in graph.updates.get(op.name, ())), default=0)
                total += copies * -(-op.result.mem_bytes // n_devices)
        return total

    def _compact(self) -> list[str]:
        """A part of the full space, but its points are others, and may need less at once than those that keep less."""
        return self._in_space(COMPACT) if self.least.frontier.built.space == FULL else []

    def _full(self) -> list[str]:
        return self._in_space(FULL) if self.least.frontier.built.space == COMPACT else []

    def _in_space(self, space: str) -> list[str]:
        least = self._searched(replace(self.request, space=space), f"{space} space", self.least.frontier.mesh.n_devices)
        return [] if least is None else [f"tensoropt search --space {space} (at least {memory_text(least.n_bytes)})"]

    def _searched(self, request: Request, words: str, parallelism: int) -> _Least | None:
        """What the least is by another search; None if that isn't enough, or can't be had.

        Raises:
            _TimeIsUpError: it isn't known in time.
        """
        progress = self._in_time(words)
        progress("costs", 0, 1)
        request = replace(request, budget=request.budget or OF_CURVE, progress=progress)
        try:
            found = (_Least.of(frontier, progress) for frontier in frontiers(request, parallelism))
            return next((least for least in found if least.n_bytes <= self.limit_bytes), None)
        except InputError:
            return None

    def _in_time(self, words: str) -> Callable[[str, int, int], None]:
        told = self.request.progress

        def progress(stage: str, done: int, total: int) -> None:
            if time.monotonic() > self._deadline:
                raise _TimeIsUpError
            if told is not None:
                told(f"{words}, {stage}", done, total)

        return progress


def _larger(hardware: Hardware, beyond: int) -> Iterator[tuple[int, Hardware]]:
    known, largest = hardware.parallelisms(), max(hardware.parallelisms())
    for count in known:
        if count > beyond:
            yield count, hardware
    count = 2 * largest
    while count <= max(MOST_DEVICES, 4 * largest):
        yield count, _enlarged(hardware, count)
        count *= 2


def _enlarged(hardware: Hardware, n_devices: int) -> Hardware:
    """The same devices in larger number: more machines where there are several, else more devices in one."""
    index = next((i for i, level in enumerate(hardware.levels) if level.count > 1), len(hardware.levels) - 1)
    grown = hardware.levels[index].count * n_devices // hardware.n_devices
    levels = list(hardware.levels)
    level = levels[index]
    levels[index] = LinkLevel(level.name, grown, level.latency_us, level.bytes_per_s)
    return Hardware(hardware.name, hardware.device, tuple(levels), provenance=hardware.provenance)
