"""Functions with TensorFlow's own loops and recomputed gradients: trained on four emulated devices as on one."""

from __future__ import annotations

import tensorflow as tf
from composite.models import BATCH, TIME, UNITS
from frontend.tracing.test_tracing import hold, reals, variable


def test_a_python_loop_over_steps_with_an_embedding_inside() -> None:
    """The words of a step are looked up in the step."""
    table, u = variable("table", 7, UNITS), variable("u", UNITS, UNITS)
    words = tf.constant(reals(BATCH, TIME) * 10).numpy().astype("int64") % 7

    @tf.function
    def function(words: tf.Tensor) -> tf.Tensor:
        state = tf.zeros([BATCH, UNITS], tf.float64)
        for row in tf.transpose(words):
            state = tf.tanh(tf.gather(table, row) + state @ u)
        return tf.reduce_mean(tf.square(state))

    trainer = hold(function, [table, u], words, force={"Loop": {"d1": 2}})
    assert "Loop" in {op.type for op in trainer.plan.operators}


def test_a_map_over_rows_splits_what_the_rows_have() -> None:
    w = variable("w", UNITS)
    hold(lambda x: tf.reduce_sum(tf.map_fn(lambda row: tf.square(row * w), x)), [w], reals(BATCH, UNITS))


def test_a_scan_that_begins_with_the_first_row() -> None:
    """The first row is read outside of the loop, and is the first of the results."""
    w = variable("w", UNITS)
    scanned = lambda x: tf.scan(lambda state, row: tf.tanh(state * w + row), x)  # noqa: E731
    hold(lambda x: tf.reduce_sum(tf.square(scanned(x))), [w], reals(TIME, UNITS), force={"Loop": {"d1": 2}})


def test_rematerialized_custom_gradients_are_captured() -> None:
    w, v = variable("w", UNITS, 3), variable("v", 3)
    block = tf.recompute_grad(lambda x: tf.tanh(x @ w) * v)
    trainer = hold(lambda x: tf.reduce_mean(tf.square(block(x))), [w, v], reals(BATCH, UNITS), force={"MatMul": {"m": 2}})
    assert "CustomGradient" in {op.type for op in trainer.plan.operators}
