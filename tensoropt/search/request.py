"""The request of a search, read from the arguments that a user gives."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from numbers import Integral

from ..common.errors import InputError, short
from ..common.memory_units import default_limit, parse_memory
from ..common.process.progress import Progress
from ..costs.objectives import MEMORY_TIME, Objectives
from ..ft import Budget
from ..profiling.hardware import Hardware
from ..profiling.work import NOTHING_KNOWN, MeasuredOperators
from ..sharding.constraints import Force, by_operator, split_force
from ..sharding.micro_batches import checked_count
from ..sharding.model import Model
from .algorithms import OTHERS
from .problem.choices import ACCUMULATE, REMAT, REUSE, checked_choices

WORTH_STAGES = 0.15
"""Stages that weren't asked for must be predicted to save this share of a step of the fastest plan without.

Predictions with stages have been 13.5 % off on average, and more where products have few rows (docs/reference/benchmarks.md,
Stages).
"""
WORTH_TRYING = 0.05
"""The same where both plans are run, so that the faster one is taken: the search of stages takes time, too."""
OF_CURVE = Budget(seconds=1.0, gap=0.01)
"""The default budget of a search that is one of several, such as one point of a curve."""
ONCE = Budget(seconds=0.0)
"""The budget of a search that only says whether anything fits at all: no refinement."""


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
        without: the choices that strategies must not use, see :mod:`.problem.choices`.
        micro_batches: the number of micro-batches in which a step processes its batch. None leaves it open: several are used
            if the memory limit requires it.
        searches_micro_batches: whether their number is searched without stages, where it is left open.
        wants_frontier: whether the frontier of the answer has all points. If not, strategies that rematerialize, which are
            never faster, are searched only where the fastest of the others doesn't fit.
        placed: the devices that operators are placed on, by name, as only plans with stages have them.
        may_take_stages: whether plans in stages are searched where none without fits the memory limit, or they may pay.
        tell: called with a sentence on whether anything fits, as soon as that is known of a large model.
        keeps_found: whether Ctrl-C ends a search with what it has found, if anything fits.
        worth_stages: the share of a step that stages must be predicted to save, where plans without are possible too:
            WORTH_STAGES, or WORTH_TRYING where both are run.
        stages: the numbers of stages that are asked for, of which 1 stands for plans without. None: none are, or as few as
            the placement takes.
        schedule: the order of the stages' passes; None for the default.
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
    worth_stages: float = WORTH_STAGES
    tell: Callable[[str], None] | None = None
    keeps_found: bool = False
    stages: tuple[int, ...] | None = None
    schedule: str | None = None

    @property
    def asks_for_stages(self) -> bool:
        """Whether a user asks for plans with stages, by numbers of stages or by placing operators on devices."""
        return bool(self.placed) or any(count > 1 for count in self.stages or ())

    @property
    def may_use_micro_batches(self) -> bool:
        """Whether the number of micro-batches is left open, and searched."""
        is_requested = self.micro_batches is not None or ACCUMULATE in self.without
        return self.searches_micro_batches and not (is_requested or self.algorithm in OTHERS)

    @property
    def must_be_tried(self) -> bool:
        """Whether predictions aren't enough to take stages that weren't asked for, and no plan will be run."""
        return self.worth_stages > WORTH_TRYING and self.hardware.measured is not None

    def micro_batches_to_look_at(self, parallelism: int) -> list[int]:
        """Return the number of micro-batches that is asked for, or 1; where it is open, also the most."""
        counts = self.model.smallest_micro_batches(parallelism) if self.may_use_micro_batches else []
        return [self.micro_batches or 1, *counts]


def request_of(
    model: Model,
    hardware: Hardware,
    memory: int | str | None,
    force: object,
    without: object = (),
    micro_batches: object = None,
    stages: object = None,
    schedule: str | None = None,
) -> Request:
    """Return the request that a user's arguments describe, after checking them.

    Args:
        memory: the memory limit per device; None for the default limit of the hardware's device.
        force: degrees by factor by operator, and the devices that operators are placed on.
        without: the choices that strategies must not use.
        micro_batches: the number of micro-batches; None leaves it open.
        stages: a number of stages, or several.
        schedule: the order of the stages' passes.

    Raises:
        InputError: ``memory``, ``stages`` or ``force`` is malformed, ``without`` names an unknown choice, or the model can't
            be trained in so many micro-batches.
    """
    limit = limit_of(memory, hardware)
    degrees, placed = split_force(force)
    forced, left_out = checked_force(degrees), checked_choices(without)
    slices = checked_micro_batches(model, micro_batches, left_out)
    if model.graph.is_sequential:
        # What a later pass computes again would have to be told from what the first one does.
        left_out |= {REUSE, REMAT, ACCUMULATE}
    return Request(
        model, hardware, limit, forced, assumptions(hardware, model), without=left_out, micro_batches=slices,
        placed={**model.placed, **by_operator(model.graph, placed)},
        stages=None if stages is None else checked_stages(stages), schedule=schedule,
    )  # fmt: skip


def limit_of(memory: int | str | None, hardware: Hardware) -> int:
    """Return the memory limit per device in bytes: the given one, or the default limit of the hardware's device.

    Raises:
        InputError: ``memory`` is malformed.
    """
    return default_limit(hardware.device.memory_bytes) if memory is None else parse_memory(memory)


def checked_micro_batches(model: Model, requested: object, without: Container[str]) -> int | None:
    """Return the number of micro-batches that a user asked for, after checking it; None if they asked for none.

    Args:
        without: the choices that strategies must not use.

    Raises:
        InputError: it isn't a valid number, the model can't be trained in so many micro-batches, or ``without`` excludes
            micro-batches.
    """
    if requested is None:
        return None
    count = checked_count(requested)
    if count > 1 and ACCUMULATE in without:
        raise InputError(f"micro_batches={count} is asked for, and to do without '{ACCUMULATE}'; leave one of the two")
    model.in_micro_batches(count)
    return count


def checked_force(requested: object) -> Force:
    """Return what a user gave as ``force``, after checking its form: degrees by factor by operator.

    The search checks that the model has these operators and factors.

    Raises:
        InputError: it has another form.
    """
    if requested is None:
        return {}
    if not isinstance(requested, Mapping) or not all(isinstance(blocks, Mapping) for blocks in requested.values()):
        raise InputError(
            f"force takes degrees by factor by operator, such as {{'MatMul_1': {{'m': 2}}}}, got {short(requested)}"
        )
    for name, blocks in requested.items():
        for factor, degree in blocks.items():
            if not isinstance(degree, Integral) or isinstance(degree, bool) or degree < 1:
                raise InputError(
                    f"force takes a positive number of blocks for {name}'s factor '{factor}', got {short(degree)}"
                )
    return {str(name): {str(factor): int(degree) for factor, degree in blocks.items()} for name, blocks in requested.items()}


def assumptions(hardware: Hardware, model: Model) -> dict[str, object]:
    """Return what a plan records of its search: hardware, batch, TensorFlow version, provenance of costs."""
    import tensorflow as tf

    return {
        "hardware": hardware.name, "device": hardware.device.name, "device_memory_bytes": int(hardware.device.memory_bytes),
        "batch": model.graph.batch, "tensorflow": tf.__version__, "provenance": dict(hardware.provenance),
    }  # fmt: skip


def checked_stages(stages: object) -> tuple[int, ...]:
    """Return the numbers of stages that a user gave: one, or several of which the search chooses.

    Raises:
        InputError: they aren't whole numbers from 1 up.
    """
    counts = stages if isinstance(stages, (tuple, list)) else (stages,)
    for count in counts:
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise InputError(f"stages takes whole numbers from 1 up, such as 2, or (1, 2) for a choice, got {short(stages)}")
    if not counts:
        raise InputError("stages is empty; give whole numbers from 1 up, such as (1, 2)")
    return tuple(dict.fromkeys(counts))
