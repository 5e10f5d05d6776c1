"""Find the frontier of a recorded model on some hardware: build the problem, search it, and turn its points into plans.

Other algorithms are loaded where one is asked for.
"""

from __future__ import annotations

import contextlib
import importlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from ...common.errors import InputError
from ...common.process.garbage import older_objects_kept
from ...common.process.progress import Progress
from ...common.words import counted
from ...costs.objectives import MEMORY_TIME
from ...costs.operator_costs import costing_of
from ...ft import ALGORITHMS, BY_DEFAULT, Frontier, InfeasibleError, at_true_times
from ...profiling.hardware import Hardware
from ...reschedule.mesh import Mesh
from ...rules.rule import Config
from ...sharding.model import Model
from ..algorithms import BY_SIMULATION, MONTE_CARLO_SECONDS, OTHERS
from ..problem.builder import ProblemBuilder
from ..problem.choices import REMAT, REUSE, ZERO, Choices
from ..problem.config_space import space_for
from ..problem.strategy_problem import StrategyProblem
from ..request import Request
from ..search_problem import ProblemSearch, adopted
from ..task import BaselineResult, BaselineTask
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
    """Return the frontier of a problem without rematerialization; see :meth:`ProblemSearch.plain`."""
    try:
        return searching.plain(problem, is_last)
    except ValueError as error:
        if algorithm != "exhaustive" or isinstance(error, InfeasibleError):
            raise
        raise InputError(str(error)) from error


def find_other(request: Request, model: Model, task: BaselineTask) -> ModelFrontier:
    """Return what the algorithm of a request, one of ``OTHERS``, finds for a task.

    Raises:
        InputError: the algorithm can't follow the request's other arguments.
    """
    _check_arguments(request)
    seconds = MONTE_CARLO_SECONDS if request.budget is None else request.budget.seconds
    frontier = _choose(model, request.hardware, task, request.algorithm, (seconds, request.limit_bytes))
    return frontier if request.algorithm in BY_SIMULATION else frontier.of_least_peaks(task.progress)


def _check_arguments(request: Request) -> None:
    algorithm, objectives, advice = request.algorithm, request.objectives, f"or search with {ALGORITHMS[0]}"
    if (request.micro_batches or 1) > 1:
        raise InputError(
            f"algorithm '{algorithm}' takes no micro-batches, got micro_batches={request.micro_batches}; leave them out, "
            f"{advice}"
        )
    if objectives != MEMORY_TIME:
        raise InputError(
            f"algorithm '{algorithm}' has objectives of its own, got {','.join(objectives)}; leave out the objectives, "
            f"{advice}"
        )
    if request.force:
        raise InputError(f"algorithm '{algorithm}' decides by itself what is split; leave out force=, {advice}")


def find_baseline(frontier: ModelFrontier, algorithm: str, progress: Progress | None = None) -> ModelFrontier:
    """Return the points that an algorithm chooses for a frontier's model, on its hardware and under the same costs.

    Args:
        algorithm: one of ``OTHERS``, or ``UNSPLIT``.
        progress: called with (phase, done, total) now and then; the phases are ``costs`` and ``search``.
    """
    # Baselines neither regather nor rematerialize, so a problem with these choices is not theirs.
    problem = None if frontier.built.choices or frontier.built.transient is not None else frontier.built
    task = BaselineTask(frontier.costing, frontier.mesh, frontier.built.space, problem, progress)
    return _choose(frontier.model, frontier.hardware, task, algorithm)


def baselines_at_once(part: ModelFrontier, whole: Model, mesh: Mesh) -> Callable[[str], ModelFrontier]:
    """Return what finds the points that an algorithm chooses for a whole model that takes a step at once, by its name.

    Args:
        part: a frontier of the model's micro-batches, or of a stage, under the same costs.
    """
    costing = replace(costing_of(whole, part.hardware, mesh), compute=part.costing.compute)
    return partial(_choose, whole, part.hardware, BaselineTask(costing, mesh, space_for(whole.graph, mesh)))


def data_parallel_configs(frontier: ModelFrontier) -> dict[str, Config]:
    """Return data parallelism's config for each operator of a frontier's model, by name, in the space or not."""
    task = BaselineTask(frontier.costing, frontier.mesh, frontier.built.space)
    configs: dict[str, Config] = _loaded("baselines.data_parallel").configs(task)
    return configs


def _choose(
    model: Model, hardware: Hardware, task: BaselineTask, algorithm: str,
    limits: tuple[float, int | None] = (MONTE_CARLO_SECONDS, None),
) -> ModelFrontier:
    """Return the points that an algorithm chooses for a task, at the times at which they run.

    Args:
        limits: of a search by simulated times, see :func:`_find_by_simulation`.
    """
    if algorithm in BY_SIMULATION:
        return _find_by_simulation(model, hardware, replace(task, built=None), algorithm, limits)
    return _timed(model, hardware, task, lambda: _loaded("baselines").search_baseline(task, algorithm))


def _timed(model: Model, hardware: Hardware, task: BaselineTask, search: Callable[[], BaselineResult]) -> ModelFrontier:
    """Return the points of a search by the times of Equation (3), at the times with overlap, as the step runs."""
    start_s = time.perf_counter()
    answer = search()
    phases = {"search": time.perf_counter() - start_s}
    problem, points = answer.built, answer.found
    if problem.overlap is not None:
        bound = points.bound and points.bound.lowered(problem.overlap.most_ns)
        points = at_true_times(problem.problem, problem.overlap, points, bound)
    return ModelFrontier(model, hardware, problem, task.costing, points, phases, note=answer.note)


def _find_by_simulation(
    model: Model, hardware: Hardware, task: BaselineTask, algorithm: str, limits: tuple[float, int | None]
) -> ModelFrontier:
    """Return the fastest strategy that a search by simulated times met and whose peak is within the limit, as one point.

    Where none is, the one that needs the least memory.

    Args:
        limits: the seconds that it may take, and the memory limit per device.
    """
    monte_carlo = _loaded("flexflow.monte_carlo")
    start_s, limit_bytes = time.perf_counter(), limits[1]
    answer = monte_carlo.find(task, hardware, algorithm, monte_carlo.SearchLimits(*limits))
    phases = {"search": time.perf_counter() - start_s}
    misfits: list[ModelFrontier] = []
    for _, states in answer.candidates:
        frontier = ModelFrontier(
            model, hardware, answer.built, task.costing, answer.frontier(states), phases, note=answer.note,
            is_interrupted=answer.is_interrupted,
        )  # fmt: skip
        if limit_bytes is None or frontier.peak(0).n_bytes <= limit_bytes:
            return frontier
        misfits.append(frontier)
    return min(misfits, key=lambda misfit: misfit.peak(0).n_bytes)


def _loaded(module: str) -> Any:
    """Return a module of other algorithms, which nothing imports: only a search that asks for one of them loads it."""
    return importlib.import_module(f"..{module}", __package__)
