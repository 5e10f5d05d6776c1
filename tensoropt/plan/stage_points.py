"""Find the points of a model that is cut one way: a point of each stage's frontier, by memory per device and time of a step.

A step isn't faster where a stage is slower. So within a memory limit each stage takes its fastest point; the limits that
matter are the bytes of the stages' points. Each limit gives one combination of points, and all are timed at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from ..costs.resharding_costs import shard_bytes
from ..ft.pareto import reduce_unsorted
from ..ir.graph import Operator
from ..program.schedule import ONE_FORWARD_ONE_BACKWARD, Times, tried_in_flight
from ..rules.registry import rule_of
from ..rules.rule import Config, Interface
from ..sharding.model import Model
from ..sharding.stages import StageModel, Stages
from .find_frontier import ModelFrontier
from .stage_timeline import stage_timeline
from .stage_times import PassTimes, Transfers, runs_in_order, step_us

WORTH_MEMORY = 0.01
"""More micro-batches in flight take memory, and so must save this share of a step."""


class StageCombinations(NamedTuple):
    """Points of all stages with so many micro-batches in flight, C combinations by ascending bytes.

    Attributes:
        in_flight: for each stage, how many micro-batches have run their forward pass and not their backward pass at most.
        points: the number of each stage's point in its frontier, int64[stages, C].
        stage_bytes: the bytes per device of each stage, as the searches counted them, int64[stages, C].
        time_us: the time of a step, float64[C].
    """

    in_flight: tuple[int, ...]
    points: np.ndarray
    stage_bytes: np.ndarray
    time_us: np.ndarray

    @property
    def mem_bytes(self) -> np.ndarray:
        """The bytes of the device that needs the most, int64[C]."""
        most: np.ndarray = self.stage_bytes.max(axis=0)
        return most


@dataclass(frozen=True, eq=False)
class SearchedStages:
    """A model that is cut one way, with the frontier of each stage in a number of micro-batches.

    Attributes:
        schedule: the name of the order of passes, see :mod:`..program.schedule`.
        works, beside, transfers: what the times of stages follow from, whatever the points: see :mod:`.stage_times`.
        bound_us: the least time of a step in so many stages and micro-batches, wherever the model is cut.
    """

    stages: Stages
    frontiers: tuple[ModelFrontier, ...]
    micro_batches: int
    schedule: str
    works: tuple[PassTimes, ...]
    beside: tuple[PassTimes, ...]
    transfers: Transfers
    bound_us: float

    @cached_property
    def combinations(self) -> tuple[StageCombinations, ...]:
        """The combinations of points, for each number of micro-batches in flight that is tried.

        Those with more in flight are faster by WORTH_MEMORY than all within as many bytes and with fewer in flight.
        """
        n = self.micro_batches
        if self.schedule != ONE_FORWARD_ONE_BACKWARD:
            return (self._combined((n,) * self.stages.n),)
        fewest, *others = tried_in_flight(self.stages.n, n)
        found = [self._combined(fewest)]
        for in_flight in others:
            combined = self._combined(in_flight)
            least = np.min([_least_time(each, combined.mem_bytes) for each in found], axis=0)
            kept = np.flatnonzero(combined.time_us < (1 - WORTH_MEMORY) * least)
            found.append(
                StageCombinations(in_flight, combined.points[:, kept], combined.stage_bytes[:, kept], combined.time_us[kept])
            )
        return tuple(found)

    def busy_us(self, points: Sequence[int]) -> list[float]:
        """Return for a point of each stage the time of all that it does in a step."""
        return [each.total(self.micro_batches) for each in self._times_of(points)]

    def timeline(self, points: Sequence[int], in_flight: Sequence[int]) -> dict[str, Any]:
        """Return when each stage does what with a point of each stage; see :func:`.stage_timeline.stage_timeline`."""
        sizes = [frontier.mesh.n_devices for frontier in self.frontiers]
        return stage_timeline(
            self._times_of(points), self.transfers, self.schedule, self.micro_batches, in_flight, sizes
        )

    def _times_of(self, points: Sequence[int]) -> list[PassTimes]:
        chosen = zip(self.frontiers, points, strict=True)
        return self._times([float(frontier.costs.time_ns[point]) / 1e3 for frontier, point in chosen])

    def step_us(self, searched_us: Sequence[Times], in_flight: Sequence[int]) -> Times:
        """Return the time of a step, given the time of each stage as it was searched, of all micro-batches."""
        return step_us(self._times(searched_us), self.transfers, self.schedule, self.micro_batches, in_flight)

    def _times(self, searched_us: Sequence[Times]) -> list[PassTimes]:
        of_stages = zip(self.works, self.beside, searched_us, strict=True)
        return [_taking(time_us, work, self.micro_batches) + other for work, other, time_us in of_stages]

    def _combined(self, in_flight: tuple[int, ...]) -> StageCombinations:
        """Return all combinations in which each stage has its fastest point within some bytes."""
        minimal = []
        for costs, most in zip(self._of_stages, in_flight, strict=True):
            n_bytes = costs.bytes_of(most)
            kept = reduce_unsorted(n_bytes, costs.time_ns)
            minimal.append((kept, n_bytes[kept], costs.time_ns[kept]))
        least = max(int(n_bytes[0]) for _, n_bytes, _ in minimal)
        limits = np.unique(np.concatenate([n_bytes for _, n_bytes, _ in minimal]))
        limits = limits[limits >= least]
        at = [np.searchsorted(n_bytes, limits, side="right") - 1 for _, n_bytes, _ in minimal]
        time_us = self.step_us([time_ns[i] / 1e3 for (_, _, time_ns), i in zip(minimal, at, strict=True)], in_flight)
        points = np.array([numbers[i] for (numbers, _, _), i in zip(minimal, at, strict=True)])
        stage_bytes = np.array([n_bytes[i] for (_, n_bytes, _), i in zip(minimal, at, strict=True)])
        return StageCombinations(in_flight, points, stage_bytes, time_us)

    @cached_property
    def _of_stages(self) -> list[StageCosts]:
        return [StageCosts.of(frontier) for frontier in self.frontiers]


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
    at = np.searchsorted(combinations.mem_bytes, mem_bytes, side="right") - 1
    return np.where(at < 0, np.inf, fastest[np.maximum(at, 0)])


@dataclass(frozen=True, eq=False)
class StageCosts:
    """The costs of all points of a stage, P of them, as its search counted them.

    Attributes:
        time_ns: of all micro-batches, int64[P].
        mem_bytes: with one micro-batch in flight, int64[P].
        saved_bytes: what each further one in flight saves for its backward pass, int64[P].
    """

    time_ns: np.ndarray
    mem_bytes: np.ndarray
    saved_bytes: np.ndarray

    @classmethod
    def of(cls, frontier: ModelFrontier) -> StageCosts:
        """Return the costs of a stage's points."""
        costs, points = frontier.costs, np.arange(len(frontier))
        n_bytes = costs.mem_bytes + _ahead_bytes(frontier.model) + late_bytes(frontier, points)
        return cls(costs.time_ns, n_bytes, saved_bytes(frontier, points))

    def bytes_of(self, in_flight: int) -> np.ndarray:
        """Return the bytes of each point with so many micro-batches in flight."""
        n_bytes: np.ndarray = self.mem_bytes + (in_flight - 1) * self.saved_bytes
        return n_bytes


