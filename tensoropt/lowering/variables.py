"""The state that a run needs to go on: parameters, other variables and the optimizers' variables, with their layouts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
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
        variables: the shards that this process holds. The next step reads what is assigned to them.
        ranks: whose shards these are, by their ranks in the layout's mesh.
        parameter: for an optimizer's variable that belongs to one parameter (a slot), that parameter's key; else None.
        step: for an optimizer's variable, the name of the training step; None for variables of the model.
        first_device: the number of the mesh's first device; it isn't 0 for a variable of a later stage.
    """

    key: str
    shape: Shape
    dtype: str
    layout: Layout
    variables: tuple[tf.Variable, ...]
    ranks: tuple[int, ...]
    parameter: str | None = None
    step: str | None = None
    first_device: int = 0

    @property
    def n_bytes(self) -> int:
        """The bytes of the global value."""
        return math.prod(self.shape) * int(tf.as_dtype(self.dtype).size)

    def is_whole_on(self, n_processes: int) -> bool:
        """Return whether each of the processes holds all of it: no later stage's devices are beside its own."""
        return not self.layout.split_axes and self.layout.mesh.n_devices >= n_processes

    def assign(self, value: np.ndarray) -> None:
        """Assign a global value, of which each shard that this process holds takes its part."""
        for rank, variable in zip(self.ranks, self.variables, strict=True):
            variable.assign(np.asarray(value)[shard_slices(self.layout, self.shape, rank)])

    def own_shards(self) -> dict[int, np.ndarray]:
        """Return by rank the shards of this process that no earlier rank holds too."""
        pairs = zip(self.ranks, self.variables, strict=True)
        return {rank: variable.numpy() for rank, variable in pairs if self.layout.holders(rank)[0] == rank}

    def joined(self, shards: Iterable[Mapping[int, np.ndarray]]) -> np.ndarray:
        """Return the global value, of what :meth:`own_shards` returns on each process."""
        value = np.empty(self.shape, tf.as_dtype(self.dtype).as_numpy_dtype)
        for rank, shard in (item for own_shards in shards for item in own_shards.items()):
            value[shard_slices(self.layout, self.shape, rank)] = shard
        return value


def local_variables(value: np.ndarray, tensor: Tensor, layout: Layout, ranks: Sequence[int], name: str) -> list[tf.Variable]:
    """Return variables that hold each rank's shard of a global value."""
    variables = []
    for rank in ranks:
        shard = np.ascontiguousarray(value[shard_slices(layout, tensor.shape, rank)])
        shard = shard.reshape(layout.local_shape(tensor.shape, rank))
        shape = uniform_shape(layout, tensor.shape)
        variables.append(tf.Variable(shard, dtype=tensor.dtype, shape=shape, trainable=False, name=name))
    return variables
