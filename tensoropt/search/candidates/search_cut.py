"""Search a model that is cut one way: each stage as a model of its own, in micro-batches; stages that are alike once.

Two stages are alike if their models differ in names alone (:func:`form_of`), and so does what is forced on them. Then a
state of a node means the same in both problems, and so do points and peaks. The problem of the second stage isn't built:
it is that of the first one with the names of its own operators.

Candidates are taken one after the other, as what is found decides which are searched at all. Where stages are asked for or
may pay, workers meanwhile search others of the candidate and of those that come next. What they find is used where this
process would search just that, so the answer doesn't depend on their number.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from ...common.process.progress import Progress
from ...common.process.workers import Calls, can_be_sent, n_workers
from ...costs.operator_costs import costing_of
from ...ft import ALGORITHMS, BY_DEFAULT
from ...ir.graph import CONSTANT, Operator, Tensor, TrainStep
from ...profiling.available_memory import available_memory_bytes
from ...program.orders.schedule import StepOrder, tried_orders
from ...rules.registry import are_own
from ...sharding.model import Model
from ...sharding.stages import StageModel
from ..frontiers.find_frontier import NO_REMAT, searched
from ..frontiers.model_frontier import ModelFrontier
from ..request import Request
from ..stages.cuts import Cut
from ..stages.memory import StageCosts, needed_bytes
from ..stages.placement import of_stage
from ..stages.points import SearchedStages
from ..stages.times import messages, transfers, works
from .candidate import Candidate, Cutting, least_bytes

_NAMES = frozenset("container shared_name name".split())
"""Attributes that name something."""
WORTH_WORKERS = 400
"""Operators of a model from which worker processes pay, which take a second to start."""
IsEnough = Callable[[ModelFrontier], bool]
Orders = Sequence[StepOrder]


@dataclass(eq=False)
class AlikeStages:
    """The frontiers of the stages that were searched so far, by what stages that are alike are equal in.

    Attributes:
        calls: searches that workers make; None without workers.
    """

    calls: Calls | None = None
    _found: dict[tuple[object, ...], ModelFrontier] = field(default_factory=dict)
    _ahead: dict[tuple[object, ...], set[object]] = field(default_factory=dict)  # the candidates of each call
    _progress: Progress | None = None

    def start_workers(self, request: Request) -> None:
        """Start workers beside this process, if the stages of a request's model are worth it and can be sent."""
        sendable = replace(request, progress=None, tell=None)
        if len(request.model.graph.operators) >= WORTH_WORKERS and are_own() and can_be_sent(sendable):
            n = n_workers(available_memory_bytes(1)) - 1
            self.calls = Calls(n, __name__, self._report) if n else None

    def close(self) -> None:
        if self.calls is not None:
            self.calls.close()

    def search_ahead(self, candidate: object, request: Request, size: int, is_enough: IsEnough, orders: Orders) -> None:
        """Have a worker search a stage of a candidate on so many devices, if none has or will search one like it."""
        if self.calls is not None and request.algorithm in ALGORITHMS:
            form = _form(request, size)
            key = _ahead_key(form, request, candidate)
            if form in self._found:
                return
            if key not in self._ahead:
                criterion = None if request.wants_frontier else is_enough
                arguments = replace(request, progress=None, tell=None), size, criterion, orders
                self.calls.add(key, _search_apart, arguments)
            self._ahead.setdefault(key, set()).add(candidate)

    def drop(self, candidate: object) -> None:
        """Leave out the searches for a candidate alone that no worker has begun."""
        for key, candidates in list(self._ahead.items()):
            candidates.discard(candidate)
            if not candidates and self.calls is not None and self.calls.drop(key):
                del self._ahead[key]

    def searched(self, request: Request, parallelism: int, is_enough: IsEnough, candidate: object = None) -> ModelFrontier:
        """Return what :func:`.searched` does, without a search where a stage like it was searched before.

        Args:
            candidate: what has the stage, which may have been searched ahead.
        """
        criterion = None if request.wants_frontier else is_enough
        if request.algorithm not in ALGORITHMS:
            return searched(request, parallelism, criterion)
        form = _form(request, parallelism)
        if form in self._found:
            twin = _transferred(self._found[form], request, parallelism)
            if twin.note != NO_REMAT or is_enough(twin):
                return twin
        key = _ahead_key(form, request, candidate)
        if self.calls is not None and self._ahead.pop(key, None) is not None:
            self._progress = request.progress
            frontier = _transferred(self.calls.result(key), request, parallelism)
        else:
            frontier = searched(request, parallelism, criterion)
        self._found[form] = frontier
        return frontier

    def _report(self, key: object, *values: Any) -> None:
        if self._progress is not None:
            self._progress(*values)


