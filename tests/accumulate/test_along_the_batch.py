"""Whatever a model does along its batch is either refused in micro-batches, or has one device's numbers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf
from helpers.large import first

import tensoropt
from tensoropt.common.errors import InputError

B = 8
S = tf.reduce_sum
Case = tuple[str, Callable[[tf.Tensor], tf.Tensor], bool]
ONES = np.ones([2, 4])
SEGMENTS = [0, 1, 2, 0, 1, 2, 0, 1]

POSITIONAL: list[Case] = [
    ("rows", lambda h: S(tf.gather(h, [0, 3])), False),
    ("elements", lambda h: S(tf.gather_nd(h, [[0, 1], [3, 2]])), False),
    ("added rows", lambda h: S(tf.tensor_scatter_nd_add(h, [[0], [3]], ONES)), False),
    ("subtracted rows", lambda h: S(tf.tensor_scatter_nd_sub(h, [[0], [3]], ONES)), False),
    ("written rows", lambda h: S(tf.tensor_scatter_nd_update(h, [[0], [3]], ONES)), False),
    ("a band", lambda h: S(tf.linalg.band_part(h, 0, -1)), False),
    ("the trace", lambda h: tf.linalg.trace(h), False),
    ("rows in a loop", lambda h: S(tf.map_fn(lambda column: S(tf.gather(column, [0, 3])), tf.transpose(h))), False),
    ("rows in a branch", lambda h: tf.cond(S(tf.ones([])) > 0, lambda: S(tf.gather(h, [0, 3])), lambda: S(h)), False),
    ("one-hot vectors of the batch's length", lambda h: S(tf.one_hot([2, 1, 5, 7], B, axis=0, dtype=tf.float64) * h), True),
    ("a band of a constant", lambda h: S(tf.linalg.band_part(tf.ones([B, 4], tf.float64), 0, -1) * h), True),
    ("rows of a constant", lambda h: S(tf.gather(np.arange(9.0), [3, 2, 1, 0, 7, 6, 5, 4])[:, None] * h), True),
]
OTHERS: list[Case] = [
    ("a variable of the batch's length", lambda h: S(tensoropt.get_variable("v", [B, 4], tf.float64) * h), False),
    ("a mean of each sample", lambda h: S(tf.reduce_mean(h, 1) ** 2), True),
    ("a sum by segment", lambda h: S(tf.math.unsorted_segment_sum(h, SEGMENTS, 3) * np.arange(3.0)[:, None]), True),
    ("the largest by segment", lambda h: S(tf.math.unsorted_segment_max(h, SEGMENTS, 3)), False),
    ("scattered", lambda h: S(tf.scatter_nd(np.arange(B)[::-1, None].copy(), h, [B, 4]) * np.arange(8.0)[:, None]), True),
    ("a slice", lambda h: S(h[:4]), False),
    ("each second row", lambda h: S(h[::2]), False),
    ("the largest", lambda h: S(tf.reduce_max(h, 0)), False),
    ("a product", lambda h: S(tf.reduce_prod(h, 0)), False),
    ("running sums", lambda h: S(tf.cumsum(h, 0)), False),
    ("reversed", lambda h: S(tf.reverse(h, [0]) * h), False),
    ("rolled", lambda h: S(tf.roll(h, 1, 0) * h), False),
    ("sorted", lambda h: S(tf.sort(h, 0) * h), False),
    ("the place of the largest", lambda h: S(tf.cast(tf.argmax(h, 0), tf.float64) * S(h, 0)), False),
    ("softmax", lambda h: S(tf.nn.softmax(h, 0) * h), False),
    ("the variance", lambda h: S(tf.math.reduce_variance(h, 0)), False),
    ("a pool", lambda h: S(tf.nn.avg_pool1d(h[None], 3, 1, "SAME")), False),
    ("a convolution", lambda h: S(tf.nn.conv1d(h[None], np.ones((3, 4, 2)), 1, "SAME")), False),
    ("joined", lambda h: S(tf.concat([h, h], 0) * np.arange(16.0)[:, None]), False),
    ("repeated", lambda h: S(tf.repeat(h, 2, 0) * np.arange(16.0)[:, None]), True),
    ("two samples in a row", lambda h: S(tf.reshape(h, [4, 8]) ** 2 * np.arange(4.0)[:, None]), True),
    ("columns", lambda h: S(tf.transpose(h) * np.arange(8.0)), True),
    ("a contraction", lambda h: S(tf.einsum("bi,bj->ij", h, h)), True),
    ("all pairs", lambda h: S(tf.matmul(h, h, transpose_b=True)), False),
    ("a square of a sum", lambda h: S(S(h, 0) ** 2), False),
    ("a mean", lambda h: 3 * tf.reduce_mean(h, 0)[1], True),
    ("a product of means", lambda h: tf.reduce_mean(h) * tf.reduce_mean(h), False),
    ("rows counted", lambda h: S(tf.cast(tf.range(B), tf.float64)[:, None] * h), True),
    ("part of a mask", lambda h: S(tf.sequence_mask([1, 3, 5, 7], B, dtype=tf.float64) * tf.transpose(h)), True),
    ("random numbers", lambda h: S(tf.random.stateless_uniform([B, 4], [1, 2], dtype=tf.float64) * h), True),
    ("how many there are", lambda h: S(h) / tf.cast(tf.size(h), tf.float64), True),
]


def losses(made: Callable[[tf.Tensor], tf.Tensor], micro_batches: int) -> list[float]:
    tensoropt.init(seed=1, hardware="v100-1x4")
    x = tensoropt.placeholder(tensoropt.float64, [B, 4])
    w = tensoropt.get_variable("w", [4, 4], tensoropt.float64, tensoropt.random_normal_initializer(seed=3))
    h = tensoropt.matmul(x, w)
    loss = tensoropt.reduce_mean(tensoropt.square(h)) + tf.cast(made(h), tf.float64)
    train = tensoropt.GradientDescentOptimizer(0.01).minimize(loss)
    plan = tensoropt.find_strategy(micro_batches=micro_batches, parallelism=1, verbose=0)
    tensoropt.build_execution_graph(engine="tensorflow", plan=plan, collectives="emulated")
    fed = {x: np.random.default_rng(0).normal(size=(B, 4))}
    return [float(tensoropt.run([loss, train], fed)[0]) for _ in range(2)]


@pytest.mark.parametrize(
    ("made", "can_be"), first(14, [case[1:] for case in (*POSITIONAL, *OTHERS)]), ids=[c[0] for c in (*POSITIONAL, *OTHERS)]
)
def test_along_the_batch(made: Callable[[tf.Tensor], tf.Tensor], can_be: bool) -> None:
    if can_be:
        assert losses(made, 2) == pytest.approx(losses(made, 1), rel=1e-12)
        return
    with pytest.raises(InputError, match="can't be taken in 2 micro-batches"):
        losses(made, 2)
