"""What is asked of a search, and the search for it at one parallelism."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .errors import InputError
from .forcing import Force
from .frontier import Model, ModelFrontier, Progress, find_frontier
from .ft import Budget, InfeasibleError
from .objectives import MEMORY_TIME, Objectives
from .profiling.hardware import Hardware
from .profiling.work import Measured

OF_CURVE = Budget(seconds=1.0, gap=0.01)
"""Where a search is one of several."""


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
        measured: operators that were timed, by the key of their work.
        without: choices that strategies don't have, see :mod:`.choices`.
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
    measured: Mapping[str, Measured] = field(default_factory=dict)
    without: frozenset[str] = frozenset()


def searched(request: Request, parallelism: int) -> ModelFrontier:
    """The frontier that is asked for.

    Raises:
        InputError: as :func:`.frontier.find_frontier`; or no strategy does what ``force`` asks.
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
            request.measured,
            request.without,
        )
    except InfeasibleError as error:
        raise InputError(f"no strategy on {parallelism} devices does what force asks: {error}") from error

