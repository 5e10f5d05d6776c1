"""Shapes and branches that depend on values: operators that run replicated, trained on four emulated devices as on one."""

from __future__ import annotations

from collections.abc import Callable

import keras
import numpy as np
import pytest
import tensorflow as tf
from frontend.tracing.test_tracing import hold, reals, variable

import tensoropt
from tensoropt.ir.body import VALUE_SHAPED

LABELS = (reals(8, 4) * 10).astype(np.int32) % 5 + 1


def masked_loss(x: tf.Tensor, y: tf.Tensor, w: tf.Variable) -> tf.Tensor:
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, tf.einsum("btf,fc->btc", x, w)[:, :4])
    return tf.reduce_mean(losses[y > 2])


def rows_found(x: tf.Tensor, y: tf.Tensor, w: tf.Variable) -> tf.Tensor:
    """Rows of the variable itself are found by as many indices as there are different labels."""
    words, places = tf.unique(tf.reshape(y, [-1]))
    return tf.reduce_mean(tf.gather(tf.gather(w, words - 1), places) ** 2) * tf.reduce_sum(x)


def mean_of_found(x: tf.Tensor, y: tf.Tensor, w: tf.Variable) -> tf.Tensor:
    places = tf.where(y > 2)
    found = tf.gather_nd(tf.einsum("btf,fc->btc", x, w)[:, :4], places)
    return tf.reduce_sum(found**2) / tf.cast(tf.shape(places)[0], tf.float64)


def parts(x: tf.Tensor, y: tf.Tensor, w: tf.Variable) -> tf.Tensor:
    which = tf.repeat(tf.reshape(y[:, :1] % 2, [-1]), 9)
    some, rest = tf.dynamic_partition(tf.reshape(x @ w, [-1, 6]), which, 2)
    return tf.reduce_mean(tf.tanh(some)) - tf.reduce_sum(rest**2)


def sparse_ctc(x: tf.Tensor, y: tf.Tensor, w: tf.Variable) -> tf.Tensor:
    logits = tf.einsum("btf,fc->tbc", x, w)
    labels = tf.sparse.from_dense(tf.where(y > 4, 0, y))
    return tf.reduce_mean(tf.compat.v1.nn.ctc_loss(labels, logits, tf.fill([8], 9)))


def branch(x: tf.Tensor, y: tf.Tensor, w: tf.Variable) -> tf.Tensor:
    return tf.cond(x[0, 0, 0] > 0, lambda: tf.reduce_sum(w * x[0, :6]), lambda: tf.reduce_mean(tf.abs(w)) * tf.reduce_sum(x))


def branch_in_a_loop(x: tf.Tensor, y: tf.Tensor, w: tf.Variable) -> tf.Tensor:
    def step(state: tf.Tensor, row: tf.Tensor) -> tf.Tensor:
        return tf.cond(tf.reduce_sum(row) > 0, lambda: tf.tanh(row @ w), lambda: state / 2)

    return tf.reduce_mean(tf.scan(step, tf.transpose(x, [1, 0, 2]), tf.zeros([8, 6], tf.float64)) ** 2)


@pytest.mark.parametrize(
    "function",
    [masked_loss, rows_found, mean_of_found, parts, sparse_ctc, branch, branch_in_a_loop],
    ids=lambda function: function.__name__,
)
def test_as_on_one_device(function: Callable[..., tf.Tensor]) -> None:
    w = variable("w", 6, 6)
    labels = np.minimum(LABELS, 3) if function is masked_loss else LABELS
    trainer = hold(lambda x, y: function(x, y, w), [w], reals(8, 9, 6), labels)
    assert ("Loop" if function is branch_in_a_loop else VALUE_SHAPED) in {op.type for op in trainer.plan.operators}


def with_noise(x: tf.Tensor, w: tf.Variable) -> tf.Tensor:
    found = tf.boolean_mask(x * w, x[:, 0] > 0)
    return tf.reduce_sum(found * tf.random.normal(tf.shape(found), dtype=tf.float64))


def test_random_numbers_cannot_depend_on_values() -> None:
    w = variable("w", 6)
    captured = tensoropt.capture(lambda x: with_noise(x, w), [tf.TensorSpec([8, 6], tf.float64)])
    said = r"RandomStandardNormal '.*' \(test_value_shaped.py:\d+\) .* by Where 'boolean_mask\S*'"
    with pytest.raises(tensoropt.InputError, match=said):
        tensoropt.parallelize(captured, "sgd", cluster="v100-1x4", collectives="emulated")


def test_what_leaves_must_have_a_known_shape() -> None:
    inputs = keras.Input((5,))
    some = keras.layers.Lambda(lambda x: tf.boolean_mask(x, x[:, 0] > 0))
    model = keras.Model(inputs, some(keras.layers.Dense(4)(inputs)))
    where = {"collectives": "emulated", "parallelism": 2, "cluster": "v100-1x2"}
    labels = tf.TensorSpec((4, 4))
    trainer = tensoropt.parallelize(
        model, "sgd", lambda y, p: tf.reduce_mean(p * y[0]), batch_size=4, labels=labels, **where
    )
    with pytest.raises(tensoropt.InputError, match=r"how much there is depends on the values .*; reduce it, tell its shape"):
        trainer.predict(np.ones((4, 5), np.float32), verbose=0)
