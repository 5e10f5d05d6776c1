"""What a search does without stages, and in stages with time left out, apart from what else it does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tensoropt.costs.held_bytes import least_held_bytes, least_summed_bytes
from tensoropt.plan.frontier import Frontier
from tensoropt.profiling.hardware import Hardware
from tensoropt.program.orders.schedule import ONE_FORWARD_ONE_BACKWARD
from tensoropt.search.candidates.by_bound import Fit, by_bound
from tensoropt.search.candidates.candidate import Candidate, possible_micro_batches
from tensoropt.search.candidates.plan_points import PlanPoint
from tensoropt.search.candidates.plan_points import frontier_of_whole as plans_of  # noqa: F401
from tensoropt.search.candidates.search_candidates import CandidateSearch
from tensoropt.search.frontiers.find_frontier import find_frontier as find
from tensoropt.search.frontiers.model_frontier import ModelFrontier
from tensoropt.search.options import find_answer
from tensoropt.search.request import Request
from tensoropt.sharding.model import Model

Plans = Frontier[PlanPoint]


def fastest_that_fits(request: Request, parallelism: int) -> tuple[tuple[ModelFrontier, int] | None, list[ModelFrontier]]:
    """Return the fastest point without stages within the memory limit, and all frontiers that were searched."""
    search = CandidateSearch(request, parallelism)
    search.search_whole()
    return search.alone, search.whole


def find_frontier(model: Model, hardware: Hardware, parallelism: int, **asked: Any) -> ModelFrontier:
    """Return what a search without stages finds, of a request with these attributes."""
    return find(Request(model, hardware, asked.pop("limit_bytes", None), **asked), parallelism)


def find_with_stages(
    request: Request, parallelism: int, stages: Sequence[int] | None, schedule: str | None = None
) -> Frontier[PlanPoint]:
    """Return the frontier of the plan that is found in these numbers of stages."""
    asked = replace(request, stages=stages and tuple(stages), schedule=schedule)
    frontier: Frontier[PlanPoint] = find_answer("mini_time", asked, parallelism).frontier
    return frontier


def least_in_stages(request: Request, parallelism: int, count: int, n: int | None = None) -> Frontier:
    """Return the points of least memory in a number of stages and, if given, of micro-batches, without refinement."""
    search = CandidateSearch(replace(request, limit_bytes=1), parallelism)
    n = n or possible_micro_batches(request, count)[-1]
    by_bound([Candidate(count, n, ONE_FORWARD_ONE_BACKWARD, n_alike=count)], Fit(search))
    assert search.least is not None
    return search.least


def least_bytes_in_micro_batches(model: Model, n_devices: int) -> int:
    """Return the bytes per device that no plan in several micro-batches can do with less than."""
    return least_held_bytes(model.graph, n_devices) + least_summed_bytes(model.in_micro_batches(2), n_devices)
