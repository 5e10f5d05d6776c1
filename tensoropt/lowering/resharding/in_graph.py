"""Emit paths that communicate as TensorFlow operators.

What is sent is cut out and flattened into one row; what arrives is written to its position. Nothing is chained: this module
is for collective operators that need no order and block no thread while they wait.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from ...common.process.watchdog import ChainState
from ...reschedule.bounds import Slices
from ...reschedule.halo import HALO, HaloStep, fill_value, rank_halo
from ...reschedule.layout import Axes, Layout, Shape
from ...reschedule.mesh import Mesh
from ...reschedule.path import Path
from ...reschedule.rank_steps import rank_step
from ...reschedule.steps import Step
from ...reschedule.summing import Array
from ..localise import local_shape, opaque
from ..operators import Values
from .local_steps import LocalSteps, shape_after
from .path_callbacks import CollectiveRequest, Runner
from .reshard import Collective


class GraphCollectives(Protocol):
    """Collectives as operators, on flat tensors of a group's members in the order of their ranks."""

    joins: bool
    """Whether several sums should share a collective."""
    in_rank_order: bool
    """Whether numbers are added in the order of ranks, which gives the simulation's bits."""

    @property
    def reduce_scatter(self) -> Callable[[Axes, tf.Tensor, Sequence[Sequence[int]], str], tf.Tensor] | None:
        """Return what gives each member its part of the sum, by the arguments of an all-to-all; None if there is nothing."""

    @property
    def call(self) -> Callable[[Runner, Sequence[tf.Tensor], Sequence[tf.DType]], Values] | None:
        """Return what emits a callback behind all collectives so far; None if these have no order."""

    def running(self) -> AbstractContextManager[None]:
        """Return the context of a run of a function with collectives."""

    def all_gather(self, axes: Axes, flat: tf.Tensor, counts: Sequence[int], name: str) -> tf.Tensor:
        """Return the members' tensors, concatenated; rank r of the mesh has ``counts[r]`` elements."""

    def all_to_all(self, axes: Axes, flat: tf.Tensor, counts: Sequence[Sequence[int]], name: str) -> tf.Tensor:
        """Return what the members send to this rank, concatenated; rank r sends ``counts[r][i]`` elements to member i."""

    def all_reduce(self, axes: Axes, value: tf.Tensor, op: str, name: str) -> tf.Tensor:
        """Return the members' tensors combined by "sum" or "max"."""


_SCOPE = "collectives/"
_NO_NAME = re.compile(r"[^A-Za-z0-9_.]")
"""Characters that the names of operators can't have."""


@dataclass(frozen=True)
class GraphBackend:
    """A backend with one rank, this process, whose collectives are operators of its graph.

    Attributes:
        waiting: records that this rank runs a function that has collectives. Which of them it is in, or whether it computes,
            can't be seen from outside.
        on_run: called before each such run.
    """

    mesh: Mesh
    rank: int
    collectives: GraphCollectives
    waiting: ChainState = field(default_factory=ChainState)
    on_run: Callable[[], None] = lambda: None

    @property
    def ranks(self) -> tuple[int, ...]:
        return (self.rank,)

    def emitter(self) -> InGraph:
        return InGraph(self.collectives, self.rank)

    def empty(self, shape: Shape, dtype: npt.DTypeLike) -> Array:
        """Return an uninitialised array."""
        return np.empty(shape, dtype)

    @contextmanager
    def watched(self, log: Sequence[Collective]) -> Iterator[None]:
        """Return a context in which ``waiting`` records that this rank runs a function with these collectives."""
        if not log:
            yield
            return
        self.on_run()
        description = f"a run with {len(log)} collectives, the first {log[0]}"
        with self.waiting.within(description, may_compute=True), self.collectives.running():
            yield


