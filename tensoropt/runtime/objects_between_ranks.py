"""Exchange picklable values between ranks, while waiting ranks leave the core to others and the main thread to signals.

Ranks may wait for minutes here, while one of them searches. MPI's own waits take a core, which the search needs.
"""

from __future__ import annotations

import hashlib
import pickle
import time
from array import array
from collections.abc import Callable, Sequence
from typing import Any

AWAKE_S, SHORTEST_NAP_S, LONGEST_NAP_S = 2e-4, 5e-5, 5e-3
NAP_SHARE = 0.05
"""The length of a nap, as a share of the time waited so far."""
MOST_DIGESTED = 4096
"""The bytes of the longest message that isn't sent where all ranks have the same one, as their digests tell."""
ROUND_BYTES = 1 << 30
"""The bytes that one message moves at most: MPI counts to 2^31, so longer values go in rounds."""


def wait_for_all(*requests: Any) -> None:
    """Wait until all requests are complete, without a nap if that is soon."""
    from mpi4py import MPI

    pending = list(requests)
    _until(lambda: MPI.Request.Testall(pending))


def is_finalized() -> bool:
    """Return whether MPI has ended: no request can be waited for any more."""
    from mpi4py import MPI

    return bool(MPI.Is_finalized())


def receive_object(comm: Any, rank: int, tag: int) -> Any:
    """Return the object that another rank sends by ``comm.isend``."""
    return _until(lambda: comm.improbe(source=rank, tag=tag)).recv()


def _until(function: Callable[[], Any]) -> Any:
    """Call ``function`` until it returns something true, and return that."""
    started_s = time.perf_counter()
    while not (result := function()):
        waited_s = time.perf_counter() - started_s
        if waited_s > AWAKE_S:
            time.sleep(min(max(NAP_SHARE * waited_s, SHORTEST_NAP_S), LONGEST_NAP_S))
    return result


def broadcast_object(comm: Any, value: Any) -> Any:
    """Return rank 0's value on every rank of a communicator (mpi4py)."""
    data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL) if comm.rank == 0 else b""
    size = array("q", [len(data)])
    wait_for_all(comm.Ibcast(size, root=0))
    buffer = memoryview(data if comm.rank == 0 else bytearray(size[0]))
    for start in range(0, len(buffer), ROUND_BYTES):
        wait_for_all(comm.Ibcast(buffer[start : start + ROUND_BYTES], root=0))
    return value if comm.rank == 0 else pickle.loads(buffer)


def gather_objects(comm: Any, value: Any, root: int | None = None) -> list[Any]:
    """Return every rank's value, in rank order, on every rank of a communicator; or on one, and nothing on the others."""
    data = memoryview(pickle.dumps(value, pickle.HIGHEST_PROTOCOL))
    head, heads = array("q", [len(data), _digest(data, comm.rank)]), array("q", bytes(16 * comm.size))
    wait_for_all(comm.Iallgather(head, heads))
    is_here = root in (None, comm.rank)
    if heads == head * comm.size:
        return [value] * comm.size if is_here else []
    parts = [bytearray() for _ in range(comm.size if is_here else 0)]
    for bounds in _rounds(heads[::2].tolist()):
        counts = [end - start for start, end in bounds]
        buffer = memoryview(bytearray(sum(counts) if is_here else 0))
        chunk, target = data[slice(*bounds[comm.rank])], (buffer, counts) if is_here else None
        wait_for_all(comm.Iallgatherv(chunk, target) if root is None else comm.Igatherv(chunk, target, root=root))
        for part, count in zip(parts, counts, strict=False):
            part += buffer[:count]
            buffer = buffer[count:]
    return list(map(pickle.loads, parts))


def _digest(data: memoryview, rank: int) -> int:
    """Return what tells a short message from others; of a long one, which takes longer to digest than to send, the rank."""
    if len(data) > MOST_DIGESTED:
        return rank
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little", signed=True)


def _rounds(sizes: Sequence[int]) -> list[list[tuple[int, int]]]:
    """Return, for each round, the range (start, end) of each rank's bytes that the round moves."""
    n_bytes = max(1, ROUND_BYTES // len(sizes))
    return [[(min(start, size), min(start + n_bytes, size)) for size in sizes] for start in range(0, max(sizes), n_bytes)]
