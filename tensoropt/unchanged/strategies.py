"""Answer TensorFlow's distribution strategies by its default strategy: one replica, whose batch is the global one."""

from __future__ import annotations

from functools import cache
from typing import Any

import tensorflow as tf
from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function

from ..common.errors import InputError
from ..common.source_lines import running_line
from ..runtime.ranks import current_processes
from .effects import say_once

MIRRORED = ("MirroredStrategy", "MultiWorkerMirroredStrategy", "OneDeviceStrategy")
OTHERS = ("ParameterServerStrategy", "TPUStrategy")


def answer_strategies() -> None:
    """Replace the classes of strategies in ``tf.distribute``."""
    for module in (tf.distribute, tf.distribute.experimental):
        for name in (*MIRRORED, *OTHERS):
            if hasattr(module, name):
                answer = _default if name in MIRRORED else _refused
                setattr(module, name, type(name, (getattr(module, name),), {"__new__": answer}))
    kind = type(tf.distribute.get_strategy())
    run, as_function = kind.run, cache(tf.function)

    def run_as_function(strategy: Any, fn: Any, *arguments: Any, **keywords: Any) -> Any:
        """Run what each replica does as a ``tf.function``, which may be a training step."""
        is_step = current_processes().size > 1 and tf.executing_eagerly() and not isinstance(fn, Function)
        return run(strategy, as_function(fn) if is_step else fn, *arguments, **keywords)

    kind.run = run_as_function


def _default(kind: type, *arguments: Any, **keywords: Any) -> Any:
    say_once(
        f"tf.distribute.{kind.__name__} has one replica here, whose batch is the global one: models are trained on all "
        "ranks anyway"
    )
    return tf.distribute.get_strategy()


def _refused(kind: type, *arguments: Any, **keywords: Any) -> Any:
    raise InputError(
        f"tf.distribute.{kind.__name__} ({running_line()}) has devices or servers of its own; leave the strategy out: "
        "models are trained on all ranks without one"
    )
