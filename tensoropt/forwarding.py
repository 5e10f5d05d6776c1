"""TensorFlow's names under ``tensoropt``: whatever they make is recorded in the session's graph."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import tensorflow as tf

from .recording import AdamOptimizer, GradientDescentOptimizer, MomentumOptimizer
from .session import current_session

# tf.train, with the optimizers that record a training step in place of those that record gradients.
_TRAIN = SimpleNamespace(
    GradientDescentOptimizer=GradientDescentOptimizer,
    MomentumOptimizer=MomentumOptimizer,
    AdamOptimizer=AdamOptimizer,
    get_or_create_global_step=tf.compat.v1.train.get_or_create_global_step,
    get_global_step=tf.compat.v1.train.get_global_step,
)


def forwarded(name: str) -> Any:
    """A TensorFlow name: that of the graph API (``placeholder``, ``get_variable``) first, then today's.

    Raises:
        AttributeError: TensorFlow has no such name.
        InputError: there is no session yet, or its model is built, so that nothing can be recorded.
    """
    found = _TRAIN if name == "train" else getattr(tf.compat.v1, name, None) or getattr(tf, name, None)
    if found is None:
        raise AttributeError(f"neither tensoropt nor TensorFlow has a name {name!r}")
    if callable(found) and not isinstance(found, tf.DType):
        current_session().recording_for(f"tensoropt.{name}")
    return found
