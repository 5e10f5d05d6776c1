"""Define the actions that are timed to learn how fast one device computes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Action = Callable[[], Any]
Call = tuple[int, Callable[[Any], Any]]
"""The number of float32 numbers of its input, and the function that is called.

The function gets an array, or a tensor of the graph that is being built and to which it adds operators.
"""

STREAM_BYTES = 1 << 24
"""The bytes of the array that bandwidth is measured with: more than the second level of cache, as a layer's tensors are."""
CHAIN = 300
"""The operators that the longer chain has more than the shorter one."""
EVICTING_BYTES = 1 << 23
"""A pass over so much memory evicts all else from the second level of cache, as a step's compute does."""


@dataclass(frozen=True, slots=True)
class Chain:
    """Two actions: ``long()`` runs ``n_more`` operators more than ``short()``: the difference of their times is theirs."""

    short: Action
    long: Action
    n_more: int


@dataclass(frozen=True, slots=True)
class ComputeBetween:
    """The compute between two calls that are timed.

    Attributes:
        extent: the number of rows of the two square matrices that are multiplied.
        n_bytes: the bytes of the array that is read after that.
    """

    extent: int
    n_bytes: int

    @property
    def n_numbers(self) -> int:
        return self.n_bytes // 4


CLOSE, APART = ComputeBetween(8, 4), ComputeBetween(512, EVICTING_BYTES)
"""The compute between collectives that follow each other within a few tens of microseconds, as those of one operator do; and
that between collectives which find nothing of the last one in the caches, as after a convolution's gradients."""


def cpu_name() -> str:
    """Return the processor's name as Linux has it, else ``CPU``."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        return "CPU"
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "CPU")


def time_s(action: Action, ranks_per_core: float = 1.0) -> float:
    """Return the seconds that an action takes.

    Args:
        ranks_per_core: how many ranks compute at once on each core. Such a rank has the core in turns, and an action that is
            shorter than a turn may have all of one, but not always: so it takes its CPU time so many times at least.
    """
    start_s, busy_s = time.perf_counter(), time.process_time()
    action()
    taken_s = time.perf_counter() - start_s
    return max(taken_s, ranks_per_core * (time.process_time() - busy_s)) if ranks_per_core > 1 else taken_s
