"""Complete, ahead of an update, what it needs to know of global gradients and parameters.

Keras's ``apply`` then uses these numbers instead of those of the shards that it sees: ``_clip_gradients`` and
``check_finite`` of the ranks' copies are replaced while an update is emitted, and a LAMB is given its ratios.

LAMB's two norms depend on what the update itself computes, the decayed parameter and Adam's direction, and the update may be
inside of a condition, where no collective may be. So both are computed ahead of the update, without changing any variable,
and the update then uses the ratio of the completed norms.

All sums over the elements of sharded parameters that a step needs at one time (norms, the count of elements that aren't
finite) are one vector of local sums, in which each element counts once, summed over all devices whatever the layouts: the
cost of small collectives is in their number, not their size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ..lowering.localise import opaque
from ..lowering.operators import Values
from ..reschedule.layout import Layout
from ..sharding.resharding import sum_resharding
from .copies import KerasBase, OnRank
from .keras_optimizer import KerasOptimizer
from .running_optimizer import Emission
from .sparse import Gradient, over_values, values_of


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


Gradients = Sequence[Gradient | None]


@dataclass(frozen=True, slots=True, eq=False)
class Completing:
    """The completion of one update's sums.

    Attributes:
        optimizer: the optimizer, as a value.
        on_ranks: the optimizer's copies, one for each rank.
        sums: completes sums over all shards.
        emission: emits into the graph that is being built.
        gradients: for each rank those of all parameters, None for one that has none.
        clipped: the same as Keras clips them, by :func:`as_clipped`.
    """

    optimizer: KerasOptimizer
    on_ranks: Sequence[OnRank]
    sums: Sums
    emission: Emission
    gradients: Sequence[Gradients]
    clipped: Sequence[Gradients]

    @contextmanager
    def completed(self, totals: Values | None) -> Iterator[None]:
        """Return a context in which the copies' updates use sums over all shards; ``totals`` are those of all stages."""
        with ExitStack() as stack:
            if totals is not None:
                for on_rank, of_rank, gradients in zip(self.on_ranks, totals, self.clipped, strict=True):
                    self._replace(stack, on_rank, of_rank, gradients)
            if self.optimizer.is_lamb:
                self._give_ratios()
            yield

    def totals(self) -> Values | None:
        """Return a vector for each rank: sums of squares for clipping, then the number of elements that aren't finite.

        Return None if the update needs none of these. Of a part of the parameters it is their sums alone.
        """
        if not self.optimizer.n_clipping and not self.optimizer.scales_dynamically:
            return None
        vectors = []
        for rank, clipped, raw in zip(self.sums.ranks, self.clipped, self.gradients, strict=True):
            parts = []
            if self.optimizer.n_clipping:
                squares = self._local(clipped, square_sum, rank)
                parts.append(squares if self.optimizer.inner.clipnorm else tf.reduce_sum(squares, keepdims=True))
            if self.optimizer.scales_dynamically:
                parts.append(tf.reduce_sum(self._local(raw, _count_infinite, rank), keepdims=True))
            vectors.append(tf.concat(parts, 0))
        return self.sums.complete(vectors, self.emission)

    def _local(self, values: Gradients, measure: Callable[..., tf.Tensor], rank: int) -> tf.Tensor:
        """Return a rank's local sums of ``measure``, one for each of the values."""
        dtype = self.sums.dtype
        return self.sums.local([None if value is None else measure(values_of(value), dtype) for value in values], rank)

    def _replace(self, stack: ExitStack, on_rank: OnRank, totals: tf.Tensor, gradients: Gradients) -> None:
        """Have a copy's clipping, and its check for finite gradients, use the completed sums in the context of a stack."""
        if self.optimizer.n_clipping:
            squares = tf.unstack(totals[: self.optimizer.n_clipping])
            if self.optimizer.inner.clipnorm:
                squares = [square for square, gradient in zip(squares, gradients, strict=True) if gradient is not None]
            on_rank.inner._clip_gradients = partial(_clipped, on_rank.inner, squares=squares)
            stack.callback(delattr, on_rank.inner, "_clip_gradients")
        if self.optimizer.scales_dynamically:
            is_finite = tf.equal(totals[-1], 0)
            on_rank.copy.check_finite = lambda gradients: is_finite
            stack.callback(delattr, on_rank.copy, "check_finite")

    def _give_ratios(self) -> None:
        """Complete the norms of LAMB, and give each copy its ratios."""
        n, vectors = len(self.optimizer.parameters), []
        for on_rank, rank, gradients in zip(self.on_ranks, self.sums.ranks, self.clipped, strict=True):
            lamb = on_rank.inner
            assert isinstance(lamb, LambOnShards)
            clipped = iter(lamb._clip_gradients([gradient for gradient in gradients if gradient is not None]))
            pairs = []
            for gradient, variable in zip(gradients, (shard.value for shard in on_rank.shards), strict=True):
                is_updated = gradient is not None
                direction = lamb.direction(next(clipped), variable)[2] if is_updated else None
                pairs.append((lamb.decayed(variable) if is_updated else None, direction))
            vectors.append(tf.concat([self._local(values, square_sum, rank) for values in zip(*pairs, strict=True)], 0))
        for on_rank, totals in zip(self.on_ranks, self.sums.complete(vectors, self.emission), strict=True):
            on_rank.inner.ratios = {index: ratio_of(totals[index], totals[n + index]) for index in range(n)}


