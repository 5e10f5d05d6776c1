"""Search stages that are alike once, such as those of equal layers.

Two stages are alike if their models differ in names alone (:func:`form_of`), and so does what is forced on them. Then a
state of a node means the same in both problems, and so do points and peaks. The problem of the second stage isn't built:
it is that of the first one with the names of its own operators.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from ...costs.model_costs import costing_of
from ...ft import ALGORITHMS
from ...ir.graph import CONSTANT, Graph, Operator, Tensor
from ...program.fast_peak import Peaks
from ...reschedule.mesh import Mesh
from ...sharding.model import Model
from ...sharding.resharding import PathFinder
from ..frontiers.find_frontier import NO_REMAT
from ..frontiers.model_frontier import ModelFrontier
from ..frontiers.point_peaks import PeakCounter
from ..request import Request, searched

_NAMES = frozenset("container shared_name name".split())
"""Attributes that name something."""


@dataclass(frozen=True, eq=False)
class AlikeStages:
    """The frontiers of the stages that were searched so far, by what stages that are alike are equal in."""

    _found: dict[tuple[object, ...], ModelFrontier] = field(default_factory=dict)

    def searched(self, request: Request, parallelism: int, is_enough: Callable[[ModelFrontier], bool]) -> ModelFrontier:
        """Return what :func:`..request.searched` does, without a search where a stage like it was searched before."""
        n, asked_of = request.micro_batches or 1, None if request.wants_frontier else is_enough
        if request.algorithm not in ALGORITHMS:
            return searched(request, parallelism, asked_of)
        mesh = request.hardware.mesh(parallelism)
        model = request.model.in_micro_batches(n, mesh.n_devices)
        key = (form_of(model, request.force), parallelism, n)
        if key in self._found:
            moved = _transferred(self._found[key], request, model, mesh)
            if moved.note != NO_REMAT or is_enough(moved):
                return moved
        self._found[key] = searched(request, parallelism, asked_of)
        return self._found[key]


def _transferred(found: ModelFrontier, request: Request, model: Model, mesh: Mesh) -> ModelFrontier:
    """Return a frontier as that of a model that differs from its own in names alone."""
    costing = costing_of(model, request.hardware, mesh, request.known)
    built = found.built.of_alike(found.model.graph, model.graph)
    peaks = Peaks(model, costing, PathFinder(costing.reshardings.steps))
    counter = PeakCounter(model, built, peaks, found.peaks_by_states, found.passes_by_states)
    return replace(
        found, model=model, built=built, costing=costing, counter=counter, seconds_by_phase={}, _peaks={}, _simulated={}
    )


def form_of(model: Model, force: Mapping[str, Mapping[str, int]]) -> str:
    """Return a hash that is equal for two models only if these, and what is forced on them, differ in names alone."""
    graph = model.graph
    numbers = {name: number for number, name in enumerate(graph.operators)}
    tensors = {tensor.name: (i, k) for i, op in enumerate(graph.operators.values()) for k, tensor in enumerate(op.outputs)}
    backward, text, full_batch = model.backward, hashlib.sha256(), graph.full_batch.tensors
    micro_batching = graph.micro_batching
    forms: Mapping[str, int] = {} if micro_batching is None else micro_batching.forms
    once: frozenset[tuple[str, int]] = frozenset() if micro_batching is None else micro_batching.once
    after: frozenset[str] = frozenset() if micro_batching is None else micro_batching.after

    def of_result(tensor: Tensor) -> tuple[object, ...]:
        form, is_read = forms.get(tensor.name), tensor.name in backward.residual_results
        return tensor.shape, tensor.dtype, full_batch[tensor.name].shape, form, is_read

    def of_operand(each: tuple[str, int]) -> list[bool]:
        return [each in found for found in (backward.gradients, backward.residual_operands, once)]

    def of_operator(op: Operator) -> tuple[object, ...]:
        statics = [(i, value.tobytes()) for i, value in sorted(op.statics.items())] if op.type != CONSTANT else []
        attrs = sorted((key, str(value)) for key, value in op.attrs.items() if key not in _NAMES)
        return (
            op.type,
            [tensor and tensors[tensor.name] for tensor in op.inputs],
            [of_result(tensor) for tensor in op.outputs],
            (statics, attrs, op.updates and numbers[op.updates]),
            [numbers.get(name, name) for name in op.controls],
            [of_operand((op.name, i)) for i, _ in op.operands],
            op.name in after,
            repr(backward.bodies.get(op.name)),
            graph.updates.get(op.name),
            sorted(force.get(op.name, {}).items()),
        )

    for op in graph.operators.values():
        text.update(repr(of_operator(op)).encode())
    text.update(repr(_of_step(graph, numbers, tensors)).encode())
    return text.hexdigest()


def _of_step(graph: Graph, numbers: Mapping[str, int], tensors: Mapping[str, tuple[int, int]]) -> tuple[object, ...]:
    """Return the training step, with operators and tensors by number."""
    (step,) = graph.train_steps.values()

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
