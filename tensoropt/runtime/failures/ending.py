"""Let the ranks of a run end together: each posts that it ends, and learns which others have ended and which failed.

Every rank ends by posting one non-blocking all-gather of (kind, exit code, digest of its error) on a communicator of its
own, the *ending*. So MPI_Finalize, which waits for all ranks, is reached by all or by none. The same communicator carries
messages: how many collectives a rank that ends has begun, which rank prints why all end, and which ranks got SIGTERM.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import stat
import struct
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from ...common.process.watchdog import CHAINS

LONGEST_NAP_S = 0.05
READ_S = 2.0
"""Seconds that a rank waits, before it ends all ranks, until mpirun has read what the rank has printed."""

FAREWELL_TAG, SPEAKING_TAG, TERMINATED_TAG = 1, 4, 5
"""The tags of messages on the ending's communicator; :mod:`.watching` has more."""

# A rank posts a record: its kind, its exit code, and the digest of its error.
KIND_NORMAL, KIND_LEFTOVER, KIND_FAILED = 0, 1, 2
DIGEST_BYTES = 16
RECORD_BYTES = 2 + DIGEST_BYTES

_FAREWELL = struct.Struct(f"<{len(CHAINS)}Q")


class Ending:
    """The last collective of a run. All ranks create it together; ``comm`` (mpi4py) is used for nothing else."""

    def __init__(self, comm: Any) -> None:
        self.comm = comm
        self._posted: Any = None
        self._records = bytearray(RECORD_BYTES * comm.size)
        self._farewells: list[Any] = []
        self.joined_s: float | None = None
        self._is_complete = False

    def join(self, kind: int, exit_code: int = 0, digest: bytes = b"", limit_s: float | None = None) -> bool:
        """Post this rank's record (once) and wait for the other ranks'; return whether they came within the limit."""
        if self._posted is None:
            record = bytes([kind, exit_code & 0xFF]) + digest.ljust(DIGEST_BYTES, b"\0")
            self._posted = self.comm.Iallgather(bytearray(record), self._records)
            self.joined_s = time.monotonic()
        deadline = None if limit_s is None else time.monotonic() + limit_s
        nap_s = 0.001
        while not self._posted.Test():
            if deadline is not None and time.monotonic() > deadline:
                return False
            time.sleep(nap_s)
            nap_s = min(2 * nap_s, LONGEST_NAP_S)
        self._is_complete = True
        return True

    def failures(self) -> list[tuple[int, bytes]]:
        """Return (rank, digest) of each rank that failed; only after :meth:`join` returned True."""
        records = [self._records[i : i + RECORD_BYTES] for i in range(0, len(self._records), RECORD_BYTES)]
        return [(rank, bytes(record[2:])) for rank, record in enumerate(records) if record[0] == KIND_FAILED]

    @property
    def has_failures(self) -> bool:
        """Return whether all ranks have ended, and some have failed."""
        return self._is_complete and bool(self.failures())

    def n_working(self) -> int:
        """Return the number of ranks that had work; only after :meth:`join` returned True."""
        return sum(kind != KIND_LEFTOVER for kind in self._records[::RECORD_BYTES])

    def wait_as_leftover(self) -> None:
        """Wait until all other ranks have ended; raise SystemExit(1) if one failed."""
        self.join(KIND_LEFTOVER)
        if self.failures():
            raise SystemExit(1)

    @property
    def has_joined(self) -> bool:
        """Return whether this rank has posted its record."""
        return self._posted is not None

    def say_farewell(self, collectives_begun: Sequence[int]) -> None:
        """Tell the other ranks, without waiting, how many collectives of each chain this rank has begun."""
        self._tell(_FAREWELL.pack(*collectives_begun), FAREWELL_TAG)

    def _tell(self, message: bytes, tag: int) -> None:
        ranks = (rank for rank in range(self.comm.size) if rank != self.comm.rank)
        self._farewells += [self.comm.Isend(bytearray(message), dest=rank, tag=tag) for rank in ranks]

    def receive_farewells(self) -> list[tuple[int, tuple[int, ...]]]:
        """Return (rank, collectives that it began, by chain) of each rank that ended since the last call."""
        return [(rank, _FAREWELL.unpack(message)) for rank, message in self._received(FAREWELL_TAG, _FAREWELL.size)]

    def speak(self) -> None:
        """Tell the other ranks, without waiting, that this rank prints why all ranks end."""
        self._tell(b"", SPEAKING_TAG)

    def others_speak(self) -> bool:
        """Return whether another rank prints why all ranks end."""
        return bool(self.comm.Iprobe(tag=SPEAKING_TAG))

    def tell_terminated(self) -> None:
        """Tell the other ranks, without waiting, that this rank got SIGTERM."""
        self._tell(b"", TERMINATED_TAG)

    def receive_terminated(self) -> set[int]:
        """Return the ranks that got SIGTERM and said so since the last call."""
        return {rank for rank, _ in self._received(TERMINATED_TAG, 0)}

    def _received(self, tag: int, n_bytes: int) -> Iterator[tuple[int, bytearray]]:
        from mpi4py import MPI

        status = MPI.Status()
        while self.comm.Iprobe(tag=tag, status=status):
            message = bytearray(n_bytes)
            self.comm.Recv(message, source=status.Get_source(), tag=tag)
            yield status.Get_source(), message

    def abort(self, exit_code: int) -> NoReturn:
        """End all ranks at once with this exit code."""
        deadline_s = time.monotonic() + READ_S
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
                # A busy mpirun would print its own message about the end before it reads the rank's.
                while _unread_bytes(stream.fileno()) and time.monotonic() < deadline_s:
                    time.sleep(0.001)
        self.comm.Abort(exit_code)
        os._exit(exit_code)


def _unread_bytes(file: int) -> int:
    """Return how many bytes of a pipe nobody has read yet; 0 for what isn't a pipe."""
    if not stat.S_ISFIFO(os.fstat(file).st_mode):
        return 0
    unread = array.array("i", [0])
    fcntl.ioctl(file, termios.FIONREAD, unread)
    return unread[0]
