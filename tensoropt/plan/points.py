"""The points of a frontier: their costs, and in how many passes a step is taken."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

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


def thinned(n_points: int, always: set[int]) -> list[int]:
    """Return the numbers of the points that a table shows: all of a short frontier, else some from end to end."""
    if n_points <= 2 * MAX_ROWS:
        return list(range(n_points))
    spread = {round(i * (n_points - 1) / (MAX_ROWS - 1)) for i in range(MAX_ROWS)}
    return sorted(spread | always)
