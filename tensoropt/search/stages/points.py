"""Find the points of a model that is cut one way: a point of each stage's frontier, by memory per device and time of a step.

A step isn't faster where a stage is slower. So within a memory limit each stage takes its fastest point; the limits that
matter are the bytes of the stages' points. Each limit gives one combination of points, and all are timed at once.
Interleaved stages share a memory: those of a submesh take the points that together take the least time.

A timeline's times are those of :func:`...program.orders.fast_makespan.step_us`: a step ends when the last of its tasks does,
or later where it isn't known which of three or more stages waits for what another sends back at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from operator import add
from typing import Any, NamedTuple

import numpy as np

from ...common.memory_units import memory_text
from ...ft.pareto import product, reduce_unsorted
from ...program.orders.fast_makespan import PassTimes, Transfers, first_passes_us, pass_ends, step_us
from ...program.orders.passes import BACKWARD, FORWARD, PARAMETERS, Pass, needs
from ...program.orders.schedule import PLAIN, StepOrder, Times, of_submeshes, tried_orders
from ...sharding.stages import Stages
from ..frontiers.decisions import COMPUTE_LANE, NETWORK_LANE, TaskRows
from ..frontiers.model_frontier import ModelFrontier
from .memory import StageCosts, bytes_together
from .placement import Block

MOST_COMBINED = 256
"""So many points of an interleaved stage at most are combined with those of the others on its submesh."""
WORTH_MEMORY = 0.01
"""More micro-batches in flight or deferred take memory, and so must save this share of a step."""


GAP_UNIT = 1e-5
"""Gaps are told up to this share."""


class StageCombinations(NamedTuple):
    """Points of all stages with one order of the step's passes, C combinations by ascending bytes.

    Attributes:
        points: the number of each stage's point in its frontier, int64[stages, C].
        stage_bytes: the peak of each stage's devices, int64[stages, C].
        time_us: the time of a step, float64[C].
    """

    order: StepOrder
    points: np.ndarray
    stage_bytes: np.ndarray
    time_us: np.ndarray

    @property
    def mem_bytes(self) -> np.ndarray:
        """The bytes of the device that needs the most, int64[C]."""
        peaks: np.ndarray = self.stage_bytes.max(axis=0)
        return peaks

    def take(self, indices: np.ndarray) -> StageCombinations:
        return StageCombinations(self.order, self.points[:, indices], self.stage_bytes[:, indices], self.time_us[indices])


@dataclass(frozen=True, eq=False)
class SearchedStages:
    """A model that is cut one way, with the frontier of each stage in a number of micro-batches.

    Attributes:
        blocks: for each stage its devices, which interleaved stages share.
        schedule: the name of the order of passes, see :mod:`...program.orders.schedule`; None where it is chosen.
        works, beside, transfers: what the times of stages follow from, whatever the points: see :mod:`.times`.
        bound_us: a time that no step in so many stages beats, wherever the model is cut, in any of the numbers of
            micro-batches that were considered.
    """

    stages: Stages
    blocks: tuple[Block, ...]
    frontiers: tuple[ModelFrontier, ...]
    micro_batches: int
    schedule: str | None
    works: tuple[PassTimes, ...]
    beside: tuple[PassTimes, ...]
    transfers: Transfers
    bound_us: float

    @property
    def without_stages(self) -> tuple[ModelFrontier, ...]:
        """The frontier of the model if it isn't cut, with all its points and what is proven of them."""
        return ()

    def need_text(self, stage_bytes: Sequence[int]) -> str:
        """Return in words which stage needs the most, of what each needs, and where it is."""
        n_bytes, n = max(stage_bytes), self.micro_batches
        stage = stage_bytes.index(n_bytes)
        passes = ", which take the batch at once," if n == 1 else f" and {n} micro-batches"
        return (
            f"in {self.stages.n} stages{passes} stage {stage} alone, {self.stages.between(stage)}, "
            f"needs {n_bytes:,} bytes ({memory_text(n_bytes)})"
        )

    @cached_property
    def combinations(self) -> tuple[StageCombinations, ...]:
        """The combinations of points, for each order that is tried.

        Those of later orders are faster by WORTH_MEMORY than all within as many bytes of those before.
        """
        first, *later_orders = self._orders
        results = [self._combined(first)]
        for order in later_orders:
            combined = self._combined(order)
            least_us = np.min([_least_time(result, combined.mem_bytes) for result in results], axis=0)
            results.append(combined.take(np.flatnonzero(combined.time_us < (1 - WORTH_MEMORY) * least_us)))
        return tuple(results)

    @cached_property
    def least_us(self) -> float:
        """The least time of a step, with each operator split as it is fastest and nothing communicated inside of stages."""
        passes = [work + messages for work, messages in zip(self.works, self.beside, strict=True)]
        return min(float(step_us(passes, self.transfers, order)) for order in self._orders)

    @property
    def _orders(self) -> list[StepOrder]:
        return tried_orders(self.schedule, self.stages.n, self.micro_batches, len(set(self.blocks)))

    def busy_us(self, points: Sequence[int]) -> list[float]:
        """Return for a point of each stage the time of all that it does in a step."""
        return [times.total(self.micro_batches) for times in self._times_of(points)]

    def bounds_us(self, points: np.ndarray, order: StepOrder, excess: np.ndarray | float = 0.0) -> np.ndarray:
        """Return a time that no step of these stages in an order beats if no stage has more memory than with its point here.

        Memory is Equation (1)'s, and the time follows from the lower bounds of the stages' searches.

        Args:
            points: the number of each stage's point, int64[stages, C].
            excess: memory is divided by 1 plus this, float64[C].
        """
        least_us = []
        for frontier, numbers in zip(self.frontiers, points, strict=True):
            limits = (frontier.found.mem_bytes[numbers] / (1 + excess)).astype(np.int64)
            least_us.append(frontier.certified.least_time(limits) / 1e3)
        return np.asarray(self.step_us(least_us, order))

    def gaps(self, points: np.ndarray, order: StepOrder, time_us: np.ndarray) -> np.ndarray:
        """Return for each combination of points how far it may be from the best of these stages in an order, float64[C].

        It is the least e such that no step has both 1 / (1 + e) of the memory, in each stage, and of the time.
        """
        bounds_us = self.bounds_us(points, order)
        low, high = np.zeros(len(time_us)), np.where(bounds_us > 0, time_us / np.maximum(bounds_us, 1e-9) - 1, 0.0)
        high = np.maximum(high, 0.0)
        while (high - low).max(initial=0.0) > GAP_UNIT:
            middle = (low + high) / 2
            is_proven = self.bounds_us(points, order, middle) * (1 + middle) >= time_us
            low, high = np.where(is_proven, low, middle), np.where(is_proven, middle, high)
        return high

    def timeline(self, points: Sequence[int], order: StepOrder) -> dict[str, Any] | None:
        """Return when each stage does what with a point of each; see :func:`stage_timeline`; None of one."""
        return stage_timeline(self._times_of(points), self.transfers, order, self.blocks)

    def _times_of(self, points: Sequence[int]) -> list[PassTimes]:
        pairs = zip(self.frontiers, points, strict=True)
        return self._times([float(frontier.costs.time_ns[point]) / 1e3 for frontier, point in pairs])

    def step_us(self, searched_us: Sequence[Times], order: StepOrder) -> Times:
        """Return the time of a step, given the time of each stage as it was searched, of all micro-batches."""
        return step_us(self._times(searched_us), self.transfers, order)

    def _times(self, searched_us: Sequence[Times]) -> list[PassTimes]:
        stages = zip(self.works, self.beside, searched_us, strict=True)
        return [_taking(time_us, work, self.micro_batches) + messages for work, messages, time_us in stages]

    def _combined(self, order: StepOrder) -> StageCombinations:
        """Return all combinations in which each stage has its fastest point within some bytes."""
        minimal: dict[int, _SubmeshPoints] = {}
        for stage, (costs, submesh) in enumerate(zip(self.stage_costs, order.submeshes, strict=True)):
            stage_points = _SubmeshPoints.of(stage, costs.bytes_of(stage, order), costs.time_ns)
            minimal[submesh] = minimal[submesh].beside(stage_points) if submesh in minimal else stage_points
        least_bytes = max(int(group.n_bytes[0]) for group in minimal.values())
        limits = np.unique(np.concatenate([group.n_bytes for group in minimal.values()]))
        limits = limits[limits >= least_bytes]
        indices: dict[int, np.ndarray] = {}
        submesh_bytes: dict[int, np.ndarray] = {}
        for submesh, group in minimal.items():
            rows = np.searchsorted(group.n_bytes, limits, side="right") - 1
            indices.update((stage, numbers[rows]) for stage, numbers in group.points.items())
            submesh_bytes[submesh] = group.n_bytes[rows]
            if len(group.points) > 1:  # together they need at most the sum
                stage_costs = {stage: self.stage_costs[stage] for stage in group.points}
                submesh_bytes[submesh] = bytes_together(stage_costs, order, indices)
        times_us = [costs.time_ns[indices[stage]] / 1e3 for stage, costs in enumerate(self.stage_costs)]
        result = StageCombinations(
            order,
            np.array([costs.numbers[indices[stage]] for stage, costs in enumerate(self.stage_costs)]),
            np.array([submesh_bytes[submesh] for submesh in order.submeshes]),
            np.asarray(self.step_us(times_us, order)),
        )
        return result.take(reduce_unsorted(result.mem_bytes, np.rint(result.time_us * 1e3).astype(np.int64)))

    @cached_property
    def stage_costs(self) -> tuple[StageCosts, ...]:
        return tuple(map(StageCosts.of, self.frontiers))


