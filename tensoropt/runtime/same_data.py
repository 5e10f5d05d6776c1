"""Whether all ranks are given the same data, as they must be where each gives a whole batch.

Of every ``PERIOD``-th batch, the first among them, the ranks compare a digest of each tensor. What is drawn differently
differs from some batch on in all that follow, so that some are enough. A digest is a CRC of the tensor's bytes; of a large
tensor it is that of ``N_BLOCKS`` blocks, evenly spaced, so that it takes as long for whatever size.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..common.errors import InputError
from ..common.source_lines import running_line
from .ranks import Processes

PERIOD = 16
N_BLOCKS, BLOCK_BYTES = 256, 4096
DIGESTED_BYTES = N_BLOCKS * BLOCK_BYTES


def digest(value: Any) -> int:
    """Return a number that is equal for equal tensors, and hardly ever for others."""
    flat = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    if flat.size > DIGESTED_BYTES:
        width = flat.size // N_BLOCKS
        flat = np.ascontiguousarray(flat[: N_BLOCKS * width].reshape(N_BLOCKS, width)[:, :BLOCK_BYTES])
    return zlib.crc32(flat.data)


def is_compared(number: int) -> bool:
    """Return whether the ranks compare the batch of this number, from 0."""
    return number % PERIOD == 0


@dataclass
class SameData:
    """Compares what the ranks are given in the calls of one kind, which all ranks make and count alike.

    Attributes:
        call: what is called, as the user writes it.
        advice: what the user can do where the ranks are given different data.
    """

    processes: Processes
    call: str
    advice: str
    _n_calls: int = field(default=0, init=False)

    def check(self, given: Callable[[], Iterable[tuple[str, Any]]]) -> None:
        """Compare the tensors of one call, if it is its turn.

        Args:
            given: gives them by name.

        Raises:
            InputError: they differ; the same sentence on all ranks.
        """
        number = self._n_calls
        self._n_calls += 1
        if self.processes.size == 1 or not is_compared(number):
            return
        of_ranks: list[Mapping[str, int]] = self.processes.gather({name: digest(value) for name, value in given()})
        first = of_ranks[0]
        for rank, digests in enumerate(of_ranks):
            for name in (*first, *digests):
                if digests.get(name) != first.get(name):
                    raise InputError(
                        f"ranks 0 and {rank} give different values for '{name}' in call {number + 1} of {self.call} "
                        f"({running_line()}); {self.advice}"
                    )
