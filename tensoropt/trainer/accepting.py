"""Check that a Keras model can be parallelized: it must use Keras's own steps."""

from __future__ import annotations

import inspect
import os
from typing import Any

import keras
import tensorflow as tf

from ..common.errors import InputError, short
from ..common.source_lines import running_line
from .objective import KerasObjective

# The methods of Keras's steps that don't run under a plan, and where a model can put what it computes in them.
_NOT_CALLED = {
    "train_step": "put what it computes into call, add_loss and loss=",
    "test_step": "put what it computes into call and metrics=",
    "predict_step": "put what it computes into call",
    "compute_loss": "put what it computes into loss= or add_loss",
    "compute_metrics": "put what it computes into metrics=",
}


def check_eager(what: str) -> None:
    """Check that TensorFlow executes eagerly, unlike between ``init`` and ``build_execution_graph``.

    Raises:
        InputError: a graph is the default graph.
    """
    if not tf.executing_eagerly():
        raise InputError(
            f"{what} ({running_line()}) was called while a graph is recorded, as after tensoropt.init(); it needs no init "
            "and takes models that were made without: leave tensoropt.init() out, and call it outside of tf.Graph and "
            "tf.function"
        )


def check_model(model: Any) -> None:
    """Check that a model can be parallelized.

    Raises:
        InputError: it isn't a Keras model, or it overrides one of the methods of Keras's steps.
    """
    if not isinstance(model, keras.Model) or isinstance(model, KerasObjective):
        raise InputError(f"parallelize takes a keras.Model, or what tensoropt.capture gives, got {short(model)}")
    for name, instead in _NOT_CALLED.items():
        method = getattr(type(model), name)
        if method is not getattr(keras.Model, name):
            file, line = inspect.getsourcefile(method) or "?", method.__code__.co_firstlineno
            raise InputError(
                f"model '{model.name}' has its own {name} ({os.path.basename(file)}:{line}), which isn't called when a plan "
                f"runs; {instead}, or capture the whole loss as a function by tensoropt.capture"
            )
