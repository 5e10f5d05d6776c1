"""Search a request's model as it is, and the numbers of micro-batches that are tried without stages."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from ..common.errors import InputError
from ..common.words import counted
from ..ft import Budget, InfeasibleError
from ..sharding.model import Model
from .asked import Request
from .baselines import OTHERS
from .frontiers.find_frontier import LOOK, Progress, find_frontier
from .frontiers.model_frontier import ModelFrontier
from .problem.choices import ACCUMULATE

OF_CURVE = Budget(seconds=1.0, gap=0.01)
"""The default budget of a search that is one of several, such as one point of a curve."""
ONCE = Budget(seconds=0.0)
"""The budget of a search that only says whether anything fits at all: no refinement."""


def searched(request: Request, parallelism: int, is_enough: Callable[[ModelFrontier], bool] | None = None) -> ModelFrontier:
    """Return the frontier of a request, without micro-batches if it leaves their number open.

    Args:
        is_enough: says whether strategies that rematerialize needn't be searched, given the frontier of the others; if None,
            they needn't where not all points are wanted and its fastest one fits.

    Raises:
        InputError: as :func:`.frontiers.find_frontier.find_frontier`; or no strategy is possible, for example because
            ``force`` asks for too much; or operators are placed on devices.
    """
    if request.placed:
        raise InputError(
            f"'{next(iter(request.placed))}' is placed on devices, which plans in stages of recorded models alone have "
            "(tensoropt.find_strategy, tensoropt search); leave out the placement"
        )
    try:
        enough = is_enough or (None if request.wants_frontier else partial(fastest_fits, request))
        return find_frontier(request, parallelism, enough)
    except InfeasibleError as error:
        slices = f" in {request.micro_batches} micro-batches" if (request.micro_batches or 1) > 1 else ""
        condition = "does what force asks" if request.force else "is possible"
        raise InputError(f"no strategy on {counted(parallelism, 'device')}{slices} {condition}: {error}") from error


def fastest_fits(request: Request, frontier: ModelFrontier) -> bool:
    """Return whether the fastest point of a frontier is within the memory limit."""
    limit = request.limit_bytes
    return limit is None or frontier.peak_bytes(frontier.fastest_within(None)) <= limit


def frontiers(request: Request, parallelism: int) -> Iterator[ModelFrontier]:
    """Yield the frontier without micro-batches; then those that need the least memory with micro-batches, if these are open.

    Each is searched when the iterator reaches it.

    Raises:
        InputError: the first search fails; see :func:`searched`.
    """
    yield searched(request, parallelism)
    if may_use_micro_batches(request):
        yield from least_in_micro_batches(request, parallelism)


def may_use_micro_batches(request: Request) -> bool:
    """Return whether the request leaves the number of micro-batches open."""
    is_requested = request.micro_batches is not None or ACCUMULATE in request.without
    return request.searches_micro_batches and not (is_requested or request.algorithm in OTHERS)


def least_in_micro_batches(request: Request, parallelism: int) -> Iterator[ModelFrontier]:
    """Yield the frontiers with the smallest micro-batches: of at least one sample per device, and of the fewest samples.

    The numbers of micro-batches are powers of two. More micro-batches never need more memory, except for operators that can
    be split only along samples. So these two frontiers say whether micro-batches help at all. They are searched without
    refinement, so that the answer doesn't depend on the speed of the machine.
    """
    for n in most_micro_batches(request.model, parallelism):
        try:
            yield searched(replace(request, micro_batches=n, budget=ONCE), parallelism)
        except InputError:
            return


def micro_batches_to_look_at(request: Request, parallelism: int) -> list[int]:
    """Return the number of micro-batches that is asked for, or 1; where it is open, also the most."""
    counts = most_micro_batches(request.model, parallelism) if may_use_micro_batches(request) else []
    return [request.micro_batches or 1, *counts]


def most_micro_batches(model: Model, parallelism: int) -> list[int]:
    """Return the most micro-batches with a sample per device, and the most of all; none where there can't be two.

    They are powers of two.
    """
    if not model.takes_micro_batches(2):
        return []
    micro_batching = model.in_micro_batches(2).graph.micro_batching
    assert micro_batching is not None
    divisors = [1 << i for i in range(1, micro_batching.batch.bit_length()) if micro_batching.batch % (1 << i) == 0]
    one_each = [n for n in divisors if micro_batching.batch // n >= parallelism]
    return list(dict.fromkeys([*one_each[-1:], *divisors[-1:]]))


class DeadlineError(Exception):
    """A deadline has passed."""


def until_deadline(deadline: float, progress: Progress | None) -> Progress:
    """Return a progress callback that forwards its calls until a deadline, and raises TimeIsUpError after it.

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
        point: its number.
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
