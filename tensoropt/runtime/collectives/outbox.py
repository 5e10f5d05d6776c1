"""Send arrays between processes in parts, and wait for MPI's requests with naps.

MPI waits by polling, which takes a core. A rank that naps between its polls leaves the core to computation.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

if TYPE_CHECKING:
    from mpi4py.MPI import Comm

Array = npt.NDArray[Any]

AWAKE_S, NAP_S = 5e-5, 5e-5
"""Seconds that a rank polls before its first nap, and of a nap: a link of 1 Gb/s moves 6 KiB meanwhile."""

PART_BYTES, PARTS_UNDER_WAY = 1 << 17, 2
"""The bytes of one part of a message that is sent in parts, and how many parts are under way at once.

Received parts are added while the rest is under way, and a critical message waits for 2 ms of a link of 1 Gb/s at most. With
all parts under way at once such a link carried half as much: data parallelism of a VGG16 took 2843 ms, with 8, 4 and 2 parts
2289, 2072 and 2117, with two of 512 KiB 2231.
"""

TRAILING_NAP_S = 2e-4
"""Seconds of a nap of a communicator that gives way.

Parts under way keep the link busy meanwhile, and each poll takes a core from computation.
"""

# NumPy's type characters of MPI's types, of those that training moves most.
_MPI_TYPES = frozenset("fdilq")
# The types as which MPI moves other elements, by their size: it needn't know what they are, and has no type for some.
_OPAQUE = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64, 16: np.complex128}


class Outbox:
    """A queue of array parts to send to members of a group, of which few are under way at once."""

    def __init__(self, group: Comm, gives_way: bool) -> None:
        self._group, self._pace = group, (0.0, TRAILING_NAP_S) if gives_way else (AWAKE_S, NAP_S)
        self._waiting: deque[tuple[Array, int, int]] = deque()
        self._sending: list[MPI.Request] = []

    def add(self, flat: Array, member: int, tag: int) -> None:
        """Queue an array to be sent in parts, after all that was added before."""
        self._waiting.extend((flat[part], member, tag) for part in parts_of(flat, PART_BYTES))

    def arriving(self, flat: Array, member: int, tag: int) -> list[tuple[slice, MPI.Request]]:
        """Start to receive into an array what a member sends by :meth:`add`; return its parts in order, with requests."""
        parts = parts_of(flat, PART_BYTES)
        return [(part, self._group.Irecv(as_mpi_buffer(flat[part]), member, tag)) for part in parts]

    def look(self) -> None:
        """Send as many queued parts as may be under way."""
        self._sending = [request for request in self._sending if not request.Test()]
        while self._waiting and len(self._sending) < PARTS_UNDER_WAY:
            part, member, tag = self._waiting.popleft()
            self._sending.append(self._group.Isend(as_mpi_buffer(part), member, tag))

    def wait_for(self, requests: Iterable[MPI.Request]) -> None:
        """Wait until all requests are done, and send queued parts meanwhile."""
        wait(list(requests), self.look, *self._pace)

    def empty(self) -> None:
        """Wait until all parts are sent."""
        self.look()
        while self._sending:
            self.wait_for(self._sending[:1])


def parts_of(flat: Array, n_bytes: int) -> list[slice]:
    """Return consecutive parts of an array, at least one, each of about ``n_bytes`` except the last."""
    step = max(1, n_bytes // flat.dtype.itemsize)
    return [slice(start, min(start + step, flat.size)) for start in range(0, max(1, flat.size), step)]


def wait(
    requests: list[MPI.Request], meanwhile: Callable[[], None] = lambda: None, awake_s: float = AWAKE_S, nap_s: float = NAP_S
) -> None:
    """Wait until all requests are done, without a nap if that is soon. Call ``meanwhile`` before each poll."""
    awake_until_s = time.perf_counter() + awake_s
    meanwhile()
    while not MPI.Request.Testall(requests):
        if time.perf_counter() > awake_until_s:
            time.sleep(nap_s)
        meanwhile()


def as_mpi_buffer(array: Array) -> Array:
    """Return the array as MPI can move it. A view costs a microsecond, of which a small collective takes ten."""
    if array.dtype.char in _MPI_TYPES:
        return array
    buffer: Array = array.reshape(-1).view(_OPAQUE[array.dtype.itemsize])
    return buffer
