"""Find the points of a model that is cut one way: a point of each stage's frontier, by memory per device and time of a step.

A step isn't faster where a stage is slower. So within a memory limit each stage takes its fastest point; the limits that
matter are the bytes of the stages' points. Each limit gives one combination of points, and all are timed at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from ..costs.resharding_costs import shard_bytes
from ..ft.pareto import reduce_unsorted
from ..ir.graph import Graph, Operator
from ..program.deferral import has_separate_gradients
from ..program.schedule import StepOrder, Times, most_waiting, tried_orders
from ..rules.registry import rule_of
from ..rules.rule import Config, Interface
from ..sharding.model import Model
from ..sharding.stages import Crossing, StageModel, Stages
from .find_frontier import ModelFrontier
from .stage_timeline import stage_timeline
from .stage_times import PassTimes, Transfers, runs_in_order, step_us

WORTH_MEMORY = 0.01
"""More micro-batches in flight or deferred take memory, and so must save this share of a step."""


class StageCombinations(NamedTuple):
    """Points of all stages with one order of the step's passes, C combinations by ascending bytes.

    Attributes:
        order: the order.
        points: the number of each stage's point in its frontier, int64[stages, C].
        stage_bytes: the bytes per device of each stage, as the searches counted them, int64[stages, C].
        time_us: the time of a step, float64[C].
    """

    order: StepOrder
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
        schedule: the name of the order of passes, see :mod:`..program.schedule`; None where it is chosen.
        works, beside, transfers: what the times of stages follow from, whatever the points: see :mod:`.stage_times`.
        bound_us: a time that no step in so many stages beats, wherever the model is cut, in any of the numbers of
            micro-batches that were considered.
        costs: the costs of the points of each stage; None for those that the searches counted.
    """

    stages: Stages
    frontiers: tuple[ModelFrontier, ...]
    micro_batches: int
    schedule: str | None
    works: tuple[PassTimes, ...]
    beside: tuple[PassTimes, ...]
    transfers: Transfers
    bound_us: float
    costs: tuple[StageCosts, ...] | None = None

    @cached_property
    def combinations(self) -> tuple[StageCombinations, ...]:
        """The combinations of points, for each order that is tried.

        Those of later orders are faster by WORTH_MEMORY than all within as many bytes of those before.
        """
        first, *others = tried_orders(self.schedule, self.stages.n, self.micro_batches)
        found = [self._combined(first)]
        for order in others:
            combined = self._combined(order)
            least = np.min([_least_time(each, combined.mem_bytes) for each in found], axis=0)
            kept = np.flatnonzero(combined.time_us < (1 - WORTH_MEMORY) * least)
            found.append(
                StageCombinations(order, combined.points[:, kept], combined.stage_bytes[:, kept], combined.time_us[kept])
            )
        return tuple(found)

    @cached_property
    def least_us(self) -> float:
        """The least time of a step, with each operator split as it is fastest and nothing communicated inside of stages."""
        passes = [work + other for work, other in zip(self.works, self.beside, strict=True)]
        orders = tried_orders(self.schedule, self.stages.n, self.micro_batches)
        return min(float(step_us(passes, self.transfers, order)) for order in orders)

    def busy_us(self, points: Sequence[int]) -> list[float]:
        """Return for a point of each stage the time of all that it does in a step."""
        return [each.total(self.micro_batches) for each in self._times_of(points)]

    def timeline(self, points: Sequence[int], order: StepOrder) -> dict[str, Any]:
        """Return when each stage does what with a point of each stage; see :func:`.stage_timeline.stage_timeline`."""
        sizes = [frontier.mesh.n_devices for frontier in self.frontiers]
        return stage_timeline(self._times_of(points), self.transfers, order, sizes)

    def _times_of(self, points: Sequence[int]) -> list[PassTimes]:
        chosen = zip(self.frontiers, points, strict=True)
        return self._times([float(frontier.costs.time_ns[point]) / 1e3 for frontier, point in chosen])

    def step_us(self, searched_us: Sequence[Times], order: StepOrder) -> Times:
        """Return the time of a step, given the time of each stage as it was searched, of all micro-batches."""
        return step_us(self._times(searched_us), self.transfers, order)

    def _times(self, searched_us: Sequence[Times]) -> list[PassTimes]:
        of_stages = zip(self.works, self.beside, searched_us, strict=True)
        return [_taking(time_us, work, self.micro_batches) + other for work, other, time_us in of_stages]

    def _combined(self, order: StepOrder) -> StageCombinations:
        """Return all combinations in which each stage has its fastest point within some bytes."""
        minimal = []
        for stage, costs in enumerate(self.stage_costs):
            n_bytes = costs.bytes_of(stage, order)
            kept = reduce_unsorted(n_bytes, costs.time_ns)
            minimal.append((kept, n_bytes[kept], costs.time_ns[kept]))
        least = max(int(n_bytes[0]) for _, n_bytes, _ in minimal)
        limits = np.unique(np.concatenate([n_bytes for _, n_bytes, _ in minimal]))
        limits = limits[limits >= least]
        at = [np.searchsorted(n_bytes, limits, side="right") - 1 for _, n_bytes, _ in minimal]
        time_us = self.step_us([time_ns[i] / 1e3 for (_, _, time_ns), i in zip(minimal, at, strict=True)], order)
        points = np.array([numbers[i] for (numbers, _, _), i in zip(minimal, at, strict=True)])
        stage_bytes = np.array([n_bytes[i] for (_, n_bytes, _), i in zip(minimal, at, strict=True)])
        return StageCombinations(order, points, stage_bytes, time_us)

    @cached_property
    def stage_costs(self) -> tuple[StageCosts, ...]:
        """The costs of all points of each stage."""
        return self.costs or tuple(StageCosts.of(frontier) for frontier in self.frontiers)


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
        received_bytes: by stage what it sends of each micro-batch, int64[P].
        ahead_bytes: the rows of each micro-batch that are sent to it ahead of all passes, int64[P].
        sent_bytes: what it sends of each micro-batch, int64[P].
    """

    time_ns: np.ndarray
    mem_bytes: np.ndarray
    saved_bytes: np.ndarray
    received_bytes: Mapping[int, np.ndarray]
    ahead_bytes: np.ndarray
    sent_bytes: np.ndarray
    _frontier: ModelFrontier
    _points: np.ndarray
    _like: tuple[StageCosts, float] | None = None

    @classmethod
    def of(cls, frontier: ModelFrontier, points: np.ndarray | None = None) -> StageCosts:
        """Return the costs of a stage's points.

        Args:
            points: the numbers of points, int64[P]; None for all.
        """
        points = np.arange(len(frontier)) if points is None else points
        n_bytes = frontier.costs.mem_bytes[points] + _ahead_bytes(frontier.model)
        model = frontier.model
        assert isinstance(model, StageModel)
        crossings = [each for each in model.stages.crossings if model.graph.n_runs(each.tensor) > 1]
        received = [each for each in crossings if each.target == model.index]
        sent = [each for each in crossings if each.source == model.index and not each.is_ahead]
        by_source = {
            source: _crossing_bytes(frontier, points, [each for each in received if each.source == source])
            for source in sorted({each.source for each in received if not each.is_ahead})
        }
        return cls(
            frontier.costs.time_ns[points],
            n_bytes,
            saved_bytes(frontier, points),
            by_source,
            _crossing_bytes(frontier, points, [each for each in received if each.is_ahead]),
            _crossing_bytes(frontier, points, sent),
            frontier,
            points,
        )

    @cached_property
    def late_bytes(self) -> np.ndarray:
        """The gradients that a micro-batch keeps whose parameters' gradients aren't computed yet, int64[P]."""
        return self._late_bytes(with_reads=False)

    @cached_property
    def deferred_bytes(self) -> np.ndarray:
        """These gradients, and all that is read beside them, int64[P]."""
        return self._late_bytes(with_reads=True)

    def _late_bytes(self, with_reads: bool) -> np.ndarray:
        if self._like is None:
            return late_bytes(self._frontier, self._points, with_reads)
        like, ratio = self._like
        return _times(like.deferred_bytes if with_reads else like.late_bytes, ratio)

    def of_samples(self, ratio: float, slower: float) -> StageCosts:
        """Return what the points are predicted to cost if each micro-batch has other samples.

        Args:
            ratio: how many samples a micro-batch has, divided by how many it has here.
            slower: the factor of the times of all micro-batches together.
        """
        saved = _times(self.saved_bytes, ratio)
        return replace(
            self,
            time_ns=_times(self.time_ns, slower),
            mem_bytes=self.mem_bytes - self.saved_bytes + saved,
            saved_bytes=saved,
            received_bytes={source: _times(each, ratio) for source, each in self.received_bytes.items()},
            ahead_bytes=_times(self.ahead_bytes, ratio),
            sent_bytes=_times(self.sent_bytes, ratio),
            _like=(self, ratio),
        )

    def bytes_of(self, stage: int, order: StepOrder) -> np.ndarray:
        """Return the bytes of each point with as many micro-batches in flight and deferred in each stage as an order has.

        Beside what those in flight save these are messages: of each micro-batch in flight its own waits to leave, or its
        gradient to be taken; and those of micro-batches that other stages have in flight wait to be taken. Of those deferred
        it is what gradients of parameters are made of. A stage in which branches begin sends back before all else, too.
        """
        in_flight, deferred = order.in_flight, order.deferred[stage]
        n_bytes: np.ndarray = self.mem_bytes + (in_flight[stage] - 1) * (self.saved_bytes + self.sent_bytes)
        n_bytes = n_bytes + (order.n_micro_batches - in_flight[stage]) * self.ahead_bytes
        if deferred:
            n_bytes = n_bytes + deferred * self.deferred_bytes
        model = self._frontier.model
        assert isinstance(model, StageModel)
        if deferred or runs_in_order(self._frontier.hardware) or model.stages.early[stage]:
            n_bytes = n_bytes + self.late_bytes
        for source, received in self.received_bytes.items():
            n_bytes = n_bytes + most_waiting(in_flight, source, stage)[0] * received
        return n_bytes


def _times(costs: np.ndarray, factor: float) -> np.ndarray:
    """Return integers multiplied by a factor."""
    product: np.ndarray = np.rint(costs * factor).astype(np.int64)
    return product


def needed_bytes(frontier: ModelFrontier, point: int, stage: int, order: StepOrder) -> int:
    """Return the peak of a stage: that of one micro-batch, what others in flight save, and have sent to it, and what is
    deferred.
    """
    costs = StageCosts.of(frontier, np.array([point]))
    n_bytes = int(costs.bytes_of(stage, order)[0])
    return frontier.needed_bytes(point) + n_bytes - int(frontier.costs.mem_bytes[point])


def _crossing_bytes(frontier: ModelFrontier, points: np.ndarray, crossings: Sequence[Crossing]) -> np.ndarray:
    """Return the bytes of a device's shards of tensors that a stage sends or is sent, of a micro-batch, int64[points]."""
    times = Counter(each.tensor for each in crossings)

    def of_results(op: Operator, config: Config, interface: Interface) -> int:
        results = zip(op.outputs, interface.results, strict=True)
        return sum(times[tensor.name] * shard_bytes(tensor, layout) for tensor, layout in results)

    return _summed(frontier, points, lambda op: any(tensor.name in times for tensor in op.outputs), of_results)


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