class InGraph:
    """An emitter that emits paths as operators, on one rank."""

    def __init__(self, collectives: GraphCollectives, rank: int) -> None:
        self._collectives, self._rank = collectives, rank
        self._local_steps = LocalSteps()

    @property
    def joins(self) -> bool:
        """Return whether several gradients are summed in one collective."""
        return self._collectives.joins

    def call(self, run: Runner, operands: Sequence[tf.Tensor], dtypes: Sequence[tf.DType]) -> Values:
        """Emit a callback behind all collectives so far; return what ``run`` makes of the operands."""
        assert self._collectives.call is not None, "plans whose collectives have no order were refused"
        with tf.name_scope(_SCOPE):
            return self._collectives.call(run, operands, dtypes)

    def emit_together(self, paths: Sequence[Path], values: Sequence[Values], request: CollectiveRequest) -> list[Values]:
        """Return, by path, the local values after the paths, which share one all-reduce."""
        (step,) = paths[0].steps
        assert isinstance(step, Step)
        flat = [tf.reshape(value, [-1]) for (value,) in values]
        ranks = range(step.source.mesh.n_devices)
        counts = np.asarray([[_size(path.steps[0].source, path.shape, rank) for path in paths] for rank in ranks])
        with tf.name_scope(_SCOPE):
            name = _NO_NAME.sub(".", f"{step.kind}_{'_'.join(map(str, step.group_axes))}_for_{request.operator}_and_others")
            total = self._summed(step, tf.concat(flat, axis=0), counts.sum(axis=1).tolist(), name)
            parts = tf.split(total, opaque(counts[self._rank].tolist(), tf.int32), num=len(paths))
            shapes = [local_shape(path.steps[0].target, path.shape, self._rank) for path in paths]
            results = [tf.reshape(part, shape) for part, shape in zip(parts, shapes, strict=True)]
            for path, result in zip(paths, results, strict=True):
                result.set_shape(shape_after(path.steps[-1], path.shape))
        return [[result] for result in results]

    def emit(self, path: Path, values: Values, request: CollectiveRequest) -> Values:
        """Return the local value after a path."""
        (value,) = values
        # In a name scope that isn't that of the gradients: what follows from a collective mustn't stop the backward pass
        # (:mod:`..order`).
        with tf.name_scope(_SCOPE), tf.control_dependencies(request.after):
            for step in path.steps:
                name = _NO_NAME.sub(".", f"{step.kind}_{'_'.join(map(str, step.group_axes))}_for_{request.operator}")
                if not step.communicates:
                    value = self._local_steps.step(step, path.shape, self._rank, value)
                elif isinstance(step, HaloStep):
                    value = self._halo(step, path.shape, value, name)
                elif step.kind == "all_reduce":
                    value = self._reduced(step, path.shape, value, request.reduction, name)
                else:
                    value = self._moved(step, path.shape, value, name)
                value.set_shape(shape_after(step, path.shape))
        return [value]

    def _reduced(self, step: Step, shape: Shape, value: tf.Tensor, reduction: str, name: str) -> tf.Tensor:
        if reduction != "sum":
            return self._collectives.all_reduce(step.group_axes, value, reduction, name)
        counts = [_size(step.source, shape, rank) for rank in range(step.source.mesh.n_devices)]
        total = self._summed(step, tf.reshape(value, [-1]), counts, name)
        return tf.reshape(total, local_shape(step.target, shape, self._rank))

    def _summed(self, step: Step, flat: tf.Tensor, counts: Sequence[int], name: str) -> tf.Tensor:
        """Return the sum of the members' flat tensors; that of rank r has ``counts[r]`` elements, as its group's all have.

        More than two members add one chunk each, in the members' order, since sums depend on the order.
        """
        axes, mesh = step.group_axes, step.source.mesh
        n_members = mesh.size_of(axes)
        if n_members == 2 or not self._collectives.in_rank_order:
            return self._collectives.all_reduce(axes, flat, "sum", name)
        chunk = -(-max(counts) // n_members)
        is_padded = any(count != chunk * n_members for count in counts)
        if is_padded:
            flat = padded(flat, chunk * n_members - counts[self._rank])
        received = self._collectives.all_to_all(axes, flat, [[chunk] * n_members] * len(counts), name)
        chunk_sum = self._sum(received, n_members, np.asarray([chunk], np.int32))
        total = self._collectives.all_gather(axes, chunk_sum, [chunk] * len(counts), name)
        return total[: opaque(counts[self._rank], tf.int32)] if is_padded else total

    def _moved(self, step: Step, shape: Shape, value: tf.Tensor, name: str) -> tf.Tensor:
        """Return the value after an all-gather, a reduce-scatter or an all-to-all."""
        moves = rank_step(step, shape, self._rank)
        # All ranks must emit the same operators, so what all of them send and receive is looked at.
        steps = [rank_step(step, shape, rank) for rank in range(step.source.mesh.n_devices)]
        axes, own_shape = step.group_axes, local_shape(step.target, shape, self._rank)
        if step.kind == "all_gather":
            counts = [_size(step.source, shape, rank) for rank in range(len(steps))]
            received = self._collectives.all_gather(axes, tf.reshape(value, [-1]), counts, name)
        else:
            is_in_place = all(rank_part.sends_in_place for rank_part in steps)
            flat = tf.reshape(value, [-1]) if is_in_place else _in_a_row([_part(value, part) for part in moves.send_slices])
            send_counts = [_counts(rank_part.send_slices) for rank_part in steps]
            is_free = len(moves.recv_shapes) == 2 or not self._collectives.in_rank_order
            if step.kind == "reduce_scatter" and is_free and self._collectives.reduce_scatter is not None:
                return tf.reshape(self._collectives.reduce_scatter(axes, flat, send_counts, name), own_shape)
            received = self._collectives.all_to_all(axes, flat, send_counts, name)
        if step.kind == "reduce_scatter":
            return self._sum(received, len(moves.recv_shapes), own_shape)
        if all(rank_part.receives_in_place for rank_part in steps):
            return tf.reshape(received, own_shape)
        # Wait for what was received: else TensorFlow would allocate the results of all paths when a step begins.
        with tf.control_dependencies([received]):
            result = tf.raw_ops.Empty(shape=own_shape, dtype=value.dtype)
        return _placed(result, moves.recv_slices, _shards(received, moves.recv_slices))

    def _sum(self, received: tf.Tensor, n_members: int, own_shape: np.ndarray | tf.Tensor) -> tf.Tensor:
        """Return the sum of what the members sent, added in the members' order; 16-bit floats are added in float32."""
        parts = tf.unstack(tf.reshape(received, tf.concat([[n_members], own_shape], axis=0)), n_members)
        wider = tf.float32 if received.dtype.is_floating and received.dtype.size <= 2 else received.dtype
        total = tf.cast(parts[0], wider)
        for part in parts[1:]:
            total += tf.cast(part, wider)
        return tf.cast(total, received.dtype)

    def _halo(self, step: HaloStep, shape: Shape, value: tf.Tensor, name: str) -> tf.Tensor:
        """Return the value after a halo exchange or its transpose."""
        halos = [rank_halo(step, shape, rank) for rank in range(step.layout.mesh.n_devices)]
        source, target = halos[self._rank].before, halos[self._rank].after
        flat = _in_a_row([_part(value, part) for part in source.parts])
        counts = [_counts(halo.before.parts) for halo in halos]
        received = self._collectives.all_to_all(step.group_axes, flat, counts, name)
        shards = _shards(received, target.parts)
        fill = fill_value(step.fill, value.dtype.as_numpy_dtype) if step.kind == HALO else 0
        with tf.control_dependencies([received]):
            result = tf.fill(opaque(list(target.shape), tf.int32), tf.constant(fill, value.dtype))
        result = _placed(result, [target.kept], [_part(value, source.kept)])
        if step.kind == HALO:
            return _placed(result, target.parts, shards)
        for part, shard in zip(target.parts, shards, strict=True):
            result = _placed(result, [part], [_part(result, part) + shard])
        return result


def _size(layout: Layout, shape: Shape, rank: int) -> int:
    """Return the number of elements of a rank's shard."""
    return math.prod(layout.local_shape(shape, rank))


def _extents(part: Slices) -> list[int]:
    return [bounds.stop - bounds.start for bounds in part]


def _part(value: tf.Tensor, part: Slices) -> tf.Tensor:
    return tf.slice(value, opaque([bounds.start for bounds in part], tf.int32), opaque(_extents(part), tf.int32))


def _in_a_row(parts: Sequence[tf.Tensor]) -> tf.Tensor:
    return tf.concat([tf.reshape(part, [-1]) for part in parts], axis=0)


def padded(block: tf.Tensor, missing: int) -> tf.Tensor:
    """Return a tensor with so many zeros added along its first dimension; their number may differ between ranks."""
    paddings = opaque(np.asarray([[0, missing]] + [[0, 0]] * (block.shape.rank - 1)), tf.int32)
    result = tf.raw_ops.PadV2(input=block, paddings=paddings, constant_values=tf.zeros((), block.dtype))
    result.set_shape([None, *block.shape[1:]])
    return result


def _counts(parts: Sequence[Slices]) -> list[int]:
    """Return the number of elements of each part."""
    return [math.prod(_extents(part)) for part in parts]


def _shards(flat: tf.Tensor, parts: Sequence[Slices]) -> list[tf.Tensor]:
    """Return the parts of a flat tensor, each in its shape."""
    row = tf.split(flat, opaque(_counts(parts), tf.int32), num=len(parts))
    return [tf.reshape(shard, opaque(_extents(part), tf.int32)) for shard, part in zip(row, parts, strict=True)]


def _placed(result: tf.Tensor, parts: Sequence[Slices], shards: Sequence[tf.Tensor]) -> tf.Tensor:
    """Return a tensor with ``shards`` written to ``parts``: in place, where nothing else reads the tensor."""
    for part, shard in zip(parts, shards, strict=True):
        start, end = opaque([bounds.start for bounds in part], tf.int32), opaque([bounds.stop for bounds in part], tf.int32)
        strides = np.ones(len(part), np.int32)
        result = tf.raw_ops.TensorStridedSliceUpdate(input=result, begin=start, end=end, strides=strides, value=shard)
    return result
