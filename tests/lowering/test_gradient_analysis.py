"""The gradients' ways and reads, operator by operator, equal those of TensorFlow's gradients of the whole model."""

from __future__ import annotations

from collections.abc import Callable

import keras
import pytest
import tensorflow as tf
from helpers import zoo
from helpers.large import first
from oracles.gradients import traced

from tensoropt.frontend.importer import import_graph
from tensoropt.frontend.recorded_graph import RecordedStep
from tensoropt.frontend.tracing.capture import Capture
from tensoropt.ir.graph import Graph
from tensoropt.lowering.gradient_analysis import _Asking, analyse
from tensoropt.optimizers.classic import Classic
from tensoropt.tools import offline

MODELS = (zoo.mlp, zoo.cnn, zoo.fused_cnn, zoo.attention, zoo.broadcasting, zoo.fourier)
RECORDED = {function.__name__: function for function in MODELS}
FROM_ZOO = ("rnn", "wide_resnet", "transformer", "inception_v3")


def convolutional() -> keras.Model:
    """Custom gradients (silu), batch normalisation, dropout, pooling, grouped and depthwise convolutions."""
    x = inputs = keras.Input((9, 9, 4))
    x = keras.layers.Conv2D(8, 3, groups=2, activation="silu")(x)
    x = keras.layers.BatchNormalization()(x)
    x = keras.layers.DepthwiseConv2D(3, padding="same", activation="gelu")(x)
    x = keras.layers.Concatenate()([keras.layers.MaxPooling2D(2)(x), keras.layers.AveragePooling2D(2)(x)])
    x = keras.layers.Dropout(0.3)(keras.layers.Flatten()(x))
    return keras.Model(inputs, keras.layers.Dense(5)(x))


def recurrent() -> keras.Model:
    """Loops, an embedding, attention with a mask."""
    words = keras.Input((7,), dtype="int32")
    x = keras.layers.Embedding(11, 6, mask_zero=True)(words)
    x = keras.layers.LSTM(6, return_sequences=True)(x)
    x = keras.layers.MultiHeadAttention(2, 3)(x, x)
    x = keras.layers.GRU(5)(keras.layers.LayerNormalization()(x))
    return keras.Model(words, keras.layers.Dense(5)(x))


def captured(make: Callable[[], keras.Model]) -> Graph:
    model, capture = make(), Capture()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    (given,) = model.inputs
    signature = [tf.TensorSpec([4, *given.shape[1:]], given.dtype), tf.TensorSpec([4], tf.int64)]
    program = capture.add(lambda x, y: loss(y, model(x, training=True)), signature)
    with capture.graph.as_default():
        train = tf.no_op("train")
    names = tuple(capture.name(variable.value) or "" for variable in model.trainable_variables)
    step = RecordedStep(train, program.results, names, Classic("sgd", (("learning_rate", 0.1),)))
    return import_graph(capture.graph, [step], capture.flattener.lines, program.writes)


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_models(name: str) -> None:
    graph = zoo.record(RECORDED[name], "sgd").graph
    assert analyse(graph) == traced(graph)


@pytest.mark.parametrize("name", first(2, FROM_ZOO))
def test_models_of_the_zoo(name: str) -> None:
    graph = offline.record_named(f"zoo:{name}").model.graph
    assert analyse(graph) == traced(graph)


@pytest.mark.parametrize("make", [convolutional, recurrent])
def test_keras_models(make: Callable[[], keras.Model]) -> None:
    graph = captured(make)
    found = analyse(graph)
    assert found == traced(graph)
    assert found.gradients and found.residual_operands and found.residual_results


def test_a_model_like_an_earlier_one_needs_no_more_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    analyse(zoo.record(zoo.mlp, "sgd").graph)
    monkeypatch.setattr(_Asking, "_analyse", lambda self, op, *_: pytest.fail(f"{op.where()} is asked for again"))
    graph = zoo.record(zoo.mlp, "adam").graph
    assert analyse(graph) == traced(graph)
