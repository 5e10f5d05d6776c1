"""Look at a large model before its search: does some plan fit the memory limit, or does certainly none?

A search near the least memory takes minutes, but whether anything fits is mostly plain before. Two looks take seconds:

1. *A bound.* When the last backward pass begins, a device holds at least its share of the variables, their slots and the
   batch, in micro-batches also of the sums of gradients, and of the results that the backward pass reads and that can't be
   rematerialized (:mod:`..costs.held_bytes`).
2. *Strategies.* The least of a weighted sum of memory and time takes a tenth of a second, where a frontier takes a minute.
   A few such strategies are evaluated exactly, without micro-batches and in the most. On many devices those are looked at
   first that split one factor over all axes of a level, of which there are few.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

import numpy as np

from ..common.errors import InputError
from ..common.memory_units import memory_text
from ..common.words import counted
from ..costs.held_bytes import least_held_bytes, least_kept_bytes, least_summed_bytes
from ..costs.objectives import MEMORY_TIME
from ..costs.operator_costs import costing_of
from ..ft import Frontier, InfeasibleError, LowerBound
from ..ft.pareto import reduce_unsorted
from ..ft.weighted.weighted_search import WeightedSearch
from ..report.sentences import time_text
from ..reschedule.mesh import Mesh
from ..rules.registry import rule_of
from .algorithms import OTHERS
from .frontiers.find_frontier import LOOK
from .frontiers.model_frontier import ModelFrontier
from .problem.builder import ProblemBuilder
from .problem.choices import REMAT, REUSE, ZERO, Choices
from .problem.config_space import Assignments, space_for, states_of
from .problem.fusion_groups import FusionGroup
from .problem.strategy_problem import StrategyProblem
from .request import Request

LARGE = 500
"""The number of operators from which a model is looked at: the search of a smaller one takes seconds itself."""
MANY_AXES = 4
LITTLE = 1e-6
"""The weight of the second cost where the first one counts, as a share of the most that each can be."""
N_BETWEEN = 2
"""How many strategies are looked at between the one of least memory and the fastest."""


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes per device that no plan can do with less than, in one number of micro-batches.

    Attributes:
        states: of variables, their slots and the batch, and in micro-batches of the sums of gradients.
        kept: of results that the backward pass reads.
    """

    micro_batches: int
    states: int
    kept: int

    @property
    def n_bytes(self) -> int:
        return self.states + self.kept

    def __str__(self) -> str:
        sums = ", the batch and sums of gradients" if self.micro_batches > 1 else " and the batch"
        slices = f"in {self.micro_batches} micro-batches" if self.micro_batches > 1 else "without micro-batches"
        residuals = f", and what the backward pass reads {memory_text(self.kept)} more" if self.kept else ""
        return f"parameters, slots{sums} alone take {memory_text(self.states)} {slices}{residuals}"


@dataclass(frozen=True, slots=True)
class FirstLook:
    """The plans and bounds that are known before a search.

    Attributes:
        best: the fastest of these within the limit, as one of the frontiers and a point; None if none fits.
        held: what no plan can do with less than, in the numbers of micro-batches that need the least.
    """

    tried: tuple[ModelFrontier, ...]
    best: tuple[ModelFrontier, int] | None
    held: tuple[Held, ...]

    def cannot_fit(self, limit_bytes: int) -> bool:
        """Return whether no plan fits a limit."""
        return self.best is None and all(need.n_bytes > limit_bytes for need in self.held)

    def text(self, limit_bytes: int) -> str:
        """Return what is known in a sentence."""
        n_devices = self.tried[0].mesh.n_devices
        place = f"on {counted(n_devices, 'device')} within {memory_text(limit_bytes)}"
        if self.best is not None:
            frontier, point = self.best
            n, time_us = frontier.model.graph.n_micro_batches, int(frontier.costs.time_ns[point]) / 1e3
            slices = f" in {n} micro-batches" if n > 1 else ""
            return (
                f"yes, {place}: at least a plan of {memory_text(frontier.peak_bytes(point))} and {time_text(time_us)} per "
                f"step{slices}; faster ones are searched"
            )
        if self.cannot_fit(limit_bytes):
            return f"no, not {place} without stages: {'; '.join(map(str, self.held))}"
        n_bytes = min(frontier.peak_bytes(frontier.least_point()) for frontier in self.tried)
        return f"not known yet {place}: the least that was looked at is {memory_text(n_bytes)}; it is searched"


