"""Sum over all elements of sharded parameters: local sums, in which each element counts once, and one all-reduce.

Norms of gradients, the count of elements that aren't finite, and the norms of LAMB are such sums. All sums that a step needs
at one time are one vector, summed over all devices whatever the layouts: the cost of small collectives is in their number,
not their size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from ..lowering.localise import opaque
from ..lowering.operators import Values
from ..reschedule.layout import Layout
from ..sharding.resharding import sum_resharding
from .running_optimizer import Emission


@dataclass(frozen=True, slots=True)
class Sums:
    """Sums over all shards of the parameters of a training step.

    Attributes:
        layouts: for each parameter, the layout of the shards that local sums run over.
        ranks: the ranks of this process.
        dtype: the type in which sums are taken.
    """

    layouts: tuple[Layout, ...]
    ranks: tuple[int, ...]
    dtype: tf.DType

    def local(self, values: Sequence[tf.Tensor | None], rank: int) -> tf.Tensor:
        """Return one rank's sums, [parameters]; 0 for a shard that another replica counts, and for a value that is None."""
        is_counted = [layout.holders(rank)[0] == rank for layout in self.layouts]
        zero = tf.zeros([], self.dtype)
        sums = tf.stack([zero if value is None else tf.cast(value, self.dtype) for value in values])
        # By selection and not by multiplication: infinity times zero is not a number.
        return tf.where(tf.equal(opaque(np.asarray(is_counted, np.int32), tf.int32), 1), sums, tf.zeros_like(sums))

    def complete(self, vectors: Values, emission: Emission) -> Values:
        """Return, on each rank of this process, the sum of the vectors of all ranks."""
        (length,) = vectors[0].shape
        mesh = self.layouts[0].mesh
        return emission.reshard(sum_resharding(mesh, length, self.dtype.size), vectors)


def square_sum(value: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Return the sum of the squares of a value's elements, in this type."""
    return tf.reduce_sum(tf.square(tf.cast(value, dtype)))
