"""The points of a frontier: their costs, and in how many passes a step is taken."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
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
    def gap(self) -> float | None:
        """By how much the point's time exceeds the least of its stages and order at most (.01: 1 %); None of one search."""

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

    @property
    def details(self) -> Sequence[Mapping[str, Any] | None] | None:
        """The steps, decisions and lines of each stage, which a report shows beside the plan; None if they aren't known."""
        return None

    def plan(self, option: str, assumed: Mapping[str, Any]) -> Plan:
        """Return the plan, which records an option and assumptions, on no frontier yet."""


AnyPoint = TypeVar("AnyPoint", bound=Point)


def thinned(n_points: int, always: set[int]) -> list[int]:
    """Return the numbers of the points that a table shows: all of a short frontier, else some from end to end."""
    if n_points <= 2 * MAX_ROWS:
        return list(range(n_points))
    spread = {round(i * (n_points - 1) / (MAX_ROWS - 1)) for i in range(MAX_ROWS)}
    return sorted(spread | always)
