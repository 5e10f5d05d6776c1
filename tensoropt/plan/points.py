"""The points of a frontier: their costs, and in how many passes a step is taken."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Integral
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar, overload

import numpy as np

from ..common.errors import InputError, short
from ..costs.objectives import Objectives, StrategyCosts

if TYPE_CHECKING:
    from ..ft import Frontier as Found
    from .plan import Plan

MAX_ROWS = 16


@dataclass(frozen=True, slots=True)
class FrontierPoint:
    """The costs of one plan.

    The step takes ``compute_time_us + network_time_us - overlap_time_us``.

    Attributes:
        sum_bytes: memory per device, as the frontier counts it.
        time_us: the time of a training step.
        overlap_time_us: the overlap, in which compute and network run at the same time.
        exact: whether no plan beats this one in both objectives.
    """

    sum_bytes: int
    time_us: float
    compute_time_us: float
    network_time_us: float
    overlap_time_us: float
    exact: bool


class Passes(NamedTuple):
    """In how many stages and micro-batches a step is taken.

    Attributes:
        idle_share: the share of all devices' time in which they wait for other stages.
    """

    stages: int = 1
    micro_batches: int = 1
    idle_share: float = 0.0


class Point(Protocol):
    """A point of a frontier, which becomes a plan when that is asked for."""

    @property
    def costs(self) -> FrontierPoint: ...

    @property
    def peak_bytes(self) -> int:
        """The most bytes that are alive at once on a device."""

    @property
    def passes(self) -> Passes: ...

    @property
    def gap(self) -> float:
        """The most by which a plan of the same stages and order may beat the point in both memory and time (.01: 1 %)."""

    @property
    def bound_us(self) -> float | None:
        """The time that no step beats in the same stages, micro-batches and order, in no more memory; None if unknown."""
        return None

    @property
    def parts(self) -> Sequence[tuple[Any, int]]:
        """For each stage the ``ModelFrontier`` that was searched and the number of its point; none of a point of a file."""
        return ()

    @property
    def peak(self) -> Mapping[str, Any] | None:
        """The instant of the peak as a JSON value, see ``Peak.to_json``; None if it isn't known."""

    def plan(self, option: str, assumed: Mapping[str, Any]) -> Plan:
        """Return the plan, which records an option and assumptions, on no frontier yet."""


PointT = TypeVar("PointT", bound=Point)


def thinned(n_points: int, required: set[int], most: int = 2 * MAX_ROWS, n_spread: int = MAX_ROWS) -> list[int]:
    """Return the numbers of the points that a table shows: all of up to ``most``, else some from end to end."""
    if n_points <= most:
        return list(range(n_points))
    spread = {round(i * (n_points - 1) / (n_spread - 1)) for i in range(n_spread)}
    return sorted(spread | required)


class CostedPoints(ABC):
    """Points by ascending first and descending second objective, numbered from 0, with their costs and peaks.

    Attributes:
        found: the points as arrays of integers, and what is proven about them. Its ``mem_bytes`` are the first objective,
            its ``time_ns`` the second, whatever the objectives are.
        objectives: the names of the two objectives, ``("memory", "time")`` by default.
    """

    found: Found
    objectives: Objectives

    @property
    @abstractmethod
    def costs(self) -> StrategyCosts:
        """The costs of all points in memory, time, compute and network, whatever the objectives."""

    @property
    @abstractmethod
    def peaks(self) -> np.ndarray:
        """The most bytes that are alive at once on a device, of all points, int64[P]: what a limit applies to."""

    def peak_bytes(self, point: int) -> int:
        """Return the most bytes that are alive at once on a device under a point's plan."""
        return int(self.peaks[self.check_point(point)])

    @cached_property
    def points(self) -> tuple[FrontierPoint, ...]:
        """All points, by ascending first objective."""
        costs = self.costs
        columns = (costs.mem_bytes, costs.time_ns, costs.compute_ns, costs.network_ns, costs.overlap_ns)
        rows = zip(*(column.tolist() for column in columns), self.found.exact_points.tolist(), strict=True)
        return tuple(
            FrontierPoint(mem_bytes, time_ns / 1e3, compute_ns / 1e3, network_ns / 1e3, overlap_ns / 1e3, exact)
            for mem_bytes, time_ns, compute_ns, network_ns, overlap_ns, exact in rows
        )

    def __len__(self) -> int:
        return len(self.found)

    def __iter__(self) -> Iterator[FrontierPoint]:
        return iter(self.points)

    @property
    def all_peaks(self) -> np.ndarray | None:
        """The peaks of all points in bytes, int64[P], where points are in order by them; else None."""
        return self.peaks if (np.diff(self.peaks) > 0).all() else None

    @cached_property
    def turning_number(self) -> int:
        """The number of the turning point: by peak, where points are in order by it."""
        peaks = self.all_peaks if self.objectives[0] == "memory" else None
        points = self.found if peaks is None else replace(self.found, mem_bytes=peaks, bound=None)
        return points.turning_point()

    @overload
    def fastest_within(self, limit_bytes: None) -> int: ...

    @overload
    def fastest_within(self, limit_bytes: int | None) -> int | None: ...

    def fastest_within(self, limit_bytes: int | None) -> int | None:
        """Return the number of the fastest point that fits, of equally fast ones that of least memory; None if none fits.

        Args:
            limit_bytes: the memory limit per device; None without a limit.
        """
        numbers = np.arange(len(self)) if limit_bytes is None else np.flatnonzero(self.peaks <= limit_bytes)
        costs = self.costs
        ranking = numbers[np.lexsort((costs.mem_bytes[numbers], costs.time_ns[numbers]))]
        return int(ranking[0]) if len(ranking) else None

    def least_point(self) -> int:
        """Return the number of the point that needs the least memory."""
        return int(self.peaks.argmin())

    def check_point(self, point: int) -> int:
        """Return the number of a point counted from 0; negative ones count from the end.

        Raises:
            InputError: there is no such point.
        """
        if not isinstance(point, Integral) or not -len(self) <= point < len(self):
            raise InputError(f"the frontier has no point {short(point)}; its {len(self)} points are numbered from 0")
        return int(point) % len(self)
