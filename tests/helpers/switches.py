"""Settings of Keras and TensorFlow that tests turn while they last."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import keras
import tensorflow as tf


@contextmanager
def floats(dtype: str) -> Iterator[None]:
    """Models, losses and metrics that are made meanwhile compute in this type.

    Layers take their type from the policy, which is made from the default type when somebody first asks: so both are set.
    """
    before, policy = keras.config.floatx(), keras.config.dtype_policy()
    keras.config.set_floatx(dtype)
    keras.config.set_dtype_policy(dtype)
    try:
        yield
    finally:
        keras.config.set_floatx(before)
        keras.config.set_dtype_policy(policy)


@contextmanager
def graphs_as_built() -> Iterator[None]:
    """No graph optimizer, and no looking for garbage over and over: most of the time goes into building graphs that run a
    few times. What is there at the end stays, as modules and recorded models do, and isn't looked through again.
    """
    before = tf.config.optimizer.get_experimental_options().get("disable_meta_optimizer", False)
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": before})