def late_bytes(frontier: ModelFrontier, points: np.ndarray, with_reads: bool) -> np.ndarray:
    """Return the bytes that a micro-batch keeps, at most, for the gradients that no earlier stage waits for.

    These are made of the gradients of the results of operators that have a gradient of either kind, and of what operators
    read. Where all gradients of an operator wait, so does that of its result.

    Args:
        points: the numbers of points, int64[K].
        with_reads: whether what is read beside gradients is counted, else what is kept beside what a pass saves anyway.
    """
    model = frontier.model
    assert isinstance(model, StageModel)
    graph, backward, urgent = model.graph, model.backward, _urgent(model)

    of_gradients = {op.name: [i for i, _ in op.operands if (op.name, i) in backward.gradients] for op in _in_passes(graph)}
    late = {
        name: [i for i, tensor in graph.operators[name].operands if i in positions and tensor.name not in urgent]
        for name, positions in of_gradients.items()
    }

    def of_operator(op: Operator, config: Config, interface: Interface) -> int:
        results = list(zip(op.outputs, interface.results, strict=True))
        operands = [(i, tensor, each.layout) for i, tensor in op.operands if (each := interface.operands[i]) is not None]
        operands = [each for each in operands if graph.n_runs(each[1].name) > 1]
        is_divided = len(late[op.name]) < len(of_gradients[op.name])
        if is_divided and not has_separate_gradients(op):
            return sum(shard_bytes(tensor, layout) for i, tensor, layout in operands if i in late[op.name])
        n_bytes = sum(shard_bytes(*each) for each in results) if is_divided else 0
        if with_reads:
            read = [(tensor, layout) for i, tensor, layout in operands if (op.name, i) in backward.residual_operands]
            read += [each for each in results if each[0].name in backward.residual_results]
            n_bytes += sum(shard_bytes(*each) for each in read)
        return n_bytes

    return _summed(frontier, points, lambda op: bool(late.get(op.name)), of_operator)


def _in_passes(graph: Graph) -> Iterator[Operator]:
    """Return the operators that the passes of a step run."""
    for op in graph.operators.values():
        if op.outputs and (graph.micro_batching is None or graph.n_runs(_result(op)) > 1):
            yield op


def _urgent(model: StageModel) -> set[str]:
    """Return the names of the tensors whose gradients lead to one that an earlier stage waits for."""
    found = {each.tensor for each in model.stages.crossings if each.target == model.index and each.has_gradient}
    for op in model.graph.operators.values():
        if any(tensor.name in found for _, tensor in op.operands):
            found.update(tensor.name for tensor in op.outputs)
    return found


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
                used, at = np.unique(index[chosen[:, number]], return_inverse=True)
                total += np.array([n_bytes(op, configs[i], interfaces[i]) for i in used.tolist()], np.int64)[at]
    return total


def _result(op: Operator) -> str:
    return op.outputs[0].name if op.outputs else ""