@dataclass(frozen=True, eq=False)
class SearchedWhole(SearchedStages):
    """A model that isn't cut, with its frontier: one stage, which takes a step at once."""

    @classmethod
    def of(cls, frontier: ModelFrontier) -> SearchedWhole:
        model, proven = frontier.model, frontier.certified
        least_ns = (proven.time_ns if proven.bound is None else proven.bound.time_ns).min()
        return cls(
            Stages(replace(model, graph=model.graph.full_batch), ()),
            (Block(0, frontier.mesh.n_devices),),
            (frontier,),
            model.graph.n_micro_batches,
            PLAIN,
            (PassTimes(before=1.0),),
            (PassTimes(),),
            Transfers([], [0.0], [0.0]),
            int(least_ns) / 1e3,
        )

    @property
    def without_stages(self) -> tuple[ModelFrontier, ...]:
        return self.frontiers

    def need_text(self, stage_bytes: Sequence[int]) -> str:
        return f"the least that was found is {stage_bytes[0]:,} bytes ({memory_text(stage_bytes[0])}), without stages"

    @cached_property
    def combinations(self) -> tuple[StageCombinations, ...]:
        (frontier,), order = self.frontiers, StepOrder(PLAIN, self.micro_batches, (1,), (0,))
        numbers, time_us = np.arange(len(frontier))[None], frontier.costs.time_ns / 1e3
        return (StageCombinations(order, numbers, frontier.peaks[None], time_us),)

    def step_us(self, searched_us: Sequence[Times], order: StepOrder) -> Times:
        (time_us,) = searched_us  # without the loop over passes, which loads Numba
        return time_us

    def timeline(self, points: Sequence[int], order: StepOrder) -> None:
        return None


