"""Set what glibc's allocator keeps of freed memory. The user's own settings, environment variables, stay."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping

ARENA_MAX, MMAP_THRESHOLD, TRIM_THRESHOLD = "MALLOC_ARENA_MAX", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"

# The parameters of mallopt that these variables set when a process starts, from malloc.h.
_PARAMETERS = {TRIM_THRESHOLD: -1, MMAP_THRESHOLD: -3, ARENA_MAX: -8}


def set_malloc(values: Mapping[str, int]) -> None:
    """Set glibc's parameters, given by their environment variables; C libraries other than glibc are left alone."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    for variable, value in values.items():
        if variable not in os.environ:
            mallopt(_PARAMETERS[variable], value)
