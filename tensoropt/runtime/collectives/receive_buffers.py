"""Allocate memory for what collectives receive."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt

from ..failures.process_limit import MMAP_THRESHOLD, TRIM_THRESHOLD, is_limited, set_malloc

# TensorFlow takes over a NumPy array without a copy only if it starts on this boundary (its allocators' alignment).
ALIGNMENT = 64


def aligned_empty(shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return an uninitialised C-contiguous array that starts on a 64-byte boundary."""
    data_type = np.dtype(dtype)
    n_bytes = math.prod(shape) * data_type.itemsize
    memory = np.empty(n_bytes + ALIGNMENT, np.uint8)
    # Not by ctypes.data and views, which take a microsecond longer.
    start = -memory.__array_interface__["data"][0] % ALIGNMENT
    return np.ndarray(shape, data_type, memory, start)


def keep_freed_memory() -> None:
    """Make the C library keep freed blocks of up to 32 MB for the next step, instead of giving them back to the system.

    A fresh block costs a page fault for every 4 KB: at 1 MB that is more than the collective itself. Settings of the user
    (``MALLOC_MMAP_THRESHOLD_``, ``MALLOC_TRIM_THRESHOLD_``) stay. A process whose memory is limited can't afford it: tensors
    of other sizes don't fit the gaps between such blocks.
    """
    if not is_limited():
        set_malloc({MMAP_THRESHOLD: 32 << 20, TRIM_THRESHOLD: 256 << 20})


class OwnMemory:
    """The methods of a communicator about memory, where collectives use the process's own.

    Scratch memory is buffers with names that grow and are reused: fresh large ones cost more in page faults than a copy.
    """

    def __init__(self) -> None:
        self._memory: dict[str, npt.NDArray[np.uint8]] = {}

    @property
    def workspace_bytes(self) -> int:
        """The bytes that are kept between collectives; see :mod:`...costs.collective_workspace`."""
        return sum(block.nbytes for block in self._memory.values())

    def empty(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Return an uninitialised array that TensorFlow takes over without a copy."""
        return aligned_empty(shape, dtype)

    def scratch(self, name: str, count: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Return a flat aligned array of ``count`` elements, valid until ``name`` is taken again."""
        data_type = np.dtype(dtype)
        n_bytes = count * data_type.itemsize
        if name not in self._memory or self._memory[name].nbytes < n_bytes:
            self._memory[name] = aligned_empty((n_bytes,), np.uint8)
        return self._memory[name][:n_bytes].view(data_type)

    def rounds(self) -> AbstractContextManager[object]:
        """Return a context for the rounds of one collective; it does nothing, since rounds are collectives like others."""
        return nullcontext()
