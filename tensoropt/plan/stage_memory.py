"""Count what the points of a stage need in memory: as a sum, by which points are combined, and exactly.

The sum is that of one micro-batch as the search counted it, and of what others in flight and deferred keep, and of messages.
The peak is that of the stage's passes in their order (:mod:`..program.pass_memory`) with the messages that wait meanwhile;
it takes a replay of the point's step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ..common.garbage import older_objects_kept
from ..costs.resharding_costs import shard_bytes
from ..ir.gradient_info import Backward
from ..ir.graph import Graph, Operator, Tensor
from ..program.deferral import has_separate_gradients
from ..program.pass_memory import Messages, peak_together
from ..program.schedule import ONE_FORWARD_ONE_BACKWARD, PLAIN, StepOrder, most_waiting
from ..program.stage_ends import StageEnds
from ..rules.registry import rule_of
from ..rules.rule import Config, Interface
from ..sharding.model import Model
from ..sharding.stages import Crossing, StageModel
from .find_frontier import ModelFrontier
from .stage_times import runs_in_order

N_REPLAYED = 3
"""So many points of a stage, from end to end, are replayed to know how far sums are from peaks."""


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
    def deferred_bytes(self) -> np.ndarray:
        """The bytes that a micro-batch keeps while its gradients of parameters are deferred, int64[P]; see the function."""
        if self._like is None:
            return deferred_bytes(self._frontier, self._points)
        like, ratio = self._like
        return _times(like.deferred_bytes, ratio)

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

    @older_objects_kept()
    def near_peaks(self) -> StageCosts:
        """Return the costs with memory that is the peak at a few points, and between them differs from it as there.

        A peak also has gradients on their way, and what collectives take; it hasn't all that is saved at once.
        """
        frontier, points = self._frontier, self._points
        n = frontier.model.graph.n_micro_batches
        if n == 1:
            return self
        order = StepOrder(ONE_FORWARD_ONE_BACKWARD, n, (1,), (0,)).orders[0]
        ends = ends_of(frontier.model, divides=False)
        replayed = np.unique(np.linspace(0, len(points) - 1, N_REPLAYED).round().astype(int))
        replayed = replayed[np.argsort(self.mem_bytes[replayed], kind="stable")]
        peaks = [frontier.pass_memory(int(points[i]), ends).peak_bytes(order, n) for i in replayed]
        more = np.array(peaks) + _ahead_bytes(frontier.model) - self.mem_bytes[replayed]
        between = np.rint(np.interp(self.mem_bytes, self.mem_bytes[replayed], more)).astype(np.int64)
        return replace(self, mem_bytes=self.mem_bytes + between)

    def bytes_of(self, stage: int, order: StepOrder) -> np.ndarray:
        """Return the bytes of each point with as many micro-batches in flight and deferred in each stage as an order has.

        Beside what those in flight save these are messages: of each micro-batch in flight its own waits to leave, or its
        gradient to be taken; and those of micro-batches that other stages have in flight wait to be taken. Of those deferred
        it is what gradients of parameters are made of. Where these wait for those that are sent back, one micro-batch has
        first what it saves, then that.
        """
        in_flight, deferred = order.in_flight, order.deferred[stage]
        n_bytes: np.ndarray = self.mem_bytes + (in_flight[stage] - 1) * (self.saved_bytes + self.sent_bytes)
        n_bytes = n_bytes + (order.n_micro_batches - in_flight[stage]) * self.ahead_bytes
        if deferred:
            n_bytes = n_bytes + deferred * self.deferred_bytes
        if is_divided(self._frontier, stage, order):
            n_bytes = n_bytes + np.maximum(0, self.deferred_bytes - self.saved_bytes)
        for source, received in self.received_bytes.items():
            n_bytes = n_bytes + most_waiting(in_flight, source, stage)[0] * received
        return n_bytes


def _times(costs: np.ndarray, factor: float) -> np.ndarray:
    """Return integers multiplied by a factor."""
    product: np.ndarray = np.rint(costs * factor).astype(np.int64)
    return product


def needed_bytes(
    frontier: ModelFrontier, point: int, stage: int, order: StepOrder, messages: Messages | None = None
) -> int:
    """Return the peak of a stage: that of its passes in their order, with the messages that may wait.

    Args:
        messages: other messages than those of :func:`messages_of`.
    """
    model, divides = frontier.model, is_divided(frontier, stage, order)
    if order.schedule == PLAIN or (order.n_micro_batches == 1 and not divides):
        return frontier.needed_bytes(point) + _ahead_bytes(model)
    memory = frontier.pass_memory(point, ends_of(model, divides))
    messages = messages or messages_of(frontier, point, stage, order)
    return memory.peak_bytes(order.orders[stage], order.n_micro_batches, messages) + _ahead_bytes(model)


def needed_of_devices(frontiers: Sequence[ModelFrontier], points: Sequence[int], order: StepOrder) -> tuple[int, ...]:
    """Return for each stage the peak of its devices, on which interleaved stages run together.

    Args:
        points: for each stage the number of its point.
    """
    of_submesh: dict[int, list[int]] = {}
    for stage, submesh in enumerate(order.submeshes):
        of_submesh.setdefault(submesh, []).append(stage)
    found = {submesh: _needed_together(frontiers, points, of_submesh[submesh], order) for submesh in of_submesh}
    return tuple(found[submesh] for submesh in order.submeshes)


def _needed_together(
    frontiers: Sequence[ModelFrontier], points: Sequence[int], stages: Sequence[int], order: StepOrder
) -> int:
    """Return the peak of devices that run some stages."""
    if len(stages) == 1 or order.n_micro_batches == 1:
        return sum(needed_bytes(frontiers[stage], points[stage], stage, order) for stage in stages)
    of_stages = {}
    for stage in stages:
        frontier, point = frontiers[stage], points[stage]
        memory = frontier.pass_memory(point, ends_of(frontier.model, is_divided(frontier, stage, order)))
        of_stages[stage] = memory, messages_of(frontier, point, stage, order)
    passes = order.orders[order.submeshes[stages[0]]]
    ahead = sum(_ahead_bytes(frontiers[stage].model) for stage in stages)
    return peak_together(of_stages, passes, order.n_micro_batches) + ahead


def is_divided(frontier: ModelFrontier, stage: int, order: StepOrder) -> bool:
    """Return whether backward passes of a stage run first what an earlier stage waits for, if one does.

    They do where ranks run in order or gradients of parameters are deferred, and in a stage in which branches begin.
    """
    model = frontier.model
    if not isinstance(model, StageModel):  # it isn't cut
        return False
    waits = any(each.target == stage and each.has_gradient for each in model.stages.crossings)
    divides = runs_in_order(frontier.hardware) or order.deferred[stage] > 0 or bool(model.stages.early[stage])
    return waits and divides


def ends_of(model: Model, divides: bool) -> StageEnds:
    """Return what a stage exchanges with others; see :class:`.StageEnds`."""
    assert isinstance(model, StageModel)
    received = [each for each in model.stages.crossings if each.target == model.index]
    returned = frozenset(each.tensor for each in received if each.has_gradient)
    return StageEnds(frozenset(each.tensor for each in received), returned, divides)


def messages_of(frontier: ModelFrontier, point: int, stage: int, order: StepOrder) -> Messages:
    """Return the messages of a stage; all rows that are looked up ahead for it are sent when the step begins."""
    costs = StageCosts.of(frontier, np.array([point]))
    received = [(int(each[0]), order.in_flight[source]) for source, each in costs.received_bytes.items()]
    return Messages(int(costs.sent_bytes[0]), (*received, (int(costs.ahead_bytes[0]), order.n_micro_batches)))


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
    if not isinstance(model, StageModel):  # it isn't cut
        return 0
    ahead = {each.tensor for each in model.stages.crossings if each.is_ahead and each.source == model.index}
    return 2 * sum(model.stages.whole.graph.tensors[name].mem_bytes for name in ahead)


def saved_bytes(frontier: ModelFrontier, points: np.ndarray) -> np.ndarray:
    """Return the bytes that a micro-batch saves for its backward pass, at most: all that isn't held for the whole step.

    What is rematerialized is there for one micro-batch at a time, so others don't have it.

    Args:
        points: the numbers of points, int64[K].
    """
    graph, costing = frontier.model.graph, frontier.costing

    def held(op: Operator, config: Config, interface: Interface) -> int:
        return costing.mem_bytes(op, rule_of(op), config, interface)

    once = _summed(frontier, points, lambda op: graph.n_runs(_result(op)) == 1, held)
    again = frontier.built.missing_bytes(frontier.found.strategies[points])
    return np.maximum(0, frontier.costs.mem_bytes[points] - again - once - _copies_made_once(frontier, points))


def _copies_made_once(frontier: ModelFrontier, points: np.ndarray) -> np.ndarray:
    """Return the bytes of copies of what is computed once a step, such as parameters, and of sums of their gradients.

    All micro-batches use the same copies. They are costs of the edges from what makes them, and of nodes of their own.
    """
    built, graph, chosen = frontier.built, frontier.model.graph, frontier.found.strategies[points]
    n_operators = len(built.nodes)
    of_nodes = [{tensor.name for op in node.operators for tensor in op.outputs} for node, _ in built.nodes]
    made = dict(enumerate(of_nodes)) | {copy.node: {copy.tensor.name} for copy in built.shared}
    made |= {choice.node: {choice.copy.tensor} for choice in built.choices if choice.node >= n_operators}
    once = {node for node, names in made.items() if names and all(graph.n_runs(name) == 1 for name in names)}
    total = np.zeros(len(points), np.int64)
    for number in once - set(range(n_operators)):
        total += built.problem.nodes[number].mem_bytes[chosen[:, number]]
    for edge in built.problem.edges:
        if edge.source in once or (edge.target in once and edge.target >= n_operators):
            total += edge.mem_bytes[chosen[:, edge.source], chosen[:, edge.target]]
    return total


def deferred_bytes(frontier: ModelFrontier, points: np.ndarray) -> np.ndarray:
    """Return about what a micro-batch keeps for the gradients that no earlier stage waits for, in bytes, int64[K].

    These are made of the gradients of the results of operators that have a gradient of either kind, and of what operators
    read; what several read is counted of the first one. Where all gradients of an operator wait, so does that of its
    result.

    Args:
        points: the numbers of points, int64[K].
    """
    model = frontier.model
    assert isinstance(model, StageModel)
    graph, backward, urgent = model.graph, model.backward, _urgent(model)

    of_gradients = {op.name: [i for i, _ in op.operands if (op.name, i) in backward.gradients] for op in _in_passes(graph)}
    late = {
        name: [i for i, tensor in graph.operators[name].operands if i in positions and tensor.name not in urgent]
        for name, positions in of_gradients.items()
    }
    first: dict[str, str] = {}
    for op in graph.operators.values():
        for tensor in _read(op, backward) if late.get(op.name) else ():
            first.setdefault(tensor.name, op.name)

    def of_operator(op: Operator, config: Config, interface: Interface) -> int:
        results = list(zip(op.outputs, interface.results, strict=True))
        operands = [(i, tensor, each.layout) for i, tensor in op.operands if (each := interface.operands[i]) is not None]
        operands = [each for each in operands if graph.n_runs(each[1].name) > 1]
        is_divided = len(late[op.name]) < len(of_gradients[op.name])
        if is_divided and not has_separate_gradients(op):
            return sum(shard_bytes(tensor, layout) for i, tensor, layout in operands if i in late[op.name])
        layouts = {tensor.name: (tensor, layout) for tensor, layout in results}
        layouts |= {tensor.name: (tensor, layout) for _, tensor, layout in operands}
        read = [layouts[t.name] for t in _read(op, backward) if t.name in layouts and first[t.name] == op.name]
        return sum(shard_bytes(*each) for each in (*(results if is_divided else ()), *dict.fromkeys(read)))

    return _summed(frontier, points, lambda op: bool(late.get(op.name)), of_operator)


def _read(op: Operator, backward: Backward) -> list[Tensor]:
    """Return the tensors that an operator's gradient reads."""
    operands = [tensor for i, tensor in op.operands if (op.name, i) in backward.residual_operands]
    return operands + [tensor for tensor in op.outputs if tensor.name in backward.residual_results]


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
