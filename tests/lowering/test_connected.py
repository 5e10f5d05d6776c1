"""The recorded graph tells which tensors get a gradient, as ``tf.gradients`` says; a model where it can't is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf
from helpers import zoo

from tensoropt.common.errors import InputError
from tensoropt.frontend import connected
from tensoropt.frontend.connected import differentiated
from tensoropt.frontend.importer import import_graph
from tensoropt.frontend.recorded_graph import RecordedStep
from tensoropt.ir.graph import Graph
from tensoropt.lowering import gradient_analysis as backward
from tensoropt.lowering.gradient_analysis import analyse
from tensoropt.optimizers.classic import Classic

SGD = Classic("sgd", (("learning_rate", 0.1),))


@tf.custom_gradient
def first_only(x: tf.Tensor, y: tf.Tensor) -> Any:
    """A product that gives its second operand no gradient."""
    return x * y, lambda gradient: (gradient * y, None)


def variables() -> list[tf.Variable]:
    return [tf.compat.v1.get_variable(f"v{i}", [4, 4], tf.float64) for i in range(3)]


def doubled(times: int, x: tf.Tensor) -> tf.Tensor:
    return tf.while_loop(lambda i, value: i < times, lambda i, value: (i + 1, 2.0 * value), [0, x])[1]


DEAD_ENDS: dict[str, Callable[[tf.Tensor, tf.Tensor], tf.Tensor]] = {
    "both": lambda x, y: x * tf.sin(y),
    "not differentiable": lambda x, y: x + tf.floor(y) + tf.round(y),
    "stopped": lambda x, y: x + tf.stop_gradient(y @ x),
    "by whole numbers": lambda x, y: x * tf.cast(tf.cast(y, tf.int32), tf.float64),
    "by indices": lambda x, y: tf.gather(x, tf.argmax(y)),
    "by a condition": lambda x, y: tf.where(y > 0.0, x, 2.0 * x),
    "by complex numbers": lambda x, y: x + tf.math.real(tf.signal.fft(tf.complex(y, x))),
    "by a custom gradient": first_only,
    "by a shape": lambda x, y: tf.reshape(x, tf.shape(y)) + tf.zeros_like(y),
    "of some results": lambda x, y: tf.unstack(tf.stack([x, y]))[0],
    "by a loop": lambda x, y: doubled(3, x) + doubled(2, tf.stop_gradient(y)),
    "by an identity of several": lambda x, y: tf.identity_n([x, y])[0],
}


@pytest.mark.parametrize("name", DEAD_ENDS)
def test_the_variables_with_a_gradient_are_those_of_tensorflow(name: str) -> None:
    """And the tensors between are those that the analysis of the imported model finds, which would raise otherwise."""
    with tf.Graph().as_default() as recorded:
        x, y, unused = variables()
        loss = tf.reduce_sum(DEAD_ENDS[name](tf.tanh(x), tf.exp(y))) + 0.0 * tf.reduce_sum(tf.stop_gradient(unused))
        train = tf.no_op("train")
        names = [variable.handle.op.name for variable in (x, y, unused)]
        graph = import_graph(recorded, [RecordedStep(train, loss, tuple(names), SGD)])
        gradients = tf.gradients(loss, [x, y, unused])
    truth = {name for name, gradient in zip(names, gradients, strict=True) if gradient is not None}
    assert graph.differentiated is not None and truth
    assert {op.name for op in graph.variables if op.result.name in graph.differentiated.tensors} == truth
    found = analyse(graph).reached(graph)
    assert {op.name for op in graph.variables if op.result.name in found} == truth


def test_a_model_without_steps_is_not_asked() -> None:
    with tf.Graph().as_default() as recorded:
        tf.reduce_sum(variables()[0])
    assert import_graph(recorded, ()).differentiated is None


def recorded_graph(function: Callable[[], zoo.Built]) -> Graph:
    """The imported graph of a model, before it is analysed."""
    with tf.Graph().as_default() as recorded:
        built, train = function(), tf.no_op("train")
        trained = tuple(variable.handle.op.name for variable in tf.compat.v1.trainable_variables())
    return import_graph(recorded, [RecordedStep(train, built.loss, trained, SGD)])


@pytest.mark.parametrize(
    ("op_type", "gives", "said"),
    [("Tanh", False, r"Tanh .* got no gradient of an input, expected gradients of inputs 0\."),
     ("StopGradient", True, r"StopGradient .* got gradients of inputs 0, expected no gradient of an input\.")],
)  # fmt: skip
def test_an_operator_that_is_followed_otherwise_is_noticed(
    monkeypatch: pytest.MonkeyPatch, op_type: str, gives: bool, said: str
) -> None:
    def model() -> zoo.Built:
        x, y, _ = variables()
        return zoo.Built(tf.reduce_sum(tf.tanh(x) * x + tf.stop_gradient(tf.exp(y)) * y), {}, ())

    truly = backward._Asking.answer

    def answer(self: Any, op: Any, results: frozenset[int], indices: frozenset[int]) -> Any:
        if op.type == op_type:
            return backward._Answer(indices if gives else frozenset(), frozenset(), frozenset())
        return truly(self, op, results, indices)

    graph = recorded_graph(model)
    analyse(graph)
    monkeypatch.setattr(backward._Asking, "answer", answer)
    with pytest.raises(InputError, match=said):
        analyse(graph)


def test_each_kind_of_operator_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connected, "_INDICES", {})
    with tf.Graph().as_default() as recorded:
        x, *_ = variables()
        hidden = x
        for _ in range(20):
            hidden = tf.tanh(hidden @ x)
        loss = tf.reduce_sum(hidden)
    n_before = len(recorded.get_operations())
    reach = differentiated(loss, [x.handle.op.name])
    assert reach.tensors >= {hidden.name, x.handle.name}
    assert len(connected._INDICES) == 4  # sum, tanh, product, read
    assert len(recorded.get_operations()) == n_before
    monkeypatch.setattr(connected, "_ask", lambda op: pytest.fail(f"{op.type} is asked for twice"))
    assert differentiated(loss, [x.handle.op.name]) == reach
