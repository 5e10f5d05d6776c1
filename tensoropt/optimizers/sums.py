"""Sums over all elements of parameters that lie in pieces: local sums, each element counted once, and one all-reduce.

Norms of gradients, the count of those that aren't finite, and the norms of LAMB are such sums. All that a step needs at one
time travel as one vector over all devices, whatever the layouts: small collectives cost by their number, not their size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from ..lowering.local import opaque
from ..lowering.operators import Values
from ..reschedule.layout import Layout
from ..sharding.update_resharding import sum_resharding
from .runtime import Emission


@dataclass(frozen=True, slots=True)
class Sums:
    """Attributes:
    layouts: per parameter where the pieces are that local sums run over.
    ranks: of this process.
    dtype: in which sums are taken.
    """

    layouts: tuple[Layout, ...]
    ranks: tuple[int, ...]
    dtype: tf.DType

    def local(self, values: Sequence[tf.Tensor | None], rank: int) -> tf.Tensor:
        """Sums of one rank, [parameters]: zeros for what another replica counts, and for what isn't there."""
        counted = [_is_counted(layout, rank) for layout in self.layouts]
        zero = tf.zeros([], self.dtype)
        sums = tf.stack([zero if value is None else tf.cast(value, self.dtype) for value in values])
        # By selection: infinity times zero is not a number.
        return tf.where(tf.equal(opaque(np.asarray(counted, np.int32), tf.int32), 1), sums, tf.zeros_like(sums))

    def complete(self, vectors: Values, emission: Emission) -> Values:
        """The vectors of all ranks, added up on every rank."""
        (length,) = vectors[0].shape
        mesh = self.layouts[0].mesh
        return emission.reshard(sum_resharding(mesh, length, self.dtype.size), vectors)


def _is_counted(layout: Layout, rank: int) -> bool:
    """Whether a rank has the first of the replicas of its piece."""
    replicated = tuple(axis for axis in layout.mesh.axes if axis not in layout.split_axes)
    return not replicated or layout.mesh.index_along(replicated, rank) == 0


def square_sum(value: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    return tf.reduce_sum(tf.square(tf.cast(value, dtype)))
