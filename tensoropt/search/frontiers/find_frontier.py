"""Find the frontier of a recorded model on some hardware: build the problem, search it, and turn its points into plans."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

from ...common.errors import InputError
from ...common.garbage import older_objects_kept
from ...common.progress import Progress
from ...costs.model_costs import costing_of
from ...costs.objectives import MEMORY_TIME
from ...ft import ALGORITHMS, BY_DEFAULT, Budget, Frontier, InfeasibleError, at_true_times
from ...profiling.hardware import Hardware
from ...program.simulator import network_of
from ...rules.registry import rule_in_micro_batches
from ...rules.rule import Config, why_invalid
from ...sharding.model import Model
from ..asked import Request
from ..baselines import BY_SIMULATION, FT_SIMULATED, OTHERS, search_baseline
from ..baselines.one_strategy import of_one_strategy
from ..baselines.task import BaselineResult, BaselineTask, check_arguments
from ..flexflow import monte_carlo
from ..flexflow.monte_carlo import SearchLimits
from ..problem.builder import ProblemBuilder
from ..problem.choices import REMAT, REUSE, ZERO, Choices
from ..problem.config_space import space_for
from ..problem.strategy_problem import StrategyProblem
from ..problem.warm_start import adopted
from ..search_problem import ProblemSearch
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
        try:
            mesh = hardware.mesh(parallelism)
        except ValueError as error:
            raise InputError(str(error)) from error
        model = request.model.in_micro_batches(request.micro_batches or 1, mesh.n_devices)
        costing = costing_of(model, hardware, mesh, request.known)
        space = request.space or space_for(model.graph, mesh)
    if request.algorithm in OTHERS:
        check_arguments(request.algorithm, request.micro_batches or 1, objectives, bool(request.force))
        task = BaselineTask(costing, mesh, space, None, progress)
        return _search_other(model, request, task)
    report_costs, report_search = (partial(progress, phase) for phase in ("costs", "search")) if progress else (None, None)
    is_remat = REMAT not in without and objectives[0] == "memory"
    choices = Choices(REUSE not in without, ZERO not in without)
    builder = ProblemBuilder(model.graph, model.backward, costing, mesh, space, request.force, report_costs, choices=choices)
    searching = ProblemSearch(objectives, request.algorithm, report_search, request.budget or BY_DEFAULT)

    def make_frontier(problem: StrategyProblem, points: Frontier, note: str = "") -> ModelFrontier:
        return ModelFrontier(model, hardware, problem, costing, points, phases.seconds, note=note, objectives=objectives)

    with phases.taking("costs"):
        base_problem = problem_of(builder, model, builder.build())
    with phases.taking("search"):
        points = _searched(searching, base_problem, request.algorithm, not is_remat)
    if not is_remat:
        return _keep_least_peaks(make_frontier(base_problem, points), progress)
    if is_enough is not None and is_enough(make_frontier(base_problem, points, NO_REMAT)):
        return _keep_least_peaks(make_frontier(base_problem, points, NO_REMAT), progress)
    with phases.taking("costs"):
        rematerializing = rematerializing_problem(builder, model)
    if rematerializing is None or rematerializing.transient is None:
        return _keep_least_peaks(make_frontier(base_problem, points, NOTHING_OFFERED), progress)
    with phases.taking("search"):
        points = replace(points, strategies=adopted(rematerializing, base_problem, points.strategies))
        del base_problem, builder  # with them go hundreds of megabytes of a large model's costs
        try:
            points = searching.with_rematerialization(points, phases.seconds["search"], rematerializing)
        except KeyboardInterrupt as error:
            raise SearchInterrupted(make_frontier(rematerializing, points, INTERRUPTED).of_least_peaks(None)) from error
    return _keep_least_peaks(make_frontier(rematerializing, points), progress)


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


def _search_other(model: Model, request: Request, task: BaselineTask) -> ModelFrontier:
    """Return what one of ``baselines.OTHERS`` finds."""
    algorithm, limit_bytes, budget = request.algorithm, request.limit_bytes, request.budget
    if algorithm in BY_SIMULATION:
        limits = SearchLimits(memory_bytes=limit_bytes) if budget is None else SearchLimits(budget.seconds, limit_bytes)
        return _search_simulated(model, request.hardware, task, limits, algorithm)
    return _search_baseline(model, request.hardware, task, algorithm).of_least_peaks(task.progress)


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


def _keep_least_peaks(frontier: ModelFrontier, progress: Progress | None) -> ModelFrontier:
    """Return the points of least peaks and times, with the seconds that counting took as phase ``peaks``."""
    start_s = time.perf_counter()
    frontier = frontier.of_least_peaks(progress)
    return replace(frontier, seconds_by_phase={**frontier.seconds_by_phase, "peaks": time.perf_counter() - start_s})


def find_baseline(frontier: ModelFrontier, algorithm: str, progress: Progress | None = None) -> ModelFrontier:
    """Return the points that a baseline chooses for a frontier's model, on its hardware and under the same costs.

    Args:
        algorithm: one of ``baselines.OTHERS``.
        progress: called with (phase, done, total) now and then; the phases are ``costs`` and ``search``.
    """
    if algorithm in BY_SIMULATION:
        task = BaselineTask(frontier.costing, frontier.mesh, frontier.built.space, None, progress)
        return _search_simulated(frontier.model, frontier.hardware, task, SearchLimits(), algorithm)
    # Baselines neither regather nor rematerialize, so a problem with these choices is not theirs.
    problem = None if frontier.built.choices or frontier.built.transient is not None else frontier.built
    task = BaselineTask(frontier.costing, frontier.mesh, frontier.built.space, problem, progress)
    return _search_baseline(frontier.model, frontier.hardware, task, algorithm)


def find_unsplit(frontier: ModelFrontier) -> ModelFrontier:
    """Return the point of a frontier's model at which nothing is split: every device does the work of one device alone."""
    task = BaselineTask(frontier.costing, frontier.mesh, frontier.built.space)
    configs = {op.name: Config.unsplit(frontier.mesh) for op in task.operators}
    return _run_search(frontier.model, frontier.hardware, task, lambda: of_one_strategy(task, configs, "unsplit"))


