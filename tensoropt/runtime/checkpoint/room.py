"""Memory for copies of the state that is saved, which a thread makes ready once while training goes on.

A copy into fresh memory takes three times as long as one into memory that is in use, since the system hands out and clears
each of its pages first. A step that assigns to what is still read makes such a copy, so a thread makes copies before it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable

import numpy as np
import tensorflow as tf

_ALIGNED_BYTES, _PAGE_BYTES = 64, 4096
MAKES_READY, WRITES = 10, 19
"""How nice threads are: Linux gives these a tenth and a hundredth of a core that training wants too."""


def give_way(niceness: int) -> None:
    """Have this thread take little of the time that training needs."""
    thread_id = threading.get_native_id()
    os.setpriority(os.PRIO_PROCESS, thread_id, min(19, os.getpriority(os.PRIO_PROCESS, thread_id) + niceness))


def started(action: Callable[[], object]) -> threading.Thread:
    """Start an action in a thread."""
    thread = threading.Thread(target=action, name="tensoropt-save", daemon=True)
    thread.start()
    return thread


class Room:
    """Memory for copies of tensors, so many bytes of them. Those for which it isn't ready, or too small, aren't copied."""

    def __init__(self, n_bytes: int) -> None:
        self._memory = np.empty(n_bytes, np.uint8)
        self.clear()
        self._thread = started(self._touch)

    @staticmethod
    def bytes_for(sizes: Iterable[int]) -> int:
        """Return the bytes of memory for copies of tensors of so many bytes each."""
        return _ALIGNED_BYTES + sum(n_bytes + -n_bytes % _ALIGNED_BYTES for n_bytes in sizes)

    @property
    def n_bytes(self) -> int:
        return self._memory.nbytes

    def _touch(self) -> None:
        give_way(MAKES_READY)
        self._memory[::_PAGE_BYTES] = 0

    def clear(self) -> None:
        """Have the next copies take the place of those in it, which nobody reads any longer."""
        self._taken = -self._memory.ctypes.data % _ALIGNED_BYTES

    def copied(self, value: tf.Tensor) -> tf.Tensor:
        """Return a copy of a tensor of a CPU, or the tensor itself."""
        dtype, n_bytes = value.dtype, value.dtype.size * int(tf.size(value))
        begin, end = self._taken, self._taken + n_bytes
        if self._thread.is_alive() or end > self.n_bytes or not (dtype.is_floating or dtype.is_integer):
            return value
        self._taken = end + -end % _ALIGNED_BYTES
        part, array = self._memory[begin:end], value._numpy()  # without a copy
        np.copyto(part.view(array.dtype).reshape(array.shape), array)
        shared = tf.experimental.dlpack.from_dlpack(part.reshape(-1, dtype.size).__dlpack__())
        return tf.reshape(shared if dtype == tf.uint8 else tf.bitcast(shared, dtype), value.shape)
