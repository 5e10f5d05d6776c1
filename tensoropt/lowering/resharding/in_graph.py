"""Emit paths that communicate as TensorFlow operators.

What is sent is cut out and flattened into one row; what arrives is written to its position. Nothing is chained: this module
is for collective operators that need no order and block no thread while they wait.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import tensorflow as tf

from ...common.watchdog import ChainState
from ...reschedule.bounds import Slices
from ...reschedule.halo import HALO, HaloStep, RankHalo, fill_value
from ...reschedule.layout import Axes, Shape, block_bounds
from ...reschedule.mesh import Mesh
from ...reschedule.path import Path
from ...reschedule.rank_steps import rank_step
from ...reschedule.steps import Step
from ..localise import local_shape, opaque
from ..operators import Values
from .local_steps import LocalSteps, shape_after
from .path_callbacks import CollectiveRequest
from .reshard import Collective


class GraphCollectives(Protocol):
    """Collectives as operators, on flat tensors of a group's members in the order of their ranks."""

    def all_gather(self, axes: Axes, flat: tf.Tensor, name: str) -> tf.Tensor:
        """Return the members' tensors, concatenated."""
        ...

    def all_to_all(self, axes: Axes, flat: tf.Tensor, counts: tf.Tensor, name: str) -> tf.Tensor:
        """Return what the members send to this rank, concatenated; ``counts[i]`` elements are sent to member i."""
        ...

    def all_reduce(self, axes: Axes, value: tf.Tensor, op: str, name: str) -> tf.Tensor:
        """Return the members' tensors combined by "sum" or "max"."""
        ...


_SCOPE = "collectives/"
_NO_NAME = re.compile(r"[^A-Za-z0-9_.]")
"""Characters that the names of operators can't have."""


@dataclass(frozen=True)
class GraphBackend:
    """A backend with one rank, this process, whose collectives are operators of its graph.

    Attributes:
        mesh: the devices.
        rank: this process's rank.
        collectives: emits the collectives.
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
        """Return this process's rank."""
        return (self.rank,)

    def emitter(self) -> InGraph:
        """Return a new emitter for one graph."""
        return InGraph(self.collectives, self.rank)

    @contextmanager
    def watched(self, log: Sequence[Collective]) -> Iterator[None]:
        """Return a context in which ``waiting`` records that this rank runs a function with these collectives."""
        if not log:
            yield
            return
        self.on_run()
        self.waiting.begin(f"a run with {len(log)} collectives, the first {log[0]}", may_compute=True)
        try:
            yield
        finally:
            self.waiting.end()


