"""Check that a Keras model can be parallelized: it must be compiled if it has steps of its own."""

from __future__ import annotations

import inspect
import os
from typing import Any

import keras
import tensorflow as tf

from ...common.errors import InputError, short
from ...common.source_lines import running_line
from .objective import KerasObjective, own_methods


def check_eager(caller: str) -> None:
    """Raise InputError if TensorFlow doesn't execute eagerly, as between ``init`` and ``build_execution_graph``."""
    if not tf.executing_eagerly():
        raise InputError(
            f"{caller} ({running_line()}) was called while a graph is recorded, as after tensoropt.init(); it needs no init "
            "and takes models that were made without: leave tensoropt.init() out, and call it outside of tf.Graph and "
            "tf.function"
        )


def check_model(model: Any, compiles: bool) -> None:
    """Check that a model can be parallelized.

    Args:
        compiles: whether ``parallelize`` is given an optimizer, a loss or metrics.

    Raises:
        InputError: it isn't a Keras model, or it has steps of its own and isn't compiled, or is for eager execution.
    """
    if not isinstance(model, keras.Model) or isinstance(model, KerasObjective):
        raise InputError(f"parallelize takes a keras.Model, or what tensoropt.capture gives, got {short(model)}")
    for name in own_methods(model):
        method = getattr(type(model), name)
        file, line = inspect.getsourcefile(method) or "?", method.__code__.co_firstlineno
        fault = f"model '{model.name}' has its own {name} ({os.path.basename(file)}:{line})"
        if compiles or not model.compiled:
            raise InputError(
                f"{fault}, which uses what the model itself is compiled with; call model.compile(...) as for Keras, and "
                "tensoropt.parallelize(model, batch_size=...) without optimizer=, loss=, metrics=, loss_weights= and "
                "weighted_metrics="
            )
        if model.run_eagerly:
            raise InputError(
                f"{fault}, and is compiled with run_eagerly=True; steps run as TensorFlow's graphs, whose Python runs once, "
                "so that the numbers may be others: leave run_eagerly= out, and see that the step gives the same without"
            )
