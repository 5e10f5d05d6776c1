"""Spare imports and long computations the garbage collector's passes over what stays anyway."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

NEVER = 2**30
"""So many collections of younger objects are waited for before one of all objects."""


@contextmanager
def nothing_collected() -> Iterator[None]:
    """Pause the garbage collector, and then exempt all that exists from it: imports take a quarter less time."""
    is_collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_collecting:
            gc.freeze()
            gc.enable()


@contextmanager
def older_objects_kept() -> Iterator[None]:
    """Let the garbage collector look at new objects alone, not at those that are there already.

    A recorded model is hundreds of thousands of objects, and each full collection looks at all of them. Freezing them would
    do the same, but to see whether a program has frozen objects itself all of these are counted.
    """
    youngest, younger, oldest = gc.get_threshold()
    gc.set_threshold(youngest, younger, NEVER)
    try:
        yield
    finally:
        gc.set_threshold(youngest, younger, oldest)
