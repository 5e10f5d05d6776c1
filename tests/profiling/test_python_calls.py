"""Threads of TensorFlow that keep their Python thread state."""

from __future__ import annotations

import threading

import numpy as np
import tensorflow as tf

from tensoropt.profiling import python_calls
from tensoropt.profiling.python_calls import keep_thread_state


def calls_that_found_their_state() -> tuple[int, int]:
    """(calls that found what an earlier one left in their thread, calls on a thread that had called before)."""
    local, threads, found = threading.local(), [], []

    def called(x: np.ndarray) -> np.ndarray:
        keep_thread_state()
        found.append(hasattr(local, "was_here"))
        local.was_here = True
        threads.append(threading.get_ident())
        return x

    @tf.function(autograph=False)
    def chain(x):
        for _ in range(20):
            x = tf.numpy_function(called, [x], tf.float32)
        return x

    main = threading.get_ident()
    for _ in range(3):
        chain(tf.constant(1.0))
    of_pool = [(ident, was) for ident, was in zip(threads, found, strict=True) if ident != main]
    return sum(was for _, was in of_pool), len(of_pool) - len({ident for ident, _ in of_pool})


def test_threads_of_tensorflow_keep_their_state():
    found, expected = calls_that_found_their_state()
    assert found == expected > 0
    keep_thread_state()  # on a thread of Python's own it changes nothing


def test_the_state_is_kept_once_per_thread(monkeypatch):
    """Each further reference would be one that nobody takes back."""
    kept_on = []
    monkeypatch.setattr(python_calls, "_hold_thread_state", lambda: kept_on.append(threading.get_ident()))
    monkeypatch.setattr(python_calls, "_kept", set())

    def work():
        for _ in range(3):
            keep_thread_state()
        done.wait()  # the number of a thread that has ended may be given to the next

    done = threading.Barrier(4)
    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    done.wait()
    for thread in threads:
        thread.join()
    assert sorted(kept_on) == sorted(thread.ident for thread in threads)