def needed_bytes(frontier: ModelFrontier, point: int, in_flight: int) -> int:
    """Return the peak of a stage: that of one micro-batch, and what the others in flight save for the backward pass."""
    points = np.array([point])
    saved, late = int(saved_bytes(frontier, points)[0]), int(late_bytes(frontier, points)[0])
    return frontier.needed_bytes(point) + late + (in_flight - 1) * saved + _ahead_bytes(frontier.model)


def _ahead_bytes(model: Model) -> int:
    """Return the bytes of all rows that a stage looks up for others.

    They are held twice, whole and cut into those of micro-batches, and so are their gradients later.
    """
    assert isinstance(model, StageModel)
    ahead = {each.tensor for each in model.stages.crossings if each.is_ahead and each.source == model.index}
    return 2 * sum(model.stages.whole.graph.tensors[name].mem_bytes for name in ahead)


def saved_bytes(frontier: ModelFrontier, points: np.ndarray) -> np.ndarray:
    """Return the bytes that a micro-batch saves for its backward pass, at most: all that isn't held for the whole step.

    Args:
        points: the numbers of points, int64[K].
    """
    graph, costing = frontier.model.graph, frontier.costing

    def held(op: Operator, config: Config, interface: Interface) -> int:
        return costing.mem_bytes(op, rule_of(op), config, interface)

    once = _summed(frontier, points, lambda op: graph.n_runs(_result(op)) == 1, held)
    return np.maximum(0, frontier.costs.mem_bytes[points] - once)


def late_bytes(frontier: ModelFrontier, points: np.ndarray) -> np.ndarray:
    """Return the bytes of gradients that a backward pass keeps until it has sent what an earlier stage waits for, at most.

    The gradients of variables are computed after that, from those of the results of the operators that use them.

    Args:
        points: the numbers of points, int64[K].
    """
    model = frontier.model
    if not runs_in_order(frontier.hardware):
        return np.zeros(len(points), np.int64)
    graph, gradients = model.graph, model.backward.gradients

    def is_late(op: Operator) -> bool:
        in_passes = bool(op.outputs) and graph.n_runs(_result(op)) > 1
        return in_passes and any((op.name, i) in gradients and t.name in graph.made_of_variables for i, t in op.operands)

    def of_results(op: Operator, config: Config, interface: Interface) -> int:
        return sum(shard_bytes(tensor, layout) for tensor, layout in zip(op.outputs, interface.results, strict=True))

    return _summed(frontier, points, is_late, of_results)


def _summed(
    frontier: ModelFrontier,
    points: np.ndarray,
    counts: Callable[[Operator], bool],
    n_bytes: Callable[[Operator, Config, Interface], int],
) -> np.ndarray:
    """Return for each point the sum over those operators that count, int64[len(points)]."""
    chosen, total = frontier.found.strategies[points], np.zeros(len(points), np.int64)
    for number, (node, states) in enumerate(frontier.built.nodes):
        for op, configs, interfaces, index in zip(
            node.operators, states.configs, states.interfaces, states.index, strict=True
        ):
            if counts(op):
                of_configs = [n_bytes(op, *each) for each in zip(configs, interfaces, strict=True)]
                total += np.array(of_configs, np.int64)[index[chosen[:, number]]]
    return total


def _result(op: Operator) -> str:
    return op.outputs[0].name if op.outputs else ""
