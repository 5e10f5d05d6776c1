"""What a search is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ..ft import Budget
from ..profiling.hardware import Hardware
from ..profiling.work import NOTHING_KNOWN, MeasuredOperators
from ..search.problem.objectives import MEMORY_TIME, Objectives
from ..sharding.constraints import Force
from ..sharding.model import Model
from .find_frontier import Progress


@dataclass(frozen=True)
class Request:
    """The arguments of a search, whatever the parallelism.

    Attributes:
        limit_bytes: the memory limit per device; None without a limit.
        force: degrees by factor by operator that every strategy must have.
        assumed: the assumptions that plans record.
        algorithm: the name of the search algorithm or baseline.
        progress: called with (phase, done, total) now and then.
        space: the space to search; None chooses by the size of the full one.
        objectives: the two costs to search.
        budget: how much effort to spend on a search; None for the default, which is smaller for each point of a curve.
        known: the times of operators that were measured.
        without: the choices that strategies must not use, see :mod:`..search.problem.choices`.
        micro_batches: the number of micro-batches in which a step processes its batch. None leaves it open: several are used
            if the memory limit requires it.
        searches_micro_batches: whether their number is searched without stages, where it is left open.
        wants_frontier: whether the frontier of the answer has all points. If not, strategies that rematerialize, which are
            never faster, are searched only where the fastest of the others doesn't fit.
        placed: the devices that operators are placed on, by name, as only plans with stages have them.
        may_take_stages: whether plans in stages are searched where none without fits the memory limit, or they may pay.
        tell: called with a sentence on whether anything fits, as soon as that is known of a large model.
        stages_must_pay: whether stages, where plans without are possible too, must be predicted to save more than what
            predictions are off on measured hardware; they needn't where both are run.
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
    known: MeasuredOperators = NOTHING_KNOWN
    without: frozenset[str] = frozenset()
    micro_batches: int | None = None
    searches_micro_batches: bool = True
    wants_frontier: bool = True
    placed: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    may_take_stages: bool = False
    stages_must_pay: bool = True
    tell: Callable[[str], None] | None = None
