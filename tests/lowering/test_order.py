"""The order of a backward pass: as created, but what is urgent comes first, with all that it waits for."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tensoropt.lowering.order import _ancestors, in_order


def built(n_layers: int) -> tuple[list[tf.Operation], int, list[tf.Tensor]]:
    """Return a chain of products: its operators, how many are of the forward pass, and the gradients of inputs, weights."""
    with tf.Graph().as_default() as graph:
        batch = tf.compat.v1.placeholder(tf.float32, [4, 3])
        weights = [tf.compat.v1.placeholder(tf.float32, [3, 3]) for _ in range(n_layers)]
        value = batch
        for each in weights:
            value = tf.tanh(tf.matmul(value, each))
        loss = tf.reduce_sum(value)
        n_forward = len(graph.get_operations())
        gradients = tf.gradients(loss, [batch, *weights])
        return graph.get_operations(), n_forward, gradients


@pytest.mark.parametrize("n_layers", [1, 2, 5])
def test_what_is_urgent_comes_first_and_all_comes_after_what_it_reads(n_layers: int) -> None:
    operators, n_forward, (of_batch, *of_weights) = built(n_layers)
    backward = {op.name for op in operators[n_forward:]}
    plain = in_order(operators, n_forward, backward)
    assert plain == operators[n_forward:]
    urgent = _ancestors([of_batch.op], backward)
    assert not urgent.intersection(gradient.op.name for gradient in of_weights)
    found = in_order(operators, n_forward, backward, urgent)
    assert found == [op for op in plain if op.name in urgent] + [op for op in plain if op.name not in urgent]
    place = {op.name: number for number, op in enumerate(found)}
    assert all(place.get(tensor.op.name, -1) < place[op.name] for op in found for tensor in op.inputs)


def test_others_follow_what_they_read_as_soon_as_it_is_there() -> None:
    operators, n_forward, (of_batch, *of_weights) = built(2)
    backward = {op.name for op in operators[n_forward:]}
    with of_batch.graph.as_default():
        sent, summed = tf.identity(of_batch), [tf.add(each, each) for each in of_weights]
    found = in_order(of_batch.graph.get_operations(), n_forward, backward, _ancestors([of_batch.op], backward))
    place = {op.name: number for number, op in enumerate(found)}
    assert place[sent.op.name] == place[of_batch.op.name] + 1
    assert all(place[each.op.name] == place[of.op.name] + 1 for each, of in zip(summed, of_weights, strict=True))
    assert all(place[sent.op.name] < place[of.op.name] for of in of_weights)