def rematerializing_problem(builder: ProblemBuilder, model: Model) -> StrategyProblem | None:
    """Return the problem of a model with rematerialization; None where that can't save any memory."""
    problem = builder.build_rematerializing()
    return None if problem is None else problem_of(builder, model, problem)


def problem_of(builder: ProblemBuilder, model: Model, problem: StrategyProblem) -> StrategyProblem:
    """Return a built problem with the configs alone that operators can have both in a micro-batch and at the full batch."""
    n = model.graph.n_micro_batches
    if n == 1:
        return problem
    operators = model.graph.full_batch.step_operators
    rules = {op.name: rule_in_micro_batches(op, n, builder.mesh.n_devices) for op in operators}
    return problem.allowing(lambda op, config: not why_invalid(rules[op.name], config))


def _search_baseline(model: Model, hardware: Hardware, task: BaselineTask, algorithm: str) -> ModelFrontier:
    """Return the points that a baseline finds for a task, at the times at which they run."""
    return _run_search(model, hardware, task, lambda: search_baseline(task, algorithm))


def _run_search(model: Model, hardware: Hardware, task: BaselineTask, search: Callable[[], BaselineResult]) -> ModelFrontier:
    start_s = time.perf_counter()
    answer = search()
    phases = {"search": time.perf_counter() - start_s}
    problem, points = answer.built, answer.found
    if problem.overlap is not None:
        # Baselines choose by the times of Equation (3); the result shows the times with overlap, as the step runs.
        bound = points.bound and points.bound.lowered(problem.overlap.most_ns)
        points = at_true_times(problem.problem, problem.overlap, points, bound)
    return ModelFrontier(model, hardware, problem, task.costing, points, phases, note=answer.note)


def _search_simulated(
    model: Model, hardware: Hardware, task: BaselineTask, limits: SearchLimits, algorithm: str
) -> ModelFrontier:
    """Return the fastest strategy that a search by simulated times met and whose peak is within the limit, as one point.

    Where none is, the one that needs the least memory.
    """
    start_s = time.perf_counter()
    task = replace(task, built=task.full_problem())
    progress = None if task.progress is None else partial(task.progress, "search")
    points = None
    if algorithm == FT_SIMULATED:
        points = ProblemSearch(MEMORY_TIME, ALGORITHMS[0], progress, Budget()).plain(task.full_problem())
    answer = monte_carlo.search(task, network_of(hardware, task.mesh), limits, progress, points)
    phases = {"search": time.perf_counter() - start_s}
    frontiers = (
        ModelFrontier(
            model,
            hardware,
            answer.built,
            task.costing,
            answer.frontier(states),
            phases,
            note=answer.note,
            is_interrupted=answer.is_interrupted,
        )
        for _, states in answer.candidates
    )
    misfits = []
    for frontier in frontiers:
        if limits.memory_bytes is None or frontier.peak(0).n_bytes <= limits.memory_bytes:
            return frontier
        misfits.append(frontier)
    return min(misfits, key=lambda misfit: misfit.peak(0).n_bytes)
