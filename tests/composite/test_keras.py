"""Keras's recurrent layers, which loop over time, and its activations with custom gradients: trained as on one device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from frontend.tracing.test_tracing import hold

from tensoropt.frontend.importer import import_graph
from tensoropt.frontend.tracing.capture import Capture
from tensoropt.ir.graph import Graph
from tensoropt.reschedule.mesh import Mesh
from tensoropt.rules.configs import configs
from tensoropt.rules.registry import rule_of
from tensoropt.rules.rule import Config

BATCH, TIME, WIDTH, UNITS = 6, 4, 3, 5
SPECS = [tf.TensorSpec([BATCH, TIME, WIDTH], tf.float64)]
layers = keras.layers

pytestmark = pytest.mark.usefixtures("float64")


def model_of(*stacked: keras.Layer) -> keras.Model:
    return keras.Sequential([keras.Input((TIME, WIDTH), batch_size=BATCH), *stacked])


def captured(model: keras.Model) -> Graph:
    capture = Capture()
    program = capture.add(lambda x: model(x, training=True), SPECS)
    return import_graph(capture.graph, (), capture.flattener.lines, [program.results.op])


RECURRENT: dict[str, Callable[[], list[keras.Layer]]] = {
    "SimpleRNN": lambda: [layers.SimpleRNN(UNITS, activation="silu")],
    "GRU": lambda: [layers.GRU(UNITS, reset_after=False, return_sequences=True), layers.GRU(UNITS)],
    "Bidirectional": lambda: [layers.Bidirectional(layers.LSTM(UNITS, return_sequences=True))],
    "Masking": lambda: [layers.Masking(), layers.LSTM(UNITS, go_backwards=True, return_sequences=True)],
    "zero outputs": lambda: [
        layers.Masking(),
        layers.RNN(layers.LSTMCell(UNITS), return_sequences=True, zero_output_for_mask=True),
    ],
    "stacked cells": lambda: [layers.RNN([layers.LSTMCell(UNITS), layers.GRUCell(UNITS)])],
    "dropout": lambda: [layers.LSTM(UNITS, dropout=0.2, recurrent_dropout=0.2)],
    "ConvLSTM1D": lambda: [layers.Reshape((TIME, WIDTH, 1)), layers.ConvLSTM1D(2, 2)],
}


@pytest.mark.parametrize("name", RECURRENT)
def test_loops_of_recurrent_layers_split_the_batch_and_nothing_else(name: str) -> None:
    loops = [op for op in captured(model_of(*RECURRENT[name]())).operators.values() if op.type == "Loop"]
    assert loops
    for op in loops:
        rule = rule_of(op)
        assert list(rule.extents.values()) == [BATCH], f"{op.where()}: {rule} {rule.without}"
        assert {str(config) for config in configs(rule, Mesh.of(2))} == {"-", str(Config(Mesh.of(2), (*rule.extents,)))}


@pytest.mark.parametrize("kind", [layers.LSTM, layers.GRU])
def test_recurrent_layers_are_loops_on_a_gpu_too(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keras would make one kernel of cuDNN of each, which keeps a random state of its own and can't be split."""
    model = model_of(kind(UNITS))
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind=None: ["a GPU"])
    assert "CudnnRNNV3" in {op.type for op in tf.function(model).get_concrete_function(SPECS[0]).graph.get_operations()}
    assert "Loop" in {op.type for op in captured(model).operators.values()}


def variables_of(model: keras.Model) -> Sequence[tf.Variable]:
    return [weight.value for weight in model.weights]


def test_a_masked_bidirectional_network_trains_as_on_one_device(everything: bool) -> None:
    """The model has a bidirectional LSTM; with ``--all`` a GRU that goes backwards reads the sequences of that, too."""
    backwards = [layers.GRU(UNITS, activation="silu", go_backwards=True)]
    model = model_of(
        layers.Masking(),
        layers.Bidirectional(layers.LSTM(UNITS, return_sequences=True)),
        *(backwards if everything else []),
        layers.Dense(2, activation="swish"),
    )
    x = np.random.default_rng(1).normal(size=(BATCH, TIME, WIDTH))
    x[0, 2:] = x[3, 3:] = 0  # two shorter sequences
    batch = {"Loop": {"d1": 2}}
    trainer = hold(lambda x: tf.reduce_mean(tf.square(model(x))), variables_of(model), x, force=batch)
    assert {op.type for op in trainer.plan.operators} >= {"Loop", "CustomGradient"}
