"""Check that all ranks are given the same data, as they must be if each gives a global batch.

The ranks compare a digest of each tensor of every ``PERIOD``-th batch, beginning with the first. If random draws differ, all
batches from some batch on differ, so that comparing some is enough. A digest is a CRC of the tensor's type, shape and bytes.
For a large tensor it is that of ``N_BLOCKS`` blocks, evenly spaced, so that it takes equally long for any size. Each
comparison takes the blocks that follow those of the comparison before, so that every byte has its turn.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from ..common.errors import InputError
from ..common.source_lines import running_line
from .ranks import Processes

PERIOD = 16
N_BLOCKS, BLOCK_BYTES = 256, 4096
DIGESTED_BYTES = N_BLOCKS * BLOCK_BYTES


def digest(value: Any, turn: int = 0) -> int:
    """Return a number that is equal for equal tensors, and almost never for different ones.

    Args:
        turn: counts the comparisons; it decides which blocks of a large tensor are taken.
    """
    array = np.ascontiguousarray(value)
    if array.dtype == object:  # texts
        array = np.frombuffer(tf.io.serialize_tensor(array).numpy(), np.uint8)
    flat, kind = array.reshape(-1).view(np.uint8), zlib.crc32(f"{array.dtype} {array.shape}".encode())
    if flat.size > DIGESTED_BYTES:
        width = flat.size // N_BLOCKS
        begin = turn * BLOCK_BYTES % width
        blocks = flat[: N_BLOCKS * width].reshape(N_BLOCKS, width)[:, begin : begin + BLOCK_BYTES]
        flat = np.concatenate([blocks.reshape(-1), flat[N_BLOCKS * width :]])
    return zlib.crc32(flat.data, kind)


def is_compared(number: int) -> bool:
    """Return whether the ranks compare the batch with this number, counted from 0."""
    return number % PERIOD == 0


@dataclass
class SameData:
    """A check of the data that the ranks are given in one kind of call, which all ranks make and count alike.

    Attributes:
        call: the call, as the user writes it.
        advice: what the user can do if the ranks are given different data.
        n_calls: how many calls were made.
    """

    processes: Processes
    call: str
    advice: str
    n_calls: int = field(default=0, init=False)

    def check(self, given: Callable[[], Iterable[tuple[str, Any]]]) -> None:
        """Compare the tensors of one call, if it is one of the compared ones.

        Args:
            given: returns the tensors with their names.

        Raises:
            InputError: the tensors differ between ranks. The message is the same on all ranks.
        """
        number = self.n_calls
        self.n_calls += 1
        if self.processes.size == 1 or not is_compared(number):
            return
        of_ranks: list[Mapping[str, int]] = self.processes.gather(
            {name: digest(value, number // PERIOD) for name, value in given()}
        )
        first = of_ranks[0]
        for rank, digests in enumerate(of_ranks):
            for name in (*first, *digests):
                if digests.get(name) != first.get(name):
                    raise InputError(
                        f"ranks 0 and {rank} give different values for '{name}' in call {number + 1} of {self.call} "
                        f"({running_line()}); {self.advice}"
                    )


def fingerprint(leaves: Sequence[tf.Tensor], is_first: tf.Tensor) -> tf.Tensor:
    """Return a digest of a batch. For a large batch other than the first, digest only some columns of each sample."""

    def columns(leaf: tf.Tensor) -> tf.Tensor:
        rows = tf.reshape(leaf, [tf.shape(leaf)[0], -1])
        one = tf.constant(1, tf.int64)
        n_times = tf.size(rows, tf.int64) * leaf.dtype.size // DIGESTED_BYTES
        return rows[:, :: tf.where(is_first, one, tf.maximum(n_times, one))]

    rows = [tf.fingerprint(columns(leaf)) for leaf in leaves]
    return tf.io.serialize_tensor(tf.fingerprint(tf.reshape(tf.concat(rows, 1), [1, -1])))
