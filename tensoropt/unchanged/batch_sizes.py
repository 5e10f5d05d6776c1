"""Find how many samples a step of a call takes, before its data is opened."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

_BY_DEFAULT = 32
"""Keras's own samples per step, where nothing says how many."""


def batch_size_of(method: Callable[..., Any], arguments: Sequence[Any], keywords: Mapping[str, Any]) -> int | None:
    """Return the samples per step of a call of ``fit`` or ``train_on_batch``; None if only the first batch tells.

    Args:
        method: Keras's method.
        arguments, keywords: those of the call, without the model.
    """
    try:
        by_name = inspect.signature(method).bind(None, *arguments, **keywords).arguments
    except TypeError:
        return None  # Keras says what is wrong
    x = by_name.get("x")
    if isinstance(x, tf.data.Dataset):
        data: Any = x
        shapes = [getattr(leaf, "shape", None) for leaf in tf.nest.flatten(data.element_spec)]
        batch_size = next((shape[0] for shape in shapes if shape is not None and shape.rank), None)
        while batch_size is None and data is not None:  # what batched it; a later map may have changed that, which is rare
            size = getattr(data, "_batch_size", None)
            batch_size = None if size is None else int(size)
            data = getattr(data, "_input_dataset", None)
        return batch_size
    n_samples = _length(x)
    if n_samples is None or method.__name__ == "train_on_batch":
        return n_samples
    n_trained = math.floor(n_samples * (1.0 - (by_name.get("validation_split") or 0.0)))
    return max(1, min(by_name.get("batch_size") or _BY_DEFAULT, n_trained))


def _length(x: Any) -> int | None:
    """Return the number of samples of arrays; None for what gives batches."""
    if x is None or isinstance(x, keras.utils.PyDataset) or (hasattr(x, "__next__") and not hasattr(x, "shape")):
        return None
    first = next(iter(keras.tree.flatten(x)), None)
    shape: Any = getattr(first, "shape", ())
    return int(shape[0]) if len(shape) else None
