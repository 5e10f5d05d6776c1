"""The importer leaves out operators that change no value of a model whose shapes are all known."""

from __future__ import annotations

import tensorflow as tf

from tensoropt.frontend.importer import import_graph


def test_an_ensured_shape_is_another_name_of_its_tensor() -> None:
    with tf.Graph().as_default() as recorded:
        x = tf.compat.v1.placeholder(tf.float32, [4, 3], name="x")
        tf.nn.relu(tf.ensure_shape(x, [None, 3], name="ensured"), name="relu")
    graph = import_graph(recorded, ())
    assert set(graph.operators) == {"x", "relu"}
    assert graph.operators["relu"].inputs[0] is graph.operators["x"].result
    assert graph.resolve("ensured:0") is graph.operators["x"].result


def test_an_ensured_shape_that_waits_for_something_stays() -> None:
    with tf.Graph().as_default() as recorded:
        x = tf.compat.v1.placeholder(tf.float32, [4, 3], name="x")
        with tf.control_dependencies([tf.nn.relu(x, name="first")]):
            tf.ensure_shape(x, [None, 3], name="ensured")
    assert import_graph(recorded, ()).operators["ensured"].type == "EnsureShape"


def test_a_check_of_values_is_left_out_and_so_is_what_only_it_reads() -> None:
    with tf.Graph().as_default() as recorded:
        x = tf.compat.v1.placeholder(tf.float32, [4, 3], name="x")
        check = tf.raw_ops.Assert(condition=tf.reduce_all(tf.greater(x, 0.0, name="greater")), data=[x], name="check")
        with tf.control_dependencies([check]):
            tf.nn.relu(x, name="relu")
    graph = import_graph(recorded, ())
    assert set(graph.operators) == {"x", "relu"}
    assert not graph.operators["relu"].controls