class _SubmeshPoints(NamedTuple):
    """The minimal combinations of points of the stages on a submesh, K of them, by ascending bytes.

    Attributes:
        n_bytes: the bytes per device of all of its stages, int64[K].
        time_ns: their times together, int64[K].
        points: for each of its stages the index of its point, int64[K].
    """

    n_bytes: np.ndarray
    time_ns: np.ndarray
    points: dict[int, np.ndarray]

    @classmethod
    def of(cls, stage: int, n_bytes: np.ndarray, time_ns: np.ndarray) -> _SubmeshPoints:
        """Return those of one stage."""
        minimal = reduce_unsorted(n_bytes, time_ns)
        return cls(n_bytes[minimal], time_ns[minimal], {stage: minimal})

    def beside(self, stage: _SubmeshPoints) -> _SubmeshPoints:
        """Return those with one more stage: of each MOST_COMBINED points at most, from end to end."""
        first, second = self._thinned(), stage._thinned()
        n_bytes, time_ns, left, right = product(first.n_bytes, first.time_ns, second.n_bytes, second.time_ns)
        points = {stage: numbers[left] for stage, numbers in first.points.items()}
        points |= {stage: numbers[right] for stage, numbers in second.points.items()}
        return _SubmeshPoints(n_bytes, time_ns, points)

    def _thinned(self) -> _SubmeshPoints:
        n = len(self.n_bytes)
        rows = np.unique(np.linspace(0, n - 1, min(n, MOST_COMBINED)).round().astype(int))
        return _SubmeshPoints(self.n_bytes[rows], self.time_ns[rows], {k: ids[rows] for k, ids in self.points.items()})


def _taking(time_us: Times, work: PassTimes, n_micro_batches: int) -> PassTimes:
    """Return the times of a stage's parts that together take so long, in proportion to its operators'.

    Where these are predicted to take no time, a third is that of forward passes: a backward pass computes two gradients for
    each product.
    """
    total_us = work.total(n_micro_batches)
    if total_us:
        return work.scaled(time_us / total_us)
    return PassTimes(time_us / (3 * n_micro_batches), 2 * time_us / (3 * n_micro_batches))


def _least_time(combinations: StageCombinations, mem_bytes: np.ndarray) -> np.ndarray:
    """Return the least time of the combinations within so many bytes, float64[len(mem_bytes)]."""
    if not len(combinations.time_us):
        return np.full(len(mem_bytes), np.inf)
    fastest = np.minimum.accumulate(combinations.time_us)
    indices = np.searchsorted(combinations.mem_bytes, mem_bytes, side="right") - 1
    return np.where(indices < 0, np.inf, fastest[np.maximum(indices, 0)])


