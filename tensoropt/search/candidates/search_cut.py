"""Search a model that is cut one way: each stage as a model of its own, in micro-batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from ...ft import BY_DEFAULT
from ...program.schedule import StepOrder, tried_orders
from ..asked import Request
from ..frontiers.model_frontier import ModelFrontier
from ..stages.cuts import Cut
from ..stages.memory import StageCosts, needed_bytes
from ..stages.placement import of_stage
from ..stages.points import SearchedStages
from ..stages.times import messages, transfers, works
from .alike_stages import AlikeStages, IsEnough
from .candidate import Candidate, Cutting, least_bytes


def search_cut(
    request: Request, candidate: Candidate, cutting: Cutting, alike: AlikeStages, must_fit: bool, bound_us: float
) -> SearchedStages | None:
    """Return a candidate that is cut, with the frontier of each stage.

    Together the stages of all candidates that share a budget are refined as long as a model without.

    Args:
        must_fit: whether to return None as soon as a stage doesn't fit the memory limit.
        bound_us: a time that no step in so many stages beats, wherever the model is cut.
    """
    cut, n, limit = candidate.cut, candidate.micro_batches, request.limit_bytes
    assert cut is not None
    stages, order = cut.stages, _orders(candidate, cut)[0]
    search_ahead(request, candidate, alike)
    frontiers = dict[int, ModelFrontier]()
    for stage, stage_request, is_enough in _stage_searches(request, candidate):
        frontier = alike.searched(stage_request, cut.sizes[stage], is_enough, candidate)
        if must_fit and limit is not None and StageCosts.of(frontier).bytes_of(stage, order).min() > limit:
            return None
        frontiers[stage] = frontier
    times, hardware = cutting.times(n).of(cut.sizes), request.hardware
    return SearchedStages(
        stages, cut.blocks, tuple(frontiers[stage] for stage in range(stages.n)), n, candidate.schedule,
        tuple(works(stages, times)), tuple(messages(stages, hardware, cut.blocks, n)),
        transfers(stages, hardware, cut.blocks, n), bound_us,
    )  # fmt: skip


def search_ahead(request: Request, candidate: Candidate, alike: AlikeStages) -> None:
    """Have workers, if there are any, search the stages of a candidate that is cut."""
    assert candidate.cut is not None
    sizes, orders = candidate.cut.sizes, _orders(candidate, candidate.cut)
    for stage, stage_request, is_enough in _stage_searches(request, candidate) if alike.calls is not None else ():
        alike.search_ahead(candidate, stage_request, sizes[stage], is_enough, orders)


def _orders(candidate: Candidate, cut: Cut) -> list[StepOrder]:
    return tried_orders(candidate.schedule, cut.stages.n, candidate.micro_batches, len(set(cut.blocks)))


def _stage_searches(request: Request, candidate: Candidate) -> Iterator[tuple[int, Request, IsEnough]]:
    """Yield each stage of a candidate with what is asked of it, that which needs the most memory first."""
    cut, n = candidate.cut, candidate.micro_batches
    assert cut is not None
    budget, share = request.budget or BY_DEFAULT, candidate.n_alike
    budget = replace(budget, seconds=budget.seconds / share, max_work=budget.max_work / share)
    base_request = replace(request, micro_batches=n, budget=budget, placed={})
    stages, orders = cut.stages, _orders(candidate, cut)
    n_bytes = [0.0] * stages.n if cut.needs is None else least_bytes(stages, cut.needs, cut.sizes, n)
    for stage in sorted(range(stages.n), key=lambda stage: -n_bytes[stage]):
        model = stages.models[stage]
        stage_request = replace(base_request, model=model, force=of_stage(request.model.graph, model.graph, request.force))
        yield stage, stage_request, partial(_fastest_fits, request.limit_bytes, orders, stage)


def _fastest_fits(limit_bytes: int | None, orders: Sequence[StepOrder], stage: int, frontier: ModelFrontier) -> bool:
    """Return whether the fastest point of a stage is within a memory limit, in all of some orders of a step's passes."""
    if limit_bytes is None:
        return True
    if any(order.interleaving for order in orders):  # others share the devices
        return False
    fastest = frontier.fastest_within(None)
    return all(needed_bytes(frontier, fastest, stage, order) <= limit_bytes for order in orders)
