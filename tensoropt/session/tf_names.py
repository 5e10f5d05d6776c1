"""Offer TensorFlow's names under ``tensoropt``: the operators that they make are recorded in the session's graph."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ..common.errors import InputError
from .recording_optimizers import AdamOptimizer, GradientDescentOptimizer, MomentumOptimizer, gradients
from .session import current_session

_MISSING = object()
_SESSIONS = "there are no TensorFlow sessions here: tensoropt.run(fetches, feed_dict) runs the model on all ranks"
_CHECKPOINTS = "fetch the variables by tensoropt.run(variables) on all ranks and save the values on one"
_REFUSED = {
    "Session": _SESSIONS,
    "InteractiveSession": _SESSIONS,
    "train.MonitoredSession": _SESSIONS,
    "train.MonitoredTrainingSession": _SESSIONS,
    "train.SingularMonitoredSession": _SESSIONS,
    "train.Supervisor": _SESSIONS,
    "train.Saver": _CHECKPOINTS,
    "train.Checkpoint": _CHECKPOINTS,
}
# Modules whose functions make operators; other modules (keras, data, errors) are useful at any time.
_RECORDING_MODULES = frozenset("nn math linalg image losses layers signal random strings sparse bitwise ragged".split())


_OPTIMIZERS = {kind.__name__: kind for kind in (GradientDescentOptimizer, MomentumOptimizer, AdamOptimizer)}


class _Train:
    """The names of ``tf.train``, with optimizers that record a training step in place of those that record gradients."""

    def __getattr__(self, name: str) -> Any:
        if name in _OPTIMIZERS:
            return _OPTIMIZERS[name]
        value = _lookup(name, tf.compat.v1.train, tf.train)
        if value is _MISSING:
            raise AttributeError(f"neither tensoropt.train nor tf.train has a name {name!r}")
        if isinstance(value, type) and issubclass(value, tf.compat.v1.train.Optimizer):
            names = ", ".join(f"tensoropt.train.{optimizer}" for optimizer in _OPTIMIZERS)
            raise InputError(f"tensoropt.train.{name} isn't there; call {names}, which record training steps")
        _check_allowed(f"train.{name}", value)
        return value


_TRAIN = _Train()


def forwarded(name: str) -> Any:
    """Return what a TensorFlow name means: in the graph API (``placeholder``, ``get_variable``) first, then in today's.

    Raises:
        AttributeError: TensorFlow has no such name.
        InputError: there is no session yet, or its model is built, so that nothing can be recorded.
    """
    if name == "train":
        return _TRAIN
    if name == "gradients":
        return gradients
    value = _lookup(name, tf.compat.v1, tf)
    if value is _MISSING:
        raise AttributeError(f"neither tensoropt nor TensorFlow has a name {name!r}")
    _check_allowed(name, value)
    return value


def _lookup(name: str, *places: Any) -> Any:
    return next((getattr(place, name) for place in places if hasattr(place, name)), _MISSING)


def _check_allowed(name: str, value: Any) -> None:
    if name in _REFUSED:
        raise InputError(f"tensoropt.{name} isn't there: {_REFUSED[name]}")
    if name in _RECORDING_MODULES or (callable(value) and not isinstance(value, tf.DType)):
        current_session().recording_for(f"tensoropt.{name}")
