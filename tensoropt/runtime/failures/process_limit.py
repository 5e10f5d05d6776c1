"""Notice that a process has run out of the memory that its limit leaves it (``ulimit -d`` or ``-v``, as batch systems set).

There an allocation fails, where a container's limit ends the process instead. TensorFlow reports its own failed allocations.
oneDNN's matrix multiplication doesn't: without memory for its packed operands it leaves the result unwritten, and
TensorFlow's ``MatMul`` drops the status that says so (2.21). So a step counts only if memory was left.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
from collections.abc import Mapping
from pathlib import Path

from ...common.errors import OutOfMemoryError
from ...common.memory_units import memory_text

RESERVE_BYTES, RESERVE_BYTES_PER_CORE = 8 << 20, 4 << 20
"""The bytes that libraries need besides TensorFlow's allocator: a thread of a multiplication packs up to 2 x 1.7 MB."""

BESIDE_TENSORS_BYTES = 200 << 20
"""The bytes that a process needs besides tensors for TensorFlow's threads, a model's graphs and what collectives receive."""

LARGE_BYTES = 4 << 20
"""Blocks of at least so many bytes go back to the system when they are freed. What a multiplication packs stays: a step
that had none of it left must still see so when it ends."""

# TensorFlow reads it when the first tensor is allocated.
_ALLOCATOR_LIMIT = "TF_MKL_ALLOC_MAX_BYTES"

ARENA_MAX, MMAP_THRESHOLD, TRIM_THRESHOLD = "MALLOC_ARENA_MAX", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"

# The parameters of mallopt that these variables set when a process starts, from malloc.h.
_PARAMETERS = {TRIM_THRESHOLD: -1, MMAP_THRESHOLD: -3, ARENA_MAX: -8}


def bound_allocators() -> None:
    """Keep allocators from taking all that a limited process can still get.

    TensorFlow's takes memory in regions of doubling size, and where one doesn't fit the largest that does, so it is given a
    bound. A user's own ``TF_MKL_ALLOC_MAX_BYTES`` stays. Without effect once a tensor was allocated. glibc's keeps what was
    freed for each thread apart; threads that start from now on share one arena, unless ``MALLOC_ARENA_MAX`` is set. It also
    keeps blocks as large as the largest that was freed, with gaps between them that later tensors don't fit; large ones go
    back to the system instead, unless ``MALLOC_MMAP_THRESHOLD_`` is set.
    """
    if not is_limited():
        return
    left_bytes = _left_bytes()
    beside_bytes = max(left_bytes // 4, min(BESIDE_TENSORS_BYTES, left_bytes // 2))
    os.environ.setdefault(_ALLOCATOR_LIMIT, str(left_bytes - beside_bytes))
    set_malloc({ARENA_MAX: 1, MMAP_THRESHOLD: LARGE_BYTES})


def set_malloc(values: Mapping[str, int]) -> None:
    """Set what glibc's allocator keeps of freed memory, given by its environment variables; the user's own settings stay."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    for variable, value in values.items():
        if variable not in os.environ:
            mallopt(_PARAMETERS[variable], value)


def is_limited() -> bool:
    """Return whether this process has a limit of memory, at which allocations fail."""
    return bool(_limits())


def check_memory_left() -> None:
    """Check after a step that this process could have got more memory; it costs 2.5 us in a limited process.

    The memory is asked of the system, not of the C library: blocks that the step freed, but for large ones, stay with the
    library, so what can be got now is about what libraries could get at the peak.

    Raises:
        OutOfMemoryError: less than the reserve is left, so results may be unwritten memory.
    """
    if resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY == resource.getrlimit(resource.RLIMIT_DATA)[0]:
        return
    n_bytes = RESERVE_BYTES + RESERVE_BYTES_PER_CORE * len(os.sched_getaffinity(0))
    try:
        mmap.mmap(-1, n_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
    except OSError:
        raise OutOfMemoryError(
            f"out of memory: the limit of this process (ulimit) left a step less than {memory_text(n_bytes)}, with which "
            "TensorFlow may compute wrong numbers without an error, so the step doesn't count; raise the limit, or find a "
            "plan that needs less per device, with find_strategy(memory=...) or on more devices"
        ) from None


def _limits() -> dict[int, int]:
    """Return this process's limits of memory, at which allocations fail."""
    limits = {kind: resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA)}
    return {kind: n_bytes for kind, n_bytes in limits.items() if n_bytes != resource.RLIM_INFINITY}


def _left_bytes() -> int:
    """Return how much memory this process can still get by its limits; there must be one."""
    size, _, _, _, _, data, _ = (int(pages) * mmap.PAGESIZE for pages in Path("/proc/self/statm").read_text().split())
    sizes = {resource.RLIMIT_AS: size, resource.RLIMIT_DATA: data}
    return max(0, min(n_bytes - sizes[kind] for kind, n_bytes in _limits().items()))
