"""Find what other algorithms choose, which are loaded where one is asked for, and the strategy that splits nothing."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ...common.errors import InputError
from ...common.process.progress import Progress
from ...costs.objectives import MEMORY_TIME
from ...ft import ALGORITHMS, at_true_times
from ...profiling.hardware import Hardware
from ...rules.rule import Config
from ...sharding.model import Model
from ..algorithms import BY_SIMULATION, MONTE_CARLO_SECONDS
from ..request import Request
from ..task import BaselineResult, BaselineTask, of_one_strategy
from .model_frontier import ModelFrontier


def find_other(request: Request, model: Model, task: BaselineTask) -> ModelFrontier:
    """Return what the algorithm of a request, one of ``OTHERS``, finds for a task.

    Raises:
        InputError: the algorithm can't follow the request's other arguments.
    """
    _check_arguments(request)
    if request.algorithm in BY_SIMULATION:
        seconds = MONTE_CARLO_SECONDS if request.budget is None else request.budget.seconds
        limits = seconds, request.limit_bytes
        return _find_by_simulation(model, request.hardware, task, request.algorithm, limits)
    return _find_baseline(model, request.hardware, task, request.algorithm).of_least_peaks(task.progress)


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
        algorithm: one of ``OTHERS``.
        progress: called with (phase, done, total) now and then; the phases are ``costs`` and ``search``.
    """
    task = BaselineTask(frontier.costing, frontier.mesh, frontier.built.space, None, progress)
    if algorithm in BY_SIMULATION:
        return _find_by_simulation(frontier.model, frontier.hardware, task, algorithm, (MONTE_CARLO_SECONDS, None))
    # Baselines neither regather nor rematerialize, so a problem with these choices is not theirs.
    problem = None if frontier.built.choices or frontier.built.transient is not None else frontier.built
    return _find_baseline(frontier.model, frontier.hardware, replace(task, built=problem), algorithm)


def data_parallel_configs(frontier: ModelFrontier) -> dict[str, Config]:
    """Return data parallelism's config for each operator of a frontier's model, by name, in the space or not."""
    task = BaselineTask(frontier.costing, frontier.mesh, frontier.built.space)
    configs: dict[str, Config] = _loaded("baselines.data_parallel").configs(task)
    return configs


def find_unsplit(frontier: ModelFrontier) -> ModelFrontier:
    """Return the point of a frontier's model at which nothing is split: every device does the work of one device alone."""
    task = BaselineTask(frontier.costing, frontier.mesh, frontier.built.space)
    configs = {op.name: Config.unsplit(frontier.mesh) for op in task.operators}
    return _timed(frontier.model, frontier.hardware, task, lambda: of_one_strategy(task, configs, "unsplit"))


def _find_baseline(model: Model, hardware: Hardware, task: BaselineTask, algorithm: str) -> ModelFrontier:
    """Return the points that a baseline finds for a task, at the times at which they run."""
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
