"""The state that a run needs to go on: parameters, other variables and the optimizers' variables, with their layouts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from ..ir.graph import Tensor
from ..reschedule.layout import Layout, Shape
from ..sharding.local_shapes import shard_slices
from .localise import uniform_shape


@dataclass(frozen=True, slots=True, eq=False)
class StateEntry:
    """One logical variable, held in shards.

    Attributes:
        key: the variable's name, unique in a state and the same whatever the strategy: the variable operator's name, or for
            an optimizer's variable ``step/name``.
        shape: the global shape.
        dtype: TensorFlow's name of the type.
        layout: where its shards are; a rank's shard is ``shard_slices(layout, shape, rank)`` of the global value.
        variables: the shards of the ranks that this process builds, in the order of ``Engine.backend.ranks``. The next step
            reads what is assigned to them.
        parameter: for an optimizer's variable that belongs to one parameter (a slot), that parameter's key; else None.
        step: for an optimizer's variable, the name of the training step; None for variables of the model.
    """

    key: str
    shape: Shape
    dtype: str
    layout: Layout
    variables: tuple[tf.Variable, ...]
    parameter: str | None = None
    step: str | None = None


def local_variables(
    value: np.ndarray, tensor: Tensor, layout: Layout, ranks: Sequence[int], name: str
) -> list[tf.Variable]:
    """Return variables that hold each rank's shard of a global value."""
    made = []
    for rank in ranks:
        shard = np.ascontiguousarray(value[shard_slices(layout, tensor.shape, rank)])
        shard = shard.reshape(layout.local_shape(tensor.shape, rank))
        shape = uniform_shape(layout, tensor.shape)
        made.append(tf.Variable(shard, dtype=tensor.dtype, shape=shape, trainable=False, name=name))
    return made
