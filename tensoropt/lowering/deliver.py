"""Deliveries in the graph: a path of steps forward, and the path between the gradient layouts backward.

A whole path is one callback. All callbacks are chained in the order in which they were created, which is the same on every
rank: no deadlock, by construction. The chain is of data, a number that each callback takes from the one before: TensorFlow's
graph optimizer removes control dependencies. A path without communication is made of TensorFlow's own operators instead.

The gradient is attached by a registered gradient of ``IdentityN``, found by a number among the deliveries of the graph
being built; ``tf.custom_gradient`` would add to a global registry with each delivery.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from ..deliveries import Delivery, Route
from ..reschedule.halo import HaloStep
from ..reschedule.layout import Layout, Shape, axes_text
from ..reschedule.mesh import Mesh
from ..reschedule.path import Path
from ..reschedule.steps import Step
from .halo import local_halo
from .local import opaque, uniform_shape
from .operators import Values

Arrays = Sequence[np.ndarray]
GRADIENT_TYPE, NUMBER = "TensorOptDelivery", "_tensoropt_delivery"
_TURN = np.zeros((), np.int32)


class Backend(Protocol):
    """What carries out paths: real collectives for one rank, or a simulation of all ranks."""

    @property
    def mesh(self) -> Mesh: ...

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that are built here."""
        ...

    def runner(self, path: Path) -> Callable[..., list[np.ndarray]]:
        """A function from the pieces of ``ranks`` before a path to those after it."""
        ...

    def maximum(self, path: Path) -> Callable[..., list[np.ndarray]]:
        """The same for a path of one all-reduce that takes maxima instead of sums."""
        ...


@dataclass(frozen=True, slots=True)
class Collective:
    """One entry of the log of collectives, equal on all ranks."""

    kind: str
    axes: str
    shape: Shape
    dtype: str
    operator: str

    def __str__(self) -> str:
        return f"{self.kind}({self.axes}) of {self.dtype}{list(self.shape)} for {self.operator}"


@dataclass
class Deliverer:
    """Emits deliveries into the graph that is being built, and logs their collectives in order."""

    backend: Backend
    log: list[Collective] = field(default_factory=list)
    _turn: tf.Tensor | None = None
    _backward: list[Callable[[Values], Values]] = field(default_factory=list)

    def deliver(self, delivery: Delivery, route: Route, values: Values, operator: str) -> Values:
        """Bring local values along a route; gradients come back along its backward path."""
        if route.is_free:
            return values
        results = self._run(route.forward, values, delivery.reduction, operator)
        if route.backward is None:
            return results
        backward = route.backward

        def take_back(gradients: Values) -> Values:
            return self._run(backward, gradients, "sum", operator)

        return self._with_gradient(values, results, take_back)

    def _run(self, path: Path, values: Values, reduction: str, operator: str) -> Values:
        if not path.steps:
            return values
        if not path.communicates:
            return [_run_locally(path, rank, value) for rank, value in zip(self.backend.ranks, values, strict=True)]
        dtype = values[0].dtype
        for step in path.steps:
            if step.communicates:
                axes = axes_text(step.group_axes)
                self.log.append(Collective(step.kind, axes, path.shape, dtype.name, operator))
        runner = self.backend.runner(path) if reduction == "sum" else self.backend.maximum(path)

        def in_turn(turn: np.ndarray, *pieces: np.ndarray) -> list[np.ndarray]:
            return [_TURN, *runner(*pieces)]

        turn = tf.constant(_TURN) if self._turn is None else self._turn
        types = [tf.int32, *[dtype] * len(values)]
        self._turn, *results = tf.numpy_function(in_turn, [turn, *values], types, stateful=True, name="collective")
        self._turn.set_shape([])
        for result in results:
            result.set_shape(_shape_after(path.steps[-1], path.shape))
        return list(results)

    def _with_gradient(self, values: Values, results: Values, take_back: Callable[[Values], Values]) -> Values:
        number = len(self._backward)
        self._backward.append(take_back)
        graph = tf.compat.v1.get_default_graph()
        # Forward values pass through as well, so that TensorFlow sees the path from operands to results.
        with graph.gradient_override_map({"IdentityN": GRADIENT_TYPE}):
            passed = tf.identity_n([*values, *results], name="delivery")
        passed[0].op._set_attr(NUMBER, tf.compat.v1.AttrValue(i=number))
        return list(passed[len(values) :])

    @contextmanager
    def building(self) -> Iterator[None]:
        """While this lasts, gradients of the graph's deliveries are emitted by this object."""
        _building.append(self)
        try:
            yield
        finally:
            _building.pop()
            self._backward.clear()

    def gradient(self, number: int, gradients: Values) -> Values:
        return self._backward[number](gradients)


_building: list[Deliverer] = []


@tf.RegisterGradient(GRADIENT_TYPE)
def _delivery_gradient(op: tf.Operation, *gradients: Any) -> list[Any]:
    half = len(op.inputs) // 2
    dense = [tf.convert_to_tensor(gradient) for gradient in gradients[half:]]
    return [*_building[-1].gradient(op.get_attr(NUMBER), dense), *[None] * half]


def _run_locally(path: Path, rank: int, value: tf.Tensor) -> tf.Tensor:
    for step in path.steps:
        if isinstance(step, HaloStep):
            value = local_halo(step, path.shape, rank, value)
        else:
            value = _local_step(step, path.shape, rank, value)
        value.set_shape(_shape_after(step, path.shape))
    return value


def _shape_after(step: Step | HaloStep, shape: Shape) -> tf.TensorShape:
    """The local shape as far as all ranks agree on it."""
    return tf.TensorShape(step.uniform_shape(shape)) if isinstance(step, HaloStep) else uniform_shape(step.target, shape)


def _relative(inner: Layout, outer: Layout, shape: Shape, rank: int) -> tuple[list[int], list[int], list[int]]:
    """Where a rank's piece in one layout lies within its piece in a coarser one: offsets, extents, rest behind."""
    bounds = list(zip(inner.bounds(shape, rank), outer.bounds(shape, rank), strict=True))
    before = [start - origin for (start, _), (origin, _) in bounds]
    extents = [end - start for (start, end), _ in bounds]
    behind = [limit - end for (_, end), (_, limit) in bounds]
    return before, extents, behind


def _local_step(step: Step, shape: Shape, rank: int, value: tf.Tensor) -> tf.Tensor:
    if step.kind == "slice":
        before, extents, _ = _relative(step.target, step.source, shape, rank)
        return tf.slice(value, opaque(before, tf.int32), opaque(extents, tf.int32))
    if step.kind == "pad":
        before, _, behind = _relative(step.source, step.target, shape, rank)
        # Not Pad: with oneDNN TensorFlow merges it into a convolution that follows, which then pads rows and columns only.
        return tf.raw_ops.PadV2(
            input=value,
            paddings=opaque(np.stack([before, behind], axis=1), tf.int32),
            constant_values=tf.zeros((), value.dtype),
        )
    # By selection and not by multiplication: infinity times zero is not a number.
    keeps = opaque(int(step.source.mesh.index_along(step.axes, rank) == 0), tf.int32)
    return tf.where(tf.equal(keeps, 1), value, tf.zeros_like(value))
