"""Count what the points of a stage need in memory: the peak of its passes in their order, with the messages that wait.

The peak is that of :mod:`...program.memory.pass_memory`, which compiled kernels count (:mod:`...program.fast_peak`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...common.process.garbage import older_objects_kept
from ...costs.resharding_costs import shard_bytes
from ...program.memory.pass_memory import Messages, PassMemory, peak_together
from ...program.orders.schedule import StepOrder
from ...program.stage_ends import StageEnds
from ...sharding.stages import Crossing, StageModel
from ..frontiers.model_frontier import ModelFrontier
from .times import runs_in_order

MOST_REPLAYED = 16
"""The most points of a stage that are replayed, from end to end, where the kernels can't count."""


@dataclass(frozen=True, eq=False)
class StageCosts:
    """The costs of the points of a stage, P of them.

    Attributes:
        numbers: the numbers of the points in it, int64[P].
        time_ns: of all micro-batches, int64[P].
        received_bytes: by stage what it sends of each micro-batch, int64[P].
        ahead_bytes: the rows of each micro-batch that are sent to it ahead of all passes, int64[P].
        sent_bytes: by stage what it sends to it of each micro-batch, or is sent back, int64[P].
        beside_bytes: of what it is sent back all but one training step's, int64[P].
    """

    frontier: ModelFrontier
    numbers: np.ndarray
    time_ns: np.ndarray
    received_bytes: Mapping[int, np.ndarray]
    ahead_bytes: np.ndarray
    sent_bytes: Mapping[int, np.ndarray]
    beside_bytes: np.ndarray
    _passes: dict[bool, PassMemory] = field(default_factory=dict)

    @classmethod
    def of(cls, frontier: ModelFrontier, numbers: np.ndarray | None = None) -> StageCosts:
        """Return the costs of a stage's points.

        Args:
            numbers: those of points, int64[P]; None for all, or for some where that would take long.
        """
        if numbers is None:
            n = len(frontier)
            n_points = n if frontier.counts_quickly else min(n, MOST_REPLAYED)
            numbers = np.unique(np.linspace(0, n - 1, n_points).round().astype(int))
        model = _stage_of(frontier)
        crossings = [crossing for crossing in model.stages.crossings if model.graph.n_runs(crossing.tensor) > 1]
        incoming = [crossing for crossing in crossings if crossing.target == model.index]
        outgoing = [crossing for crossing in crossings if crossing.source == model.index and not crossing.is_ahead]
        source_bytes = {
            source: _crossing_bytes(frontier, numbers, [crossing for crossing in incoming if crossing.source == source])
            for source in sorted({crossing.source for crossing in incoming if not crossing.is_ahead})
        }
        return cls(
            frontier,
            numbers,
            frontier.costs.time_ns[numbers],
            source_bytes,
            _crossing_bytes(frontier, numbers, [crossing for crossing in incoming if crossing.is_ahead]),
            {
                target: _crossing_bytes(frontier, numbers, [crossing for crossing in outgoing if crossing.target == target])
                for target in sorted({crossing.target for crossing in outgoing})
            },
            _crossing_bytes(frontier, numbers, outgoing, is_beside=True),
        )

    @older_objects_kept()
    def passes(self, divides: bool) -> PassMemory:
        """Return the bytes that are alive in the stage's passes under each point.

        Args:
            divides: whether backward passes run first what is sent back.
        """
        if divides not in self._passes:
            self._passes[divides] = self.frontier.pass_memory(self.numbers, ends_of(_stage_of(self.frontier), divides))
        return self._passes[divides]

    def messages(self, order: StepOrder) -> Messages:
        """Return the messages of the stage; all rows that are looked up ahead for it are sent when the step begins."""
        incoming = [(n_bytes, order.in_flight[source]) for source, n_bytes in self.received_bytes.items()]
        incoming.append((self.ahead_bytes, order.n_micro_batches))
        own, submeshes = _stage_of(self.frontier).index, order.submeshes
        following = next((stage for stage in range(own + 1, len(submeshes)) if submeshes[stage] == submeshes[own]), 0)
        sent, near = (
            sum((each for target, each in self.sent_bytes.items() if target <= last), np.zeros_like(self.ahead_bytes))
            for last in (len(submeshes), following)
        )
        return Messages(sent, tuple(incoming), self.beside_bytes, near)

    def bytes_of(self, stage: int, order: StepOrder) -> np.ndarray:
        """Return the peak of the stage by itself under each point, int64[P]."""
        return bytes_together({stage: self}, order)