class InGraph:
    """An emitter that emits paths as operators, on one rank."""

    def __init__(self, collectives: GraphCollectives, rank: int) -> None:
        self._collectives, self._rank = collectives, rank
        self._local_steps = LocalSteps()

    @property
    def joins(self) -> bool:
        """Return False: Horovod joins small collectives by itself."""
        return False

    def emit_together(self, paths: Sequence[Path], values: Sequence[Values], request: CollectiveRequest) -> list[Values]:
        """Return, by path, the local values after the paths, each with a collective of its own."""
        return [self.emit(path, of_path, request) for path, of_path in zip(paths, values, strict=True)]

    def emit(self, path: Path, values: Values, request: CollectiveRequest) -> Values:
        """Return the local value after a path."""
        (value,) = values
        # In a name scope that isn't that of the gradients: what follows from a collective mustn't stop the backward pass
        # (:mod:`..schedule`).
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
        """Return the value after an all-reduce.

        For a sum over more than two members each member adds one chunk, in the members' order, since sums depend on the
        order.
        """
        axes, n_members = step.group_axes, step.source.mesh.size_of(step.group_axes)
        if reduction != "sum" or n_members == 2:
            return self._collectives.all_reduce(axes, value, reduction, name)
        extent = math.prod(step.source.local_shape(shape, self._rank))
        bounds = [block_bounds(extent, n_members, member) for member in range(n_members)]
        start, end = bounds[step.source.mesh.index_along(axes, self._rank)]
        counts = opaque([stop - begin for begin, stop in bounds], tf.int32)
        received = self._collectives.all_to_all(axes, tf.reshape(value, [-1]), counts, name)
        own = self._sum(received, n_members, opaque([end - start], tf.int32))
        return tf.reshape(self._collectives.all_gather(axes, own, name), local_shape(step.target, shape, self._rank))

    def _moved(self, step: Step, shape: Shape, value: tf.Tensor, name: str) -> tf.Tensor:
        """Return the value after an all-gather, a reduce-scatter or an all-to-all."""
        of_rank = rank_step(step, shape, self._rank)
        # All ranks must emit the same operators, so what all of them send and receive is looked at.
        others = [rank_step(step, shape, rank) for rank in range(step.source.mesh.n_devices)]
        axes, own_shape = step.group_axes, local_shape(step.target, shape, self._rank)
        if step.kind == "all_gather":
            received = self._collectives.all_gather(axes, tf.reshape(value, [-1]), name)
        else:
            in_place = all(each.send_in_place for each in others)
            flat = tf.reshape(value, [-1]) if in_place else _in_a_row([_part(value, part) for part in of_rank.send_slices])
            received = self._collectives.all_to_all(axes, flat, _counts(of_rank.send_slices), name)
        if step.kind == "reduce_scatter":
            return self._sum(received, len(of_rank.recv_shapes), own_shape)
        if all(each.recv_in_place for each in others):
            return tf.reshape(received, own_shape)
        # Wait for what was received: else TensorFlow would allocate the results of all paths when a step begins.
        with tf.control_dependencies([received]):
            result = tf.raw_ops.Empty(shape=own_shape, dtype=value.dtype)
        return _placed(result, of_rank.recv_slices, _shards(received, of_rank.recv_slices))

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
        of_rank = RankHalo.of(step, shape, self._rank)
        own = (of_rank.own_shape, of_rank.own_parts, of_rank.own_kept)
        frame = (of_rank.frame_shape, of_rank.frame_parts, of_rank.frame_kept)
        (_, sent, kept), (after, arriving, place) = (own, frame) if step.kind == HALO else (frame, own)
        flat = _in_a_row([_part(value, part) for part in sent])
        received = self._collectives.all_to_all(of_rank.axes, flat, _counts(sent), name)
        shards = _shards(received, arriving)
        fill = fill_value(step.fill, value.dtype.as_numpy_dtype) if step.kind == HALO else 0
        with tf.control_dependencies([received]):
            result = tf.fill(opaque(list(after), tf.int32), tf.constant(fill, value.dtype))
        result = _placed(result, [place], [_part(value, kept)])
        if step.kind == HALO:
            return _placed(result, arriving, shards)
        for part, shard in zip(arriving, shards, strict=True):
            result = _placed(result, [part], [_part(result, part) + shard])
        return result


def _box(part: Slices) -> tuple[tf.Tensor, tf.Tensor]:
    """Return where a part begins and where it ends, as constants."""
    return opaque([each.start for each in part], tf.int32), opaque([each.stop for each in part], tf.int32)


def _extents(part: Slices) -> list[int]:
    """Return a part's extents."""
    return [each.stop - each.start for each in part]


def _part(value: tf.Tensor, part: Slices) -> tf.Tensor:
    """Return a part of a tensor."""
    return tf.slice(value, opaque([each.start for each in part], tf.int32), opaque(_extents(part), tf.int32))


def _in_a_row(parts: Sequence[tf.Tensor]) -> tf.Tensor:
    """Return parts, flattened and concatenated."""
    return tf.concat([tf.reshape(part, [-1]) for part in parts], axis=0)


def _counts(parts: Sequence[Slices]) -> tf.Tensor:
    """Return the number of elements of each part, as a constant."""
    return opaque([math.prod(_extents(part)) for part in parts], tf.int32)


def _shards(flat: tf.Tensor, parts: Sequence[Slices]) -> list[tf.Tensor]:
    """Return the parts of a flat tensor, each in its shape."""
    row = tf.split(flat, _counts(parts), num=len(parts))
    return [tf.reshape(shard, opaque(_extents(part), tf.int32)) for shard, part in zip(row, parts, strict=True)]


def _placed(result: tf.Tensor, parts: Sequence[Slices], shards: Sequence[tf.Tensor]) -> tf.Tensor:
    """Return a tensor with ``shards`` written to ``parts``: in place, where nothing else reads the tensor."""
    for part, shard in zip(parts, shards, strict=True):
        begin, end = _box(part)
        strides = np.ones(len(part), np.int32)
        result = tf.raw_ops.TensorStridedSliceUpdate(input=result, begin=begin, end=end, strides=strides, value=shard)
    return result
