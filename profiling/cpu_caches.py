"""Bring the caches of a CPU into the state that a training step finds them in: taken over by other work."""

from __future__ import annotations

import re
import time
from pathlib import Path

import numpy as np

TIMES_CACHE = 2
"""The size of the array that evicts the last level of cache, over that of the cache."""
USUAL_CACHE_BYTES, MOST_CACHE_BYTES = 1 << 25, 1 << 26
"""The size of the last level of cache where it isn't known, and the most that a rank evicts. If the cache is larger, each of
the ranks that share it evicts a part."""
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


def spin(seconds: float) -> None:
    """Keep the core busy for ``seconds``, so that other work on this machine takes over the caches.

    The state of the caches after a pause is the same whether or not the rank computed in the pause: a machine's last
    level of cache is shared, on a cloud's machine with strangers. Memory that a step uses only once is found in that
    state.
    """
    until_s = time.perf_counter() + seconds
    while time.perf_counter() < until_s:
        pass


class Evicting:
    """An action that evicts all earlier contents from the caches, also on a machine that nobody else uses."""

    def __init__(self) -> None:
        self._other = np.ones(TIMES_CACHE * cache_bytes() // 4, np.float32)

    def __call__(self) -> None:
        np.add(self._other, 1.0, out=self._other)


def cache_bytes(folder: Path = CACHES) -> int:
    """Return the bytes of the last level of cache as Linux has it, else a common size; at most ``MOST_CACHE_BYTES``."""
    matches = (re.fullmatch(r"(\d+)([KM])", file.read_text().strip()) for file in folder.glob("index*/size"))
    sizes = [int(match[1]) << {"K": 10, "M": 20}[match[2]] for match in matches if match is not None]
    return min(MOST_CACHE_BYTES, max(sizes, default=USUAL_CACHE_BYTES))
