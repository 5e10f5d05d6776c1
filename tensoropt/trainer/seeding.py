"""Seed TensorFlow's random numbers for a script that doesn't, except those of datasets.

A dataset's functions that are traced under a seed draw the same numbers whenever the dataset is opened: one order, and one
augmentation, for all epochs. Without a seed, they draw others each time, as in the script alone. Datasets of random numbers
draw others each time by the run's seed, so that all ranks have the same.
"""

from __future__ import annotations

from functools import wraps
from typing import Any
from unittest.mock import patch

import tensorflow as tf
from tensorflow.python.data.ops.structured_function import StructuredFunctionWrapper
from tensorflow.python.eager.context import context, global_seed

_of_run: int | None = None


def is_seeded() -> bool:
    """Return whether the script itself has seeded TensorFlow."""
    return global_seed() not in (None, _of_run)


def seed_tensorflow(seed: int) -> None:
    """Seed TensorFlow's random numbers unless the script has done so."""
    global _of_run
    if global_seed() is not None:
        return
    _of_run = seed
    tf.random.set_seed(seed)
    trace = StructuredFunctionWrapper.__init__

    @wraps(trace)
    def traced(*arguments: Any, **keywords: Any) -> None:
        with patch.object(context(), "_seed", global_seed() if is_seeded() else None):
            trace(*arguments, **keywords)

    StructuredFunctionWrapper.__init__ = traced
    make = tf.data.Dataset.random

    @wraps(make)
    def random(seed: Any = None, rerandomize_each_iteration: bool | None = None, name: str | None = None) -> Any:
        if rerandomize_each_iteration is None and seed is None and not is_seeded():
            rerandomize_each_iteration = True
        return make(seed, rerandomize_each_iteration, name)

    tf.data.Dataset.random = staticmethod(random)