BEFORE, BRANCHES, UPDATE = "before", "branches", "update"
SENT_ON, SENT_BACK = "sent_on", "sent_back"
AT_BEGIN, AT_END = "before the first pass", "after the last pass"


def stage_timeline(
    times: Sequence[PassTimes], transfers: Transfers, order: StepOrder, blocks: Sequence[Block]
) -> dict[str, Any]:
    """Return a step in stages as JSON, see :meth:`.TaskRows.to_json`. Each submesh is a class of devices.

    What is sent stands in the lane of the stage that sends it; what is there before the first pass, where it is awaited.

    Args:
        blocks: for each stage its devices, which interleaved stages share.
    """
    submeshes = order.submeshes
    first = first_passes_us(times, transfers, submeshes)
    ends, free_us = pass_ends(times, transfers, order)
    deferring_stages = {run.stage for run in ends if run.work == PARAMETERS}
    rows = _Rows(submeshes)
    per_submesh = partial(of_submeshes, submeshes=submeshes)
    starts_us = per_submesh([passes.before for passes in times], combine=add)
    for stage, way_us in enumerate(transfers.first):
        name = f"{AT_BEGIN}{f', stage {stage}' * rows.names_stages}"
        rows.add_us(stage, NETWORK_LANE, float(first[stage]) - way_us, way_us, name, SENT_ON)
    begin = [float(us) for us in per_submesh(first, combine=max)]
    for submesh, before_us in enumerate(starts_us):
        rows.add_us(submesh, COMPUTE_LANE, 0.0, before_us, AT_BEGIN, BEFORE)
    for run, end in ends.items():
        submesh = submeshes[run.stage]
        _add_pass(rows, run, (begin[submesh], float(end)), times, transfers, run.stage in deferring_stages)
        begin[submesh] = float(end)
    last, updates_us = per_submesh(transfers.last, combine=max), per_submesh([passes.after for passes in times], combine=add)
    sent_back = [end + way_us for end, way_us in zip(free_us, last, strict=True) if way_us]
    for submesh, (end, way_us, after_us) in enumerate(zip(free_us, last, updates_us, strict=True)):
        rows.add_us(submesh, NETWORK_LANE, float(end), way_us, AT_END, SENT_BACK)
        update = end if way_us else max([end, *sent_back])
        rows.add_us(submesh, COMPUTE_LANE, float(update), after_us, AT_END, UPDATE)
    devices = [list(block.devices) for block in dict.fromkeys(blocks)]
    return rows.to_json(round(float(step_us(times, transfers, order)) * 1e3), devices)


def _add_pass(
    rows: _Rows, run: Pass, span: tuple[float, float], times: Sequence[PassTimes], transfers: Transfers, is_deferring: bool
) -> None:
    """Add a pass, and the message for the pass of another stage that needs it."""
    stage, pass_times, (begin, end) = run.stage, times[run.stage], span
    name = f"micro-batch {run.micro_batch + 1}{f', stage {stage}' * rows.names_stages}"
    backward = pass_times.backward - pass_times.parameters if is_deferring else pass_times.backward
    early_us = pass_times.early if run.work == FORWARD else 0.0
    took = {FORWARD: pass_times.forward, BACKWARD: backward, PARAMETERS: pass_times.parameters}[run.work] - early_us
    rows.add_us(stage, COMPUTE_LANE, begin, early_us, name, BRANCHES)
    rows.add_us(stage, COMPUTE_LANE, end - took, took, name, run.work)
    if run.work == PARAMETERS:
        return
    is_backward = run.work == BACKWARD
    next_pass = run._replace(stage=stage - 1 if is_backward else stage + 1)
    if 0 <= next_pass.stage < len(times) and run in needs(next_pass, len(times)):
        sent_us = end - pass_times.late if is_backward and not is_deferring else end
        way_us = transfers.each[min(stage, next_pass.stage)]
        rows.add_us(stage, NETWORK_LANE, sent_us, way_us, name, SENT_BACK if is_backward else SENT_ON)


class _Rows(TaskRows):
    """Tasks by the number of their stage.

    Attributes:
        names_stages: whether a task's name says of which of several stages on its devices it is.
    """

    def __init__(self, submeshes: Sequence[int]) -> None:
        """Take the number of each stage's submesh."""
        super().__init__()
        self._submeshes, self.names_stages = submeshes, len(set(submeshes)) < len(submeshes)

    def add_us(self, stage: int, lane: int, start_us: float, duration_us: float, operator: str, kind: str) -> None:
        """Add a task; nothing if it takes no time."""
        start_ns, end_ns = round(start_us * 1e3), round((start_us + duration_us) * 1e3)
        self.add(self._submeshes[stage], lane, start_ns, end_ns - start_ns, operator, kind)
