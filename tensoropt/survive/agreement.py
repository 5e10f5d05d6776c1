"""Have all ranks do the same between two steps: nothing, save, or save and leave."""

from __future__ import annotations

import hashlib
import signal
import threading
from functools import cache
from typing import Any

import numpy as np

from ..runtime.failures.error_handling import interruptions_of_process
from ..runtime.launch.mpirun import REQUESTS
from ..runtime.ranks import Processes
from ..trainer.batch import Batch

NOTHING, SAVE, LEAVE = range(3)


class StopRequest:
    """Whether a signal has asked this process to save and leave."""

    def __init__(self) -> None:
        self.is_asked = False

    @classmethod
    @cache
    def of_process(cls) -> StopRequest:
        """Return the one object of this process."""
        return cls()

    def _ask(self) -> None:
        self.is_asked = True

    def listen(self) -> None:
        """Take SIGTERM and SIGUSR1 as requests from now on; a second SIGTERM ends the process at once."""
        interruptions = interruptions_of_process()
        if interruptions is not None:
            interruptions.ask_to_stop(self._ask)
        elif threading.current_thread() is threading.main_thread():
            for number in REQUESTS:
                if signal.getsignal(number) is signal.SIG_DFL:
                    signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: Any) -> None:
        self._ask()
        signal.signal(number, signal.SIG_DFL)


def agreed(processes: Processes, wish: int, is_writing: bool) -> tuple[int, bool]:
    """Return the largest of the ranks' wishes, and whether any rank still writes, on every rank."""
    if processes.is_alone:
        return wish, is_writing
    from mpi4py import MPI

    own, largest = np.array([wish, is_writing], np.int32), np.empty(2, np.int32)
    processes.complete([processes.comm.Iallreduce(own, largest, MPI.MAX)], "whether to save")
    return int(largest[0]), bool(largest[1])


def digest_of(batch: Batch, processes: Processes) -> str:
    """Return the digest of a global batch, on every rank, however many share it."""
    leaves = [np.asarray(leaf) for leaf in batch.leaves]
    rows = b"".join(_digest([leaf[i] for leaf in leaves]) for i in range(len(leaves[0])))
    parts = processes.gather(rows, "digests of a batch") if batch.is_share else [rows]
    return hashlib.blake2b(b"".join(parts), digest_size=16).hexdigest()


def _digest(sample: list[np.ndarray]) -> bytes:
    digest = hashlib.blake2b(digest_size=8)
    for value in sample:
        digest.update(repr(value).encode() if np.asarray(value).dtype == object else np.ascontiguousarray(value).tobytes())
    return digest.digest()
