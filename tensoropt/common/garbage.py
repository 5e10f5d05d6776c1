"""Spare long computations the garbage collector's passes over what was there before them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def older_objects_kept() -> Iterator[None]:
    """Let the garbage collector look at new objects alone, not at those that are there already.

    A recorded model and TensorFlow are a million objects, and each full collection looks at all of them. Where a program has
    frozen objects itself, all stays as it is.
    """
    if gc.get_freeze_count():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