def _search_apart(
    request: Request, parallelism: int, is_enough: IsEnough | None, orders: Orders, report: Progress
) -> ModelFrontier:
    """Return the frontier of a stage, with its peaks counted in some orders of a step's passes."""
    frontier = searched(replace(request, progress=report), parallelism, is_enough)
    costs, model = StageCosts.of(frontier), frontier.model
    assert isinstance(model, StageModel)
    for order in orders:
        costs.bytes_of(model.index, order)
    return frontier


def _ahead_key(form: tuple[object, ...], request: Request, candidate: object) -> tuple[object, ...]:
    """Return what a search must be equal in to be used: how far it goes may depend on the candidate."""
    return *form, request.budget, None if request.wants_frontier else (candidate, id(request.model))


def _form(request: Request, parallelism: int) -> tuple[object, ...]:
    n = request.micro_batches or 1
    model = request.model.in_micro_batches(n, request.hardware.mesh(parallelism).n_devices)
    return form_of(model, request.force), parallelism, n


def _transferred(frontier: ModelFrontier, request: Request, parallelism: int) -> ModelFrontier:
    """Return a frontier as that of a request whose model differs from its own at most in names."""
    mesh = request.hardware.mesh(parallelism)
    model = request.model.in_micro_batches(request.micro_batches or 1, mesh.n_devices)
    return frontier.of_alike(model, request.hardware, costing_of(model, request.hardware, mesh, request.known))


def form_of(model: Model, force: Mapping[str, Mapping[str, int]]) -> str:
    """Return a hash that is equal for two models only if these, and what is forced on them, differ in names alone."""
    graph = model.graph
    numbers = {name: number for number, name in enumerate(graph.operators)}
    tensors = {tensor.name: (i, k) for i, op in enumerate(graph.operators.values()) for k, tensor in enumerate(op.outputs)}
    backward, text, full_batch = model.backward, hashlib.sha256(), graph.full_batch.tensors
    micro_batching = graph.micro_batching
    forms: Mapping[str, int] = {} if micro_batching is None else micro_batching.forms
    once_operands: frozenset[tuple[str, int]] = frozenset() if micro_batching is None else micro_batching.once
    late_names: frozenset[str] = frozenset() if micro_batching is None else micro_batching.after
    operand_sets = *backward.passes.values(), backward.residual_operands, once_operands

    def result_form(tensor: Tensor) -> tuple[object, ...]:
        form, is_read = forms.get(tensor.name), tensor.name in backward.residual_results
        return tensor.shape, tensor.dtype, full_batch[tensor.name].shape, form, is_read

    def operator_form(op: Operator) -> tuple[object, ...]:
        statics = [(i, value.tobytes()) for i, value in sorted(op.statics.items())] if op.type != CONSTANT else []
        attrs = sorted((key, str(value)) for key, value in op.attrs.items() if key not in _NAMES)
        return (
            op.type,
            [tensor and tensors[tensor.name] for tensor in op.inputs],
            [result_form(tensor) for tensor in op.outputs],
            (statics, attrs, op.updates and numbers[op.updates]),
            [numbers.get(name, name) for name in op.controls],
            [[(op.name, i) in operands for operands in operand_sets] for i, _ in op.operands],
            op.name in late_names,
            repr(backward.bodies.get(op.name)),
            graph.updates.get(op.name),
            sorted(force.get(op.name, {}).items()),
        )

    for op in graph.operators.values():
        text.update(repr(operator_form(op)).encode())
    text.update(repr([_step_form(step, numbers, tensors) for step in graph.train_steps.values()]).encode())
    return text.hexdigest()


def _step_form(step: TrainStep, numbers: Mapping[str, int], tensors: Mapping[str, tuple[int, int]]) -> tuple[object, ...]:
    """Return a training step, with operators and tensors by number."""

    def number(tensor: Tensor | None) -> object:
        return tensor and tensors[tensor.name]

    return (
        number(step.loss),
        [numbers[name] for name in step.variables],
        step.optimizer.structure,
        step.step_counter and numbers[step.step_counter],
        [numbers.get(name, name) for name in step.controls],
        [number(tensor) for tensor in step.gradients],
    )


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