def as_clipped(on_rank: OnRank, gradients: Gradients) -> list[Gradient | None]:
    """Return gradients as Keras clips them: without the loss's scale, and averaged with those that were accumulated."""
    inner = on_rank.inner
    scale = inner.loss_scale_factor if on_rank.copy is inner else on_rank.copy.dynamic_scale
    steps, result = inner.gradient_accumulation_steps, []
    for index, gradient in enumerate(gradients):
        if gradient is not None and scale is not None:
            gradient = over_values(lambda value: value / tf.cast(scale, value.dtype), gradient)
        if gradient is not None and steps:
            gradient = (tf.convert_to_tensor(gradient) + inner._accumulated_gradients[index].value) / steps
        result.append(gradient)
    return result


def _count_infinite(value: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Return how many elements are infinite or not a number."""
    return tf.reduce_sum(tf.cast(tf.logical_not(tf.math.is_finite(value)), dtype))


def _clipped(optimizer: KerasBase, gradients: Sequence[Gradient], squares: Sequence[tf.Tensor]) -> list[Gradient]:
    """Return gradients clipped by norms over all shards, in the arithmetic of Keras and TensorFlow."""
    if optimizer.clipnorm:
        limit = optimizer.clipnorm
        return [
            over_values(partial(_by_norm, squares=sum_of_squares, limit=limit), gradient)
            for gradient, sum_of_squares in zip(gradients, squares, strict=True)
        ]
    (total,) = squares
    # Gradients of rows become dense here, as in Keras.
    dense = [tf.convert_to_tensor(gradient) for gradient in gradients]
    return [gradient * _scale(tf.sqrt(tf.cast(total, gradient.dtype)), optimizer.global_clipnorm) for gradient in dense]


def _by_norm(gradient: tf.Tensor, squares: tf.Tensor, limit: float) -> tf.Tensor:
    """Return a gradient clipped to a norm of ``limit``, in the arithmetic of ``tf.clip_by_norm``."""
    # The selection of squares above zero is that of tf.clip_by_norm.
    squares = tf.cast(squares, gradient.dtype)
    norm = tf.where(squares > 0, tf.sqrt(tf.where(squares > 0, squares, tf.ones_like(squares))), squares)
    # A Python number takes the gradient's type as it is; tf.cast would round it to float32 first.
    return gradient * limit / tf.maximum(norm, limit)


def _scale(norm: tf.Tensor, limit: float) -> tf.Tensor:
    """Return the factor that clips gradients with a global norm of ``norm`` to ``limit``."""
    # A norm that isn't finite makes all gradients not a number, as in Keras.
    return limit * tf.minimum(1.0 / norm, 1.0 / limit) + (norm - norm)


class LambOnShards(keras.optimizers.Lamb):
    """Keras's LAMB, with ratios that are given.

    Attributes:
        ratios: by a parameter's index, the norm of the parameter over that of its direction; set while an update is emitted.
    """

    ratios: Mapping[int, tf.Tensor]

    def direction(self, gradient: Gradient, variable: Any) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Return the two moments after a step, and the direction of the step.

        In a gradient of rows, a row that occurs twice is squared twice and then summed, as in Keras.
        """
        index, dtype = self._get_variable_index(variable), variable.dtype
        gradient = over_values(lambda values: tf.cast(values, dtype), gradient)
        squares = tf.convert_to_tensor(over_values(tf.square, gradient))
        step = tf.cast(self.iterations + 1, dtype)
        m, v = self._momentums[index].value, self._velocities[index].value
        m = m + (tf.convert_to_tensor(gradient) - m) * (1 - self.beta_1)
        v = v + (squares - v) * (1 - self.beta_2)
        m_hat = m / (1.0 - tf.pow(keras.ops.cast(self.beta_1, dtype), step))
        v_hat = v / (1.0 - tf.pow(keras.ops.cast(self.beta_2, dtype), step))
        return m, v, m_hat / (tf.sqrt(v_hat) + self.epsilon)

    def decayed(self, variable: tf.Variable) -> tf.Tensor:
        """Return the parameter after weight decay, as the update will find it."""
        if self.weight_decay is None or not self._use_weight_decay(variable):
            return variable.read_value()
        rate, decay = tf.cast(self.learning_rate, variable.dtype), keras.ops.cast(self.weight_decay, variable.dtype)
        return variable - variable * decay * rate

    def update_step(self, gradient: Gradient, variable: Any, learning_rate: Any) -> None:
        """Update a parameter and its moments, with the ratio that was given."""
        index = self._get_variable_index(variable)
        m, v, direction = self.direction(gradient, variable)
        self.assign(self._momentums[index], m)
        self.assign(self._velocities[index], v)
        rate = tf.cast(learning_rate, variable.dtype)
        self.assign_sub(variable, tf.cast(self.ratios[index], variable.dtype) * rate * direction)


def ratio_of(parameter_squares: tf.Tensor, direction_squares: tf.Tensor) -> tf.Tensor:
    """Return the ratio of two norms, given their squares; 1 where either is zero."""
    are_positive = tf.logical_and(parameter_squares > 0, direction_squares > 0)
    return tf.where(are_positive, tf.sqrt(parameter_squares) / tf.sqrt(direction_squares), tf.ones_like(parameter_squares))
