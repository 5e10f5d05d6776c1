"""Find the frontier of a recorded model on some hardware: build the problem, search it, and turn its points into plans."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

from ...common.errors import InputError
from ...common.process.garbage import older_objects_kept
from ...common.words import counted
from ...costs.model_costs import costing_of
from ...ft import BY_DEFAULT, Frontier, InfeasibleError
from ..algorithms import OTHERS
from ..problem.builder import ProblemBuilder
from ..problem.choices import REMAT, REUSE, ZERO, Choices
from ..problem.config_space import space_for
from ..problem.strategy_problem import StrategyProblem
from ..problem.warm_start import adopted
from ..request import Request
from ..search_problem import ProblemSearch
from ..task import BaselineTask
from .find_other import find_other
from .model_frontier import ModelFrontier

LOOK = "look"
"""The algorithm's name of strategies that were looked at before a search."""
NO_REMAT = "without rematerialization, as the fastest plan fits without it"
NOTHING_OFFERED = "nothing can be rematerialized that would save memory"
INTERRUPTED = "without rematerialization, as Ctrl-C ended the search"


class SearchInterrupted(KeyboardInterrupt):
    """Ctrl-C during a search that has found a frontier without rematerialization, ``found``."""

    def __init__(self, found: ModelFrontier) -> None:
        self.found = found


def searched(request: Request, parallelism: int, is_enough: Callable[[ModelFrontier], bool] | None = None) -> ModelFrontier:
    """Return the frontier of a request, without micro-batches if it leaves their number open.

    Args:
        is_enough: says whether strategies that rematerialize needn't be searched, given the frontier of the others; if None,
            they needn't where not all points are wanted and its fastest one fits.

    Raises:
        InputError: as :func:`find_frontier`; or no strategy is possible, for example because
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


@older_objects_kept()
def find_frontier(
    request: Request, parallelism: int, is_enough: Callable[[ModelFrontier], bool] | None = None
) -> ModelFrontier:
    """Search the strategies of a request's model at one parallelism, without micro-batches if it leaves their number open.

    Args:
        parallelism: the number of devices.
        is_enough: says of the frontier without rematerialization whether to return it and search no further.

    Raises:
        InputError: the hardware doesn't have this parallelism, ``force`` can't be satisfied, the algorithm doesn't support
            the arguments, or the batch can't be divided into so many micro-batches.
        SearchInterrupted: Ctrl-C, when the frontier without rematerialization is found.
    """
    hardware, without, objectives, progress = request.hardware, request.without, request.objectives, request.progress
    phases = _Phases()
    with phases.taking("costs"):
        mesh = hardware.mesh(parallelism)
        model = request.model.in_micro_batches(request.micro_batches or 1, mesh.n_devices)
        costing = costing_of(model, hardware, mesh, request.known)
        space = request.space or space_for(model.graph, mesh)
    if request.algorithm in OTHERS:
        return find_other(request, model, BaselineTask(costing, mesh, space, None, progress))
    report_costs, report_search = (partial(progress, phase) for phase in ("costs", "search")) if progress else (None, None)
    is_remat = REMAT not in without and objectives[0] == "memory"
    choices = Choices(REUSE not in without, ZERO not in without)
    builder = ProblemBuilder(costing, mesh, space, request.force, report_costs, choices=choices)
    searching = ProblemSearch(objectives, request.algorithm, report_search, request.budget or BY_DEFAULT)

    def make_frontier(problem: StrategyProblem, points: Frontier, note: str = "") -> ModelFrontier:
        return ModelFrontier(model, hardware, problem, costing, points, phases.seconds, note=note, objectives=objectives)

    def of_least_peaks(problem: StrategyProblem, points: Frontier, note: str = "") -> ModelFrontier:
        with phases.taking("peaks"):
            return make_frontier(problem, points, note).of_least_peaks(progress)

    with phases.taking("costs"):
        base_problem = builder.build()
    with phases.taking("search"):
        points = _searched(searching, base_problem, request.algorithm, not is_remat)
    if not is_remat:
        return of_least_peaks(base_problem, points)
    if is_enough is not None and is_enough(make_frontier(base_problem, points, NO_REMAT)):
        return of_least_peaks(base_problem, points, NO_REMAT)
    with phases.taking("costs"):
        rematerializing = builder.build_rematerializing()
    if rematerializing is None or rematerializing.transient is None:
        return of_least_peaks(base_problem, points, NOTHING_OFFERED)
    with phases.taking("search"):
        points = replace(points, strategies=adopted(rematerializing, base_problem, points.strategies))
        del base_problem, builder  # with them go hundreds of megabytes of a large model's costs
        try:
            points = searching.with_rematerialization(points, phases.seconds["search"], rematerializing)
        except KeyboardInterrupt as error:
            raise SearchInterrupted(make_frontier(rematerializing, points, INTERRUPTED).of_least_peaks(None)) from error
    return of_least_peaks(rematerializing, points)


@dataclass(frozen=True, slots=True)
class _Phases:
    """The seconds that each phase has taken so far, by its name."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextlib.contextmanager
    def taking(self, name: str) -> Iterator[None]:
        """Count what is done inside for a phase."""
        start_s = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start_s


def _searched(searching: ProblemSearch, problem: StrategyProblem, algorithm: str, is_last: bool) -> Frontier:
    """Return the frontier of a problem without rematerialization; see :meth:`ProblemSearch.plain`.

    Raises:
        InputError: there are too many strategies to enumerate.
    """
    try:
        return searching.plain(problem, is_last)
    except ValueError as error:
        if algorithm != "exhaustive" or isinstance(error, InfeasibleError):
            raise
        raise InputError(str(error)) from error
