"""What a built function is given flat, and what goes through TensorFlow's own call."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tensoropt.runtime.step.functions import BuiltFunction, FedSpec

SPEC = tf.TensorSpec([2, 3], tf.float32)


def test_what_is_as_specified() -> None:
    spec = FedSpec.of(SPEC)
    assert spec.fits(np.zeros((2, 3), np.float32)) and spec.fits(tf.zeros([2, 3]))
    arrays = np.zeros((2, 3)), np.zeros((3, 3), np.float32), np.float32(0)
    assert not any(spec.fits(other) for other in (*arrays, tf.zeros([3, 2]), tf.zeros([2, 3], tf.int32)))
    assert FedSpec.of(tf.TensorSpec([], tf.int64)).fits(np.array(3))


def test_where_an_extent_differs_between_ranks_tensorflow_is_asked() -> None:
    assert not FedSpec.of(tf.TensorSpec([None, 3], tf.float32)).fits(np.zeros((2, 3), np.float32))
    assert not FedSpec.of(tf.TensorSpec(None, tf.float32)).fits(np.float32(0))
    assert not FedSpec.of(tf.TensorSpec([1], tf.string)).fits(np.array(["a"]))


def test_both_calls_give_the_same() -> None:
    total, scale = tf.Variable(0.0), tf.constant([[2.0], [3.0]])

    def body(x: tf.Tensor) -> list[tf.Tensor]:
        total.assign_add(tf.reduce_sum(x * scale))
        return [x * scale, total.read_value()]

    function = tf.function(body, input_signature=[SPEC], autograph=False).get_concrete_function()
    built, x = BuiltFunction(function, (), (), ()), tf.ones([2, 3])
    results = [[value.numpy() for value in built.run([x], as_specified)] for as_specified in (True, False)]
    assert np.array_equal(results[0][0], results[1][0]) and (results[0][1], results[1][1]) == (15.0, 30.0)
