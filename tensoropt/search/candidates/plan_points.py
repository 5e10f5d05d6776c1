"""The points of plans with stages and without, as frontiers with what their files and reports have."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from operator import add
from types import MappingProxyType
from typing import Any

import numpy as np

from ...common.process.garbage import older_objects_kept
from ...common.process.progress import Progress
from ...common.words import counted
from ...costs.held_bytes import least_held_bytes
from ...ft import InfeasibleError
from ...ft.lower_bound import LowerBound
from ...ft.pareto import reduce_unsorted
from ...plan.frontier import Frontier
from ...plan.plan import Plan
from ...plan.points import FrontierPoint, Passes, thinned
from ...program.orders.schedule import StepOrder, of_submeshes
from ...reschedule.mesh import Mesh
from ..frontiers.compress import shared_parts
from ..frontiers.decisions import of_operators, view_of
from ..frontiers.find_frontier import baselines_at_once, find_baseline
from ..frontiers.model_frontier import ModelFrontier
from ..request import Request
from ..stages.points import SearchedStages, SearchedWhole


@dataclass(frozen=True, eq=False)
class PlanPoint:
    """A point of a frontier of plans: a point of each stage's frontier.

    Attributes:
        searched: the cut of which it is, with the stages' frontiers.
        numbers: for each stage, the number of its point in its frontier.
        stage_bytes: the peak of each stage's devices, to which memory limits apply.
        gap: how far the point may be from the best in its stages, micro-batches and order, see :meth:`.SearchedStages.gaps`.
        bound_us: the time that no step of these beats in no more memory of any stage; None of a single search, whose
            frontier has what is proven.
    """

    searched: SearchedStages
    order: StepOrder
    numbers: tuple[int, ...]
    stage_bytes: tuple[int, ...]
    time_us: float
    gap: float
    bound_us: float | None = None

    @property
    def n_stages(self) -> int:
        return self.searched.stages.n

    @property
    def frontiers(self) -> tuple[ModelFrontier, ...]:
        return self.searched.frontiers

    @property
    def micro_batches(self) -> int:
        return self.searched.micro_batches

    @property
    def peak_bytes(self) -> int:
        """The peak of the device that needs the most."""
        return max(self.stage_bytes)

    @cached_property
    def passes(self) -> Passes:
        return Passes(self.n_stages, self.micro_batches, self.idle_share)

    @property
    def parts(self) -> tuple[tuple[ModelFrontier, int], ...]:
        """For each stage its frontier, and the number of its point there."""
        return tuple(zip(self.frontiers, self.numbers, strict=True))

    @property
    def peak(self) -> Mapping[str, Any] | None:
        """The instant of the peak as a JSON value; None of several stages, whose instants differ."""
        return next((frontier.peak(self.numbers[0]).to_json() for frontier in self.searched.without_stages), None)

    @property
    def idle_shares(self) -> list[float]:
        """The share of the step in which each stage's devices wait for others."""
        submeshes = self.order.submeshes
        busy_us = of_submeshes(self.searched.busy_us(self.numbers), submeshes, add)
        return [1 - busy_us[submesh] / self.time_us if self.time_us else 0.0 for submesh in submeshes]

    @property
    def idle_share(self) -> float:
        """The share of all devices' time in which they wait for other stages."""
        return sum(self.idle_shares) / self.n_stages

    @cached_property
    def costs(self) -> FrontierPoint:
        """The costs of a step: each but its time is that of the devices of which it is largest."""
        compute, network, overlap = (self._most(name) / 1e3 for name in ("compute_ns", "network_ns", "overlap_ns"))
        exact = any(frontier.points[self.numbers[0]].exact for frontier in self.searched.without_stages)
        return FrontierPoint(self._most("mem_bytes"), self.time_us, compute, network, overlap, exact)

    def _most(self, name: str) -> int:
        """Return the largest amount of a submesh's stages together."""
        amounts = [int(getattr(frontier.costs, name)[number]) for frontier, number in self.parts]
        return int(max(of_submeshes(amounts, self.order.submeshes, add)))

    def plan(self, option: str, assumed: Mapping[str, Any], has_rows: bool = True) -> Plan:
        """Return the plan of the point, with its rows or not; see :class:`...plan.points.Point`."""
        stages, stage_plans = self.searched.stages, []
        model_operators = stages.whole.graph.operators
        mesh = self.searched.frontiers[0].hardware.mesh(sum(block.size for block in set(self.searched.blocks)))
        for frontier, block, last_operator, number, in_flight, deferred, n_bytes, idle_share in zip(
            self.searched.frontiers, self.searched.blocks, (*stages.cuts, ""), self.numbers, self.order.in_flight,
            self.order.deferred, self.stage_bytes, self.idle_shares, strict=True,
        ):  # fmt: skip
            stage = frontier.stage(number, has_rows)
            operators = (replace(op, is_stand_in=op.name not in model_operators) for op in stage.operators)
            stage_plans.append(replace(
                stage, devices=block.devices, operators=tuple(operators), last_operator=last_operator, in_flight=in_flight,
                deferred=deferred, peak_bytes=n_bytes, idle_share=idle_share,
            ))
        return Plan(
            stages=tuple(stage_plans),
            mesh=mesh,
            exact=any(frontier.found.exact for frontier in self.searched.without_stages),
            schedule=self.order.schedule,
            interleaving=self.order.interleaving,
            micro_batches=self.micro_batches,
            time_us=self.time_us,
            model_digest=stages.whole.graph.digest,
            option=option,
            assumed=dict(assumed),
            timeline=self.searched.timeline(self.numbers, self.order),
        )