def bytes_together(stages: Mapping[int, StageCosts], order: StepOrder, rows: Mapping[int, Any] | None = None) -> np.ndarray:
    """Return the peak of devices that run some stages, int64[C].

    Args:
        stages: the costs of each stage, by its number.
        rows: by stage which of its points each combination has, int64[C]; None for all of a single one.
    """
    parts: list[np.ndarray] = []
    pass_stages, ahead = {}, 0
    for stage, costs in stages.items():
        model, indices = _stage_of(costs.frontier), slice(None) if rows is None else rows[stage]
        divides = is_divided(costs.frontier, stage, order)
        ahead += _ahead_bytes(model)
        if model.graph.micro_batching is None and not divides:
            parts.append(costs.frontier.peaks_of(costs.numbers[indices]))
        else:
            pass_stages[stage] = costs.passes(divides).take(indices), costs.messages(order).take(indices)
    passes = [run for run in order.orders[order.submeshes[min(stages)]] if run.stage in pass_stages]
    if pass_stages:
        parts.append(peak_together(pass_stages, passes, order.n_micro_batches))
    return np.sum(parts, axis=0) + ahead


def needed_bytes(frontier: ModelFrontier, point: int, stage: int, order: StepOrder) -> int:
    """Return the peak of a stage under a point: that of its passes in their order, with the messages that may wait."""
    return int(StageCosts.of(frontier, np.array([point])).bytes_of(stage, order)[0])


def is_divided(frontier: ModelFrontier, stage: int, order: StepOrder) -> bool:
    """Return whether backward passes of a stage run first what an earlier stage waits for, if one does.

    They do where ranks run in order or gradients of parameters are deferred, and in a stage in which branches begin.
    """
    model = _stage_of(frontier)
    is_awaited = any(crossing.target == stage and crossing.has_gradient for crossing in model.stages.crossings)
    divides = runs_in_order(frontier.hardware) or order.deferred[stage] > 0 or bool(model.stages.early[stage])
    return is_awaited and divides


def ends_of(model: StageModel, divides: bool) -> StageEnds:
    """Return what a stage exchanges with others; see :class:`.StageEnds`."""
    incoming = [crossing for crossing in model.stages.crossings if crossing.target == model.index]
    gradients = frozenset((step, crossing.tensor) for crossing in incoming for step in crossing.steps)
    sent = {crossing.tensor for crossing in model.stages.crossings if crossing.source == model.index}
    own = model.graph.operators.keys() - model.stages.whole.graph.operators.keys()  # no model's
    sums = {name for name in own for _, tensor in model.graph.operators[name].operands if tensor.name in sent}
    received = frozenset(crossing.tensor for crossing in incoming)
    return StageEnds(received, gradients, divides, awaited=frozenset(sums))


def _stage_of(frontier: ModelFrontier) -> StageModel:
    assert isinstance(frontier.model, StageModel)
    return frontier.model


def _crossing_bytes(
    frontier: ModelFrontier, points: np.ndarray, crossings: Sequence[Crossing], is_beside: bool = False
) -> np.ndarray:
    """Return the bytes of a device's shards of tensors that a stage sends or is sent, of a micro-batch, int64[points].

    A tensor waits or its gradients do, one of each training step; ``is_beside`` counts these without the first.
    """
    n_waiting = ((crossing.tensor, max(1, len(crossing.steps)) - is_beside) for crossing in crossings)
    times = Counter(tensor for tensor, n in n_waiting for _ in range(n))
    strategies = frontier.found.strategies[points]
    total = np.zeros(len(points), np.int64)
    for number, (node, states) in enumerate(frontier.built.nodes):
        for op, interfaces, index in zip(node.operators, states.interfaces, states.index, strict=True):
            crossing = [(k, tensor) for k, tensor in enumerate(op.outputs) if tensor.name in times]
            if crossing:
                numbers, inverse = np.unique(index[strategies[:, number]], return_inverse=True)
                layouts = [interfaces[i].results for i in numbers.tolist()]
                n_bytes = [sum(times[tensor.name] * shard_bytes(tensor, at[k]) for k, tensor in crossing) for at in layouts]
                total += np.array(n_bytes, np.int64)[inverse]
    return total


def _ahead_bytes(model: StageModel) -> int:
    """Return the bytes of all rows that a stage looks up for others.

    They are held twice, whole and cut into those of micro-batches, and so are their gradients later.
    """
    own = (crossing for crossing in model.stages.crossings if crossing.is_ahead and crossing.source == model.index)
    times = {crossing.tensor: max(1, len(crossing.steps)) for crossing in own}
    return 2 * sum(n * model.stages.whole.graph.tensors[name].mem_bytes for name, n in times.items())
