"""Test whether TensorFlow's pool of threads runs a number of callbacks at once.

The number of threads that was asked for may not be the number there is. The pool is made when TensorFlow's runtime starts,
which may have been before this package was imported. Later changes of the environment have no effect.
"""

from __future__ import annotations

import threading
from functools import cache

import numpy as np
import tensorflow as tf

MEET_S = 2.0
"""Seconds that callbacks wait for each other. If one comes too late the answer is no, which is safe."""


@cache
def runs_at_once(n_callbacks: int) -> bool:
    """Return whether ``n_callbacks`` callbacks that don't wait for each other run at the same time."""
    barrier = threading.Barrier(n_callbacks)

    def meet() -> np.bool_:
        try:
            barrier.wait(MEET_S)
        except threading.BrokenBarrierError:
            return np.False_
        return np.True_

    def all_met() -> tf.Tensor:
        tensors = [tf.numpy_function(meet, [], tf.bool) for _ in range(n_callbacks)]
        for tensor in tensors:
            tensor.set_shape([])
            tensor.graph.experimental_acd_manager.run_independently(tensor.op)
        return tf.reduce_all(tf.stack(tensors))

    with tf.init_scope():
        return bool(tf.function(all_met, autograph=False)())