def first_look(request: Request, parallelism: int) -> FirstLook | None:
    """Return what is known before the search of a large model within a memory limit; None where no look pays."""
    limit = request.limit_bytes
    is_open = request.algorithm not in OTHERS and request.objectives == MEMORY_TIME and not request.placed
    if limit is None or not is_open or len(request.model.graph.step_operators) < LARGE:
        return None
    frontiers: list[ModelFrontier] = []
    needs: tuple[Held, ...] = ()
    mesh = request.hardware.mesh(parallelism)
    is_coarse_first, counts = len(mesh.axes) > MANY_AXES and not request.force, request.micro_batches_to_look_at(parallelism)
    for is_coarse, n in product((True, False) if is_coarse_first else (False,), counts):
        try:
            frontiers.append(_evaluated(request, mesh, n, is_coarse))
        except (InputError, InfeasibleError):
            continue  # the search says why
        point = frontiers[-1].fastest_within(limit)
        if point is not None:
            return FirstLook(tuple(frontiers), (frontiers[-1], point), ())
        needs = held_anyway(request, frontiers)
        if all(need.n_bytes > limit for need in needs):
            break
    return FirstLook(tuple(frontiers), None, needs) if frontiers else None


def _evaluated(request: Request, mesh: Mesh, n: int, is_coarse: bool) -> ModelFrontier:
    """Return strategies in a number of micro-batches, from the fastest to about the least memory."""
    start_s = time.perf_counter()
    model = request.model.in_micro_batches(n, mesh.n_devices)
    costing = costing_of(model, request.hardware, mesh, request.known)
    space = request.space or space_for(model.graph, mesh)
    rules, n_levels = {op.name: rule_of(op) for op in model.graph.step_operators}, len({*mesh.level_of_axis})

    def coarse(node: FusionGroup) -> Assignments:
        return tuple(
            state
            for state in states_of(space, node, rules, mesh)
            if all(len({*zip(mesh.level_of_axis, config.assignment, strict=True)}) == n_levels for config in state)
        )

    progress = None if request.progress is None else partial(request.progress, "first look")
    choices = Choices(REUSE not in request.without, ZERO not in request.without)
    states = coarse if is_coarse else None
    builder = ProblemBuilder(costing, mesh, space, request.force, progress, states=states, choices=choices)
    problem = builder.build_rematerializing() if REMAT not in request.without else None
    problem = problem or builder.build()
    frontier = _corners(problem)
    return ModelFrontier(model, request.hardware, problem, costing, frontier, {"look": time.perf_counter() - start_s})


def _corners(problem: StrategyProblem) -> Frontier:
    """Return the fastest strategy and some towards the least memory, each the least of a weighted sum."""
    search = WeightedSearch(problem.problem)
    most_mem, most_time = (float(max(bound, 1)) for bound in search.most)
    leanest, fastest = search.least((1.0, LITTLE * most_mem / most_time)), search.least((LITTLE * most_time / most_mem, 1.0))
    least_mem = leanest.bound / leanest.weights[0] - LITTLE * most_mem
    least_time = fastest.bound / fastest.weights[1] - LITTLE * most_time
    corner = [np.array([max(1, int(cost))]) for cost in (least_mem, least_time)]
    bound = LowerBound(corner[0], corner[1], "the ends of the frontier")
    results = [fastest]
    for _ in range(N_BETWEEN):
        last = results[-1]
        weights = float(max(1, leanest.time_ns - last.time_ns)), float(max(1, last.mem_bytes - leanest.mem_bytes))
        results.append(search.least(weights))
    results = [result for result in results if result.strategy is not None]
    if not results:
        raise InfeasibleError("no strategy is possible")
    strategies = np.array([result.strategy for result in results], np.int32)
    mem = np.array([result.mem_bytes for result in results], np.int64) + problem.missing_bytes(strategies)
    time_ns = np.array([result.time_ns for result in results], np.int64) - problem.overlap_ns(strategies)
    if problem.overlap is not None:
        bound = bound.lowered(problem.overlap.most_ns)
    minimal = reduce_unsorted(mem, time_ns)
    return Frontier(mem[minimal], time_ns[minimal], strategies[minimal], {}, LOOK, bound)


def held_anyway(request: Request, frontiers: Sequence[ModelFrontier]) -> tuple[Held, ...]:
    """Return what no plan without stages can do with less than, in the fewest and the most micro-batches to look at.

    Args:
        frontiers: strategies on as many devices, which tell what may be rematerialized; where none are in a number of
            micro-batches, anything may be.
    """
    model, n_devices, needs = request.model, frontiers[0].mesh.n_devices, []
    counts = request.micro_batches_to_look_at(n_devices)
    for n in dict.fromkeys([counts[0], counts[-1]]):
        states = least_held_bytes(model.graph, n_devices)
        states += least_summed_bytes(model.in_micro_batches(n), n_devices) if n > 1 else 0
        frontier = next((candidate for candidate in frontiers if candidate.model.graph.n_micro_batches == n), None)
        if frontier is None:
            needs.append(Held(n, states, 0))
            continue
        remade = {node.operators[k].name for node, node_states in frontier.built.nodes for k in node_states.rematerialized}
        needs.append(Held(n, states, least_kept_bytes(frontier.costing, n_devices, remade)))
    return tuple(needs)
