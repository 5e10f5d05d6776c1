"""Know Keras's layers that work on text or with tables, and compute each sample by itself."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import keras
import tensorflow as tf

# They do so also where they take text apart.
BY_SAMPLE = (
    keras.layers.HashedCrossing,
    keras.layers.Hashing,
    keras.layers.IntegerLookup,
    keras.layers.StringLookup,
    keras.layers.TextVectorization,
)


@contextmanager
def that_tell_samples() -> Iterator[None]:
    """Have these layers, while a model is traced, tell that they give as many samples as they take.

    Where a layer takes text apart, TensorFlow doesn't know how many samples there are afterwards. Loops, such as those of
    recurrent layers, keep the shapes with which they were traced, so they must be known then.
    """
    with ExitStack() as stack:
        for kind in BY_SAMPLE:
            stack.enter_context(patch.object(kind, "call", _telling(kind.call)))
        yield


def _telling(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a layer's ``call``, whose results have the known number of samples."""

    @functools.wraps(call)
    def telling(layer: keras.layers.Layer, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        results = call(layer, inputs, *args, **kwargs)
        tensor = next((leaf for leaf in tf.nest.flatten(inputs) if isinstance(leaf, tf.Tensor) and leaf.shape.rank), None)
        is_led = isinstance(results, tf.Tensor) and (results.shape.rank or 0) > 1 and results.shape[1:].is_fully_defined()
        if is_led and tensor is not None and type(layer) in BY_SAMPLE:
            results.set_shape([tensor.shape[0], *results.shape[1:]])
        return results

    return telling
