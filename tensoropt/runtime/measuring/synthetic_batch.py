"""Make batches for models whose data isn't available: of the right shapes and types, with indices in range."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from ...common.reach import reached
from ...ir.graph import PLACEHOLDER, Graph, Operator, Tensor
from ...program.fetch import Fetch
from ..step.functions import Feed

WARM_STEPS = 3
"""Steps that run before any is timed: in these, graphs are built and memory is first touched."""

# By operator type: the position of the operand with indices, and the operand (None: the result) and the dimension whose
# extent bounds them.
_INDICES: dict[str, tuple[int, int | None, int]] = {
    "SparseSoftmaxCrossEntropyWithLogits": (1, 0, -1),
    "GatherV2": (1, 0, 0),
    "ResourceGather": (1, 0, 0),
    "UnsortedSegmentSum": (1, None, 0),
}
_VIEWS = ("Reshape", "Squeeze", "ExpandDims", "Cast", "Identity", "StridedSlice")


def synthetic_step(graph: Graph) -> tuple[Fetch, dict[Feed, np.ndarray]]:
    """Return the fetches and feeds of a training step: all training steps, their losses, and a synthetic batch."""
    fetch = Fetch(tuple((step.loss, False) for step in graph.backward_passes), tuple(graph.train_steps))
    return fetch, {Feed(tensor, False): value for tensor, value in synthetic_batch(graph).items()}


def synthetic_batch(graph: Graph) -> dict[Tensor, np.ndarray]:
    """Return a value for each placeholder of the training steps, equal on all ranks."""
    rng = np.random.default_rng(0)
    consumers: dict[str, list[Operator]] = {}
    for op in graph.step_operators:
        for _, tensor in op.operands:
            consumers.setdefault(tensor.name, []).append(op)
    return {
        op.result: _value(op.result, _bound(op.result, consumers), rng)
        for op in graph.step_operators
        if op.type == PLACEHOLDER
    }


def _value(tensor: Tensor, bound: int, rng: np.random.Generator) -> np.ndarray:
    kind = tf.as_dtype(tensor.dtype)
    if kind.is_floating:
        return np.asarray(rng.uniform(0.0, 1.0, tensor.shape), kind.as_numpy_dtype)
    return np.asarray(rng.integers(0, 2 if kind == tf.bool else bound, tensor.shape), kind.as_numpy_dtype)


def _bound(tensor: Tensor, consumers: dict[str, list[Operator]]) -> int:
    """Return the bound below which a tensor's values must stay, as indices in all its consumers, also through views.

    It is 1, so that all indices are 0, if no consumer gives a bound.
    """

    def viewed(name: str) -> list[str]:
        return [result.name for op in consumers.get(name, ()) if op.type in _VIEWS for result in op.outputs]

    names, bounds = reached([tensor.name], viewed), []
    for op in (op for name in names for op in consumers.get(name, ()) if op.type in _INDICES):
        position, bound_position, dimension = _INDICES[op.type]
        dimension = int(op.statics[2]) if op.type == "GatherV2" else dimension  # the axis
        indices, bounding = op.inputs[position], op.result if bound_position is None else op.inputs[bound_position]
        if indices is not None and indices.name in names and bounding is not None:
            bounds.append(bounding.shape[dimension])
    return min(bounds, default=1)
