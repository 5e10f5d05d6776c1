"""Emit the steps of a path that communicate nothing, as TensorFlow operators."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

import numpy as np
import tensorflow as tf

from ...reschedule.halo import HaloStep, fill_value, rank_halo
from ...reschedule.layout import Layout, Shape
from ...reschedule.path import Path
from ...reschedule.steps import Step
from ..localise import opaque, uniform_shape


def shape_after(step: Step | HaloStep, shape: Shape) -> tf.TensorShape:
    """Return the static shape of a shard after a step; an extent that isn't the same on all ranks is unknown."""
    return tf.TensorShape(step.uniform_shape(shape)) if isinstance(step, HaloStep) else uniform_shape(step.target, shape)


@dataclass
class LocalSteps:
    """The local steps of one graph. Equal steps share their constants, which are a third of a deep model's graph.

    A constant is found by the step that it is for, and not by its value: two constants may be equal on one rank only, and
    the ranks' graphs would differ.
    """

    _constants: dict[Hashable, tuple[tf.Tensor, ...]] = field(default_factory=dict)

    def run(self, path: Path, rank: int, value: tf.Tensor) -> tf.Tensor:
        """Return a rank's local value after a path that communicates nothing."""
        for step in path.steps:
            value = self.step(step, path.shape, rank, value)
        return value

    def step(self, step: Step | HaloStep, shape: Shape, rank: int, value: tf.Tensor) -> tf.Tensor:
        """Return a rank's local value after one step.

        Args:
            shape: the global shape of the tensor.
        """
        value = self._halo(step, shape, rank, value) if isinstance(step, HaloStep) else self._move(step, shape, rank, value)
        value.set_shape(shape_after(step, shape))
        return value

    def _once(self, key: Hashable, make: Callable[[], tuple[tf.Tensor, ...]]) -> tuple[tf.Tensor, ...]:
        """Return the constants for a key, which ``make`` makes the first time."""
        if key not in self._constants:
            self._constants[key] = make()
        return self._constants[key]

    def _move(self, step: Step, shape: Shape, rank: int, value: tf.Tensor) -> tf.Tensor:
        """Return a rank's local value after a slice, a padding, or a selection that keeps the value on one replica."""
        key = (step, shape, rank)
        if step.kind == "slice":

            def box() -> tuple[tf.Tensor, ...]:
                """Return where the rank's shard begins in the value, and its extents."""
                starts, extents, _ = _relative(step.target, step.source, shape, rank)
                if step.target.is_even(shape):
                    # The extents are the same on all ranks.
                    (size,) = self._once(tuple(extents), lambda: (tf.constant(extents, tf.int32),))
                else:
                    size = opaque(extents, tf.int32)
                return opaque(starts, tf.int32), size

            return tf.slice(value, *self._once(key, box))
        if step.kind == "pad":

            def margins() -> tuple[tf.Tensor, ...]:
                """Return how many zeros to add before and after the value, by dimension."""
                n_before, _, n_behind = _relative(step.source, step.target, shape, rank)
                return (opaque(np.stack([n_before, n_behind], axis=1), tf.int32),)

            (paddings,) = self._once(key, margins)
            (zero,) = self._once(value.dtype, lambda: (tf.zeros((), value.dtype),))
            # Not Pad: oneDNN merges that into a convolution that follows, which then pads rows and columns only.
            return tf.raw_ops.PadV2(input=value, paddings=paddings, constant_values=zero)

        mesh, axes = step.source.mesh, step.axes
        (keeps,) = self._once((mesh, axes, rank), lambda: (opaque(mesh.index_along(axes, rank) == 0, tf.bool),))
        (zero,) = self._once(value.dtype, lambda: (tf.zeros((), value.dtype),))
        # By selection and not by multiplication: infinity times zero is not a number.
        return tf.where(keeps, value, zero)

    def _halo(self, step: HaloStep, shape: Shape, rank: int, value: tf.Tensor) -> tf.Tensor:
        """Return the value after a local halo step: without what windows leave out, and with padding filled in."""

        def boxes() -> tuple[tf.Tensor, ...]:
            """Return where the part that is used begins, its extents, and the paddings around it."""
            halo = rank_halo(step, shape, rank)
            source, target = halo.before.kept, halo.after
            starts, size = [part.start for part in source], [part.stop - part.start for part in source]
            paddings = [[part.start, extent - part.stop] for part, extent in zip(target.kept, target.shape, strict=True)]
            return opaque(starts, tf.int32), opaque(size, tf.int32), opaque(np.asarray(paddings), tf.int32)

        start, size, paddings = self._once((step, shape, rank), boxes)
        fill = tf.constant(fill_value(step.fill, value.dtype.as_numpy_dtype), value.dtype)
        return tf.pad(tf.slice(value, start, size), paddings, constant_values=fill)


def _relative(finer: Layout, coarser: Layout, shape: Shape, rank: int) -> tuple[list[int], list[int], list[int]]:
    """Return the position of a rank's shard in one layout within its shard in a coarser layout.

    Returns:
        By dimension: the offset of the finer shard, its extent, and what is left of the coarser shard behind it.
    """
    bounds = list(zip(finer.bounds(shape, rank), coarser.bounds(shape, rank), strict=True))
    offsets = [start - origin for (start, _), (origin, _) in bounds]
    extents = [end - start for (start, end), _ in bounds]
    rests = [limit - end for (_, end), (_, limit) in bounds]
    return offsets, extents, rests