def plans_of(
    frontier: Frontier[PlanPoint], progress: Progress | None = None
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the plan of each point without its rows, and these by search, as a frontier's file has both.

    Args:
        progress: called with (phase, done, total) now and then; the phase is ``plans``.
    """
    plans, used = [], dict[ModelFrontier, set[int]]()
    for searched, number in (part for point in frontier.points_of for part in point.parts):
        used.setdefault(searched, set()).add(number)
    own = {searched: sorted(numbers) for searched, numbers in used.items()}
    for point in frontier.points_of:
        plan = point.plan("point", frontier.assumed, has_rows=False).to_json()
        for stage, (searched, number) in zip(plan["stages"], point.parts, strict=True):
            stage.update(search=list(own).index(searched), number=own[searched].index(number))
        plans.append(plan)
    searches = [shared_parts(searched.take(numbers), progress) for searched, numbers in own.items()]
    whole = frontier.points_of[0].searched.stages.whole.graph
    for part in (part for search in searches for part in search["operators"] if part["name"] not in whole.operators):
        part["choices"] = [{**row, "is_stand_in": True} for row in part["choices"]]
    return plans, searches


@older_objects_kept()
def minimal_points(cuts: Sequence[SearchedStages]) -> list[PlanPoint]:
    """Return the points that no other one beats in peak and time, by ascending peak; of equal ones the first."""
    pairs = [(cut, combined) for cut in cuts for combined in cut.combinations]
    mem_bytes = np.concatenate([combined.mem_bytes for _, combined in pairs])
    time_us = np.concatenate([combined.time_us for _, combined in pairs])
    numbers = np.concatenate([np.full(len(combined.time_us), i) for i, (_, combined) in enumerate(pairs)])
    minimal = reduce_unsorted(mem_bytes, np.rint(time_us * 1e3).astype(np.int64))
    starts = np.searchsorted(numbers, np.arange(len(pairs)))
    points: dict[int, PlanPoint] = {}
    for number in np.unique(numbers[minimal]):
        cut, combined = pairs[number]
        indices = minimal[numbers[minimal] == number]
        selected = combined.take(indices - starts[number])
        bounds_us = np.minimum(selected.time_us, cut.bounds_us(selected.points, combined.order))
        gaps = cut.gaps(selected.points, combined.order, selected.time_us)
        costs = selected.points.T, selected.stage_bytes.T, selected.time_us, bounds_us, gaps
        for index, (stage_points, stage_bytes, us, bound_us, gap) in zip(indices, zip(*costs, strict=True), strict=True):
            values = tuple(stage_points.tolist()), tuple(stage_bytes.tolist())
            points[index] = PlanPoint(cut, combined.order, *values, float(us), float(gap), float(bound_us))
    return [points[index] for index in minimal]


def frontier_of(
    request: Request,
    parallelism: int,
    cuts: Sequence[SearchedStages],
    left_out: Sequence[str] = (),
    bounds_us: Sequence[float] = (),
) -> Frontier[PlanPoint]:
    """Return the minimal points of all that was searched, as one frontier.

    Args:
        cuts: the cuts, the model that isn't cut among them.
        left_out: why some of what was asked for wasn't searched.
        bounds_us: times that no step beats of what was looked at, whether it was searched or not.
    """
    start_s = time.perf_counter()
    points = minimal_points(cuts)
    mesh, least_ns = request.hardware.mesh(parallelism), int(min([*bounds_us, *(cut.bound_us for cut in cuts)]) * 1e3)
    return Frontier(
        points_of=tuple(points),
        mesh=mesh,
        hardware_name=request.hardware.name,
        headline=_summary(points, mesh, cuts, least_ns / 1e3),
        # With stages it is the time of all operators as fast as they can be, on all devices; without, the search's bound.
        bound=LowerBound(np.array([0]), np.array([least_ns]), "the operators' least times"),  # none of memory is known
        assumed=request.assumed,
        seconds_by_phase={"peaks": time.perf_counter() - start_s},
        left_out=tuple(left_out),
        searched=tuple(cuts),
        plans_of=plans_of,
        details_of=details_of,
    )


def _summary(points: Sequence[PlanPoint], mesh: Mesh, cuts: Sequence[SearchedStages], bound_us: float) -> str:
    """Return in words which points there are, what was searched, and what is proven."""
    counts, gaps = [point.n_stages for point in points], [point.gap for point in points]
    count_texts = [f"{counts.count(n)} {'without stages' if n == 1 else f'in {n} stages'}" for n in sorted(set(counts))]
    slices_by_count: dict[int, list[int]] = {}
    for cut in cuts:
        slices_by_count.setdefault(cut.stages.n, []).append(cut.micro_batches)
    descriptions = [
        "no stages" if n == 1 else f"{n} stages in {' or '.join([*map(str, fewer), counted(most, 'micro-batch')])}"
        for n, (*fewer, most) in ((n, sorted(set(slices))) for n, slices in slices_by_count.items())
    ]
    return (
        f"{counted(len(points), 'point')} on {counted(mesh.n_devices, 'device')} {mesh}: {', '.join(count_texts)}; "
        f"searched {', '.join(descriptions)}; "
        f"gap at most {max(gaps):.2%} (median {np.median(gaps):.2%}) in what was searched for each point; "
        f"with stages or without no plan takes less than {bound_us:,.1f} us"
    )


MOST_STEPS = 20
"""The most steps that are stored; each stage of a point's plan has one."""
STORED_BASELINES = ("data-parallel", "optcnn", "tofu", "mesh-tensorflow")
COMPARED = "data-parallel"
"""The baseline whose plan is stored too, for what differs from it."""


def frontier_of_whole(frontier: ModelFrontier, assumed: Mapping[str, Any] = MappingProxyType({})) -> Frontier[PlanPoint]:
    """Return all points that a search found for a model that isn't cut, with what is proven of them by that search."""
    result = SearchedWhole.of(frontier)
    (combined,) = result.combinations
    gaps = result.gaps(combined.points, combined.order, frontier.found.time_ns / 1e3)
    costs = zip(combined.stage_bytes[0].tolist(), combined.time_us.tolist(), gaps.tolist(), strict=True)
    return Frontier(
        points_of=tuple(
            PlanPoint(result, combined.order, (number,), (peak,), time_us, gap)
            for number, (peak, time_us, gap) in enumerate(costs)
        ),
        mesh=frontier.mesh,
        hardware_name=frontier.hardware.name,
        headline=frontier.headline,
        bound=frontier.found.bound,
        objectives=frontier.objectives,
        algorithm=frontier.found.algorithm,
        eliminations=frontier.found.eliminations,
        assumed=assumed,
        seconds_by_phase=frontier.seconds_by_phase,
        note=frontier.note,
        searched=(result,),
        is_interrupted=frontier.is_interrupted,
        plans_of=plans_of,
        details_of=details_of,
    )


def plan_beside(frontier: Frontier[Any], part: tuple[ModelFrontier, int], option: str) -> Plan:
    """Return the plan of a point of a model that isn't cut, which is taken though it is no point of a frontier."""
    whole, number = part
    plan = frontier_of_whole(whole, frontier.assumed).plan(number, option)
    return replace(plan, frontier=frontier, point=None)


def details_of(
    frontier: Frontier[PlanPoint],
    model: str = "",
    chosen: int | None = None,
    baselines: tuple[str, ...] = STORED_BASELINES,
    progress: Progress | None = None,
    known: Mapping[str, ModelFrontier] | None = None,
) -> dict[str, Any]:
    """Return the details of a frontier as a JSON value; its baselines take a step at once, on all devices.

    Args:
        chosen: the number of the point that was chosen.
        progress: called with (phase, done, total) now and then; the phases are ``steps`` and ``baselines``.
        known: baselines that were found already, by name.
    """
    whole = frontier.searched[0].stages.whole
    part, graph = next(iter(frontier.without_stages), frontier.searched[0].frontiers[0]), whole.graph.full_batch
    at_once = part.model.graph is whole.graph
    find = partial(find_baseline, part) if at_once else baselines_at_once(part, replace(whole, graph=graph), frontier.mesh)
    required = {frontier.turning_number, *(() if chosen is None else (chosen,))}
    most = max(MOST_STEPS // max(point.n_stages for point in frontier.points_of), len(required) + 2)
    points = thinned(len(frontier), required, most, most - len(required))
    views = {}
    for i, point in enumerate(points):
        if progress is not None:
            progress("steps", i, len(points))
        views[str(point)] = [view_of(*of_stage) for of_stage in frontier.parts(point)]
    entries = []
    for i, name in enumerate(baselines):
        if progress is not None:
            progress("baselines", i, len(baselines))
        with contextlib.suppress(InfeasibleError):  # a baseline may have no strategy
            entries.append(_baseline(name, (known or {}).get(name) or find(name)))
    return {
        "model": model,
        "chosen": chosen,
        "views": views,
        "baselines": entries,
        **of_operators(graph),
        "least_peak_bytes": least_held_bytes(graph, frontier.mesh.n_devices),
    }


def _baseline(name: str, frontier: ModelFrontier) -> dict[str, Any]:
    """Return the points that a baseline found, with its plan if that is compared."""
    points = [
        {"sum_bytes": point.sum_bytes, "time_us": point.time_us, "peak_bytes": frontier.peak_bytes(number)}
        for number, point in enumerate(frontier.points)
    ]
    entry: dict[str, Any] = {"name": name, "points": points}
    if name == COMPARED:
        entry["plan"] = {**frontier_of_whole(frontier).plan(0).to_json(), "frontier": []}
    return entry
